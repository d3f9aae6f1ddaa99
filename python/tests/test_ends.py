"""How scripts end, and what `slackline run` says of it."""

import re

import pytest
from support import CONFIG, USUAL, run, run_alone, run_job

import slackline


@pytest.mark.parametrize(
    "end, said",
    [
        ("job.save('missing/model.safetensors')", r"missing/model.safetensors.*\(run.py:\d+\)"),
        ("1 / 0", r"ZeroDivisionError: division by zero \(run.py:\d+\)"),
        ("sys.exit('no such thing')", r"sys.exit\('no such thing'\) at run.py:\d+"),
    ],
)
def test_an_error_after_the_end_of_the_job_is_one_of_the_run(tmp_path, end, said):
    job = run_job(tmp_path, USUAL + "\n" + end, "--epochs", "1")
    assert job.code == 1, job.output
    assert re.search(said, job.output), job.output
    assert (job.folder / "model.safetensors").exists()

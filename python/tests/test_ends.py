"""How scripts end, and what `slackline run` says of it."""

import re

import pytest
from support import POINTS, USUAL, run_alone, run_job


@pytest.mark.parametrize(
    "end, said",
    [
        ("job.save('missing/model.safetensors')", r"missing/model.safetensors.*\(run.py:\d+\)"),
        ("1 / 0", r"ZeroDivisionError: division by zero \(run.py:\d+\)"),
        ("sys.exit('no such thing')", r"sys.exit\('no such thing'\) \(run.py:\d+\)"),
    ],
)
def test_an_error_after_the_end_of_the_job_is_one_of_the_run(tmp_path, end, said):
    job = run_job(tmp_path, USUAL + "\n" + end, "--epochs", "1")
    assert job.code == 1, job.output
    assert re.search(said, job.output), job.output
    assert (job.folder / "model.safetensors").exists()
    assert "after the job had finished, whose model is there: " in job.output


@pytest.mark.parametrize(
    "change, said",
    [
        (("opt.step()", "opt.step(); sys.exit('no data') if job.steps == 3 else None"),
         r"its script ended after 3 of 60 steps; iterate job.epochs\(\) to its end \(sys.exit\('no data'\) at run.py:\d+\)"),
        (("    job.evaluate(lambda net: right(net, test_set))", "    job.evaluate(right(net, test_set))"),
         r"a Tensor is not a function; give the function .*\(run.py:\d+\)"),
        (("        opt.step()\n", ""), r"an epoch has ended without any optimizer.step\(\). Call .*\(run.py:\d+\)"),
    ],
)
def test_what_ends_a_script_is_said_with_its_line_and_what_to_write(tmp_path, change, said):
    assert change[0] in USUAL
    job = run_job(tmp_path, USUAL.replace(*change))
    assert job.code == 1 and re.search(said, job.output), job.output


@pytest.mark.parametrize("where", ["alone", "job"])
def test_an_error_of_the_evaluation_at_the_exit_is_one_of_the_script(tmp_path, where):
    script = POINTS + """
job = slackline.join()
net = job.model(make())
opt = job.optimizer(net, slackline.SGD(lr=0.1))
job.evaluate(lambda net: 1 / 0)
for x, y in job.loader(train_set, batch_size=20):  # The one epoch, of the last model.
    F.cross_entropy(net(x), y).backward()
    opt.step()
"""
    ended = run_alone(tmp_path, script) if where == "alone" else run_job(tmp_path, script)
    assert ended.code == 1 and "ZeroDivisionError: division by zero" in ended.output, ended.output

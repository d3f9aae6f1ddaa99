"""A script whose machine is taken away: SIGTERM in a job with checkpoints."""

import signal

import pytest
from support import CONFIG, USUAL, run_job

WITH_CHECKPOINTS = CONFIG + "checkpoint { }\n"
# Rank 1 is told so often, in the midst of the job.
TOLD = """
        if job.rank == 1 and epoch == 1 and not told:
            for _ in range({times}):
                told.append(os.kill(os.getpid(), signal.SIGTERM))
                time.sleep(0.2)
                print('still here', flush=True)
"""


def script(times: int, epochs: int = 500) -> str:
    return "import os, signal, time\ntold = []\n" + USUAL.replace("epochs(2)", f"epochs({epochs})").replace(
        "        opt.step()\n", "        opt.step()\n" + TOLD.format(times=times)
    )


@pytest.mark.parametrize("mode", ["bsp", "asp", "allreduce"])
def test_sigterm_to_one_script_suspends_the_job(tmp_path, mode):
    job = run_job(tmp_path, script(1), "--mode", mode, config=WITH_CHECKPOINTS)
    assert job.code == 75, job.output
    assert job.summary["cause"] == "SUSPENDED", job.summary
    assert job.summary["reason"].startswith("worker 1 was interrupted by SIGTERM; step "), job.summary
    for rank in (0, 1):
        assert "the job is suspended: worker 1 was interrupted" in job.log(rank)
        assert "Traceback" not in job.log(rank)
    assert "a checkpoint is to be taken, then the job ends" in job.log(1)
    steps = job.summary["last_checkpoint"]["clock"]
    more = run_job(
        tmp_path, USUAL.replace("epochs(2)", "epochs(20)"), "--mode", mode, "--resume", str(job.folder),
        config=WITH_CHECKPOINTS, name="more",
    )
    more.succeeded()
    assert more.summary["resumed_from"]["clock"] == steps


def test_a_second_one_ends_the_script_at_once(tmp_path):
    job = run_job(tmp_path, script(2), config=WITH_CHECKPOINTS)
    assert job.log(1).count("still here") == 1, job.log(1)


def test_without_checkpoints_the_first_one_does(tmp_path):
    job = run_job(tmp_path, script(1, epochs=3))
    assert "still here" not in job.log(1), job.log(1)
    assert job.summary["cause"] != "SUSPENDED", job.summary


def test_a_handler_of_the_script_stays(tmp_path):
    own = "import signal\nown = lambda number, frame: None\nsignal.signal(signal.SIGTERM, own)\n"
    job = run_job(
        tmp_path, own + USUAL + "\nassert signal.getsignal(signal.SIGTERM) is own\n", config=WITH_CHECKPOINTS
    )
    job.succeeded()


def test_a_script_may_catch_the_end(tmp_path):
    caught = "\nexcept slackline.JobSuspended as suspended:\n    print('caught:', suspended)\n    sys.exit(3)\n"
    lines = script(1).splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("for epoch"))
    text = "\n".join(lines[:begin] + ["try:"] + ["    " + line for line in lines[begin:]]) + caught
    job = run_job(tmp_path, text, config=WITH_CHECKPOINTS)
    assert job.code == 75, job.output
    assert "caught: worker 1 was interrupted by SIGTERM" in job.log(0), job.log(0)


def test_the_signal_that_is_meant(tmp_path):
    """SIGINT is as ever: the worker leaves, and the others go on."""
    job = run_job(tmp_path, script(1, epochs=3).replace("SIGTERM", "SIGINT"), config=WITH_CHECKPOINTS)
    assert job.summary["cause"] != "SUSPENDED", job.summary
    assert signal.SIGINT.name in job.log(1)

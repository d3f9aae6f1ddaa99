"""Elastic sampling: which examples scripts train on, in jobs with real processes."""

import collections
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from support import BIN, CONFIG, POINTS, Run, Ended, run_alone, run_job

# Each worker writes down what it trains on, step by step. Before the step, so that one
# who is killed has not done a step that it did not write down.
COUNTED = POINTS + """
import time
job = slackline.join()
net = job.model(make())
opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=0.05))
numbered = TensorDataset(*train_set.tensors, torch.arange(1200))
with open(f"seen-{job.rank}-{os.getpid()}.txt", "w") as seen:
    for epoch in job.epochs(2):
        for x, y, number in job.loader(numbered, batch_size=BATCH, elastic=True):
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            print(*number.tolist(), file=seen, flush=True)
            opt.step()
            PACE
        job.evaluate(lambda net: right(net, test_set))
"""
COUNTED = COUNTED.replace("import sys", "import os, sys")


def script(batch: int = 25, pace: str = "") -> str:
    return COUNTED.replace("BATCH", str(batch)).replace("PACE", pace or "pass")


def seen(folder) -> list:
    """How often each example was trained on, and the last step of each process."""
    times: collections.Counter = collections.Counter()
    last = {}
    for path in folder.glob("seen-*.txt"):
        steps = [list(map(int, line.split())) for line in path.read_text().splitlines()]
        for step in steps:
            times.update(step)
        last[path.name] = steps
    return [times, last]


@pytest.mark.parametrize("mode", ["bsp", "ssp:3", "asp", "allreduce", "backup:1"])
def test_every_example_is_trained_on_once_in_an_epoch(tmp_path, mode):
    # 1200 examples are no whole number of batches with 25 for 2 workers in 7 steps.
    run = run_job(tmp_path, script(batch=35), "--mode", mode).succeeded()
    times, workers = seen(tmp_path)
    assert len(times) == 1200 and set(times.values()) == {2}
    assert len(workers) == 2 and all(workers.values())
    assert run.summary["examples_done"] == 2400
    assert "about 36 steps, 18 in an epoch" in run.log(0)


def test_alone_the_same_script_sees_the_same(tmp_path):
    run_alone(tmp_path, script(batch=35)).succeeded()
    times, workers = seen(tmp_path)
    assert len(times) == 1200 and set(times.values()) == {2}
    assert [len(steps) for steps in workers.values()] == [2 * 35]


def test_a_killed_worker_s_examples_go_to_others_and_a_new_one_helps(tmp_path):
    """Four workers: one is slow, one is killed, and one comes in its place."""
    (tmp_path / "job.textproto").write_text(
        CONFIG.replace("count: 2", "count: 4") + "limits { lease_ms: 2000 }"
    )
    pace = "time.sleep(0.1 if job.rank == 3 else 0.02)"
    (tmp_path / "script.py").write_text(script(batch=4, pace=pace))
    command = [str(BIN / "slackline"), "run", "job.textproto", "--out", "run", "--mode", "asp"]
    command += ["--restart-workers", "1", "--", sys.executable, "script.py"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    deadline = time.time() + 60
    victim = None
    while victim is None and time.time() < deadline:
        time.sleep(0.05)
        for path in tmp_path.glob("seen-1-*.txt"):
            if path.read_text().count("\n") >= 5:
                victim = path
    assert victim is not None, process.communicate()[0]
    os.kill(int(re.fullmatch(r"seen-1-(\d+).txt", victim.name).group(1)), signal.SIGKILL)
    output, _ = process.communicate(timeout=100)
    run = Run(Ended(process.returncode, output), tmp_path / "run").succeeded()
    assert run.summary["examples_done"] == 2400
    times, workers = seen(tmp_path)
    assert len(times) == 1200 and min(times.values()) == 2
    # What the dead one was at counts twice; no more than its last steps.
    again = {number for number, count in times.items() if count > 2}
    assert again <= {number for step in workers[victim.name][-3:] for number in step}
    steps = {name.split("-")[1]: len(of) for name, of in workers.items() if name != victim.name}
    assert len(workers) == 5 and steps["1"] > 0
    assert steps["2"] > steps["3"]


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ("train_set, 20, elastic=True, accumulate=2", "does not go with accumulate"),
        ("train_set, 20, elastic=True, num_workers=2", "does not go with num_workers"),
        ("train_set, 20, elastic=True, steps=3", "does not go with steps"),
        ("train_set, 20, elastic=True, sampler=range(1200)", "does not go with sampler"),
    ],
)
def test_what_does_not_go_with_it_is_named(tmp_path, arguments, reason):
    ended = run_alone(tmp_path, POINTS + f"slackline.join().loader({arguments})")
    assert ended.code != 0
    assert reason in ended.output


def test_collectives_are_for_the_time_before(tmp_path):
    early = script().replace("job = slackline.join()", "job = slackline.join(); job.barrier()")
    run_job(tmp_path, early, name="early").succeeded()
    late = script(pace="job.barrier()")
    run = run_job(tmp_path, late, name="late")
    assert run.code != 0 and "call it before the first batch" in run.output


def test_given_delays_name_other_steps(tmp_path):
    run = run_job(tmp_path, script(), "--delays", "constant:1")
    assert run.code != 0 and "take static sampling" in run.output


def test_one_worker_with_static_sampling_is_refused(tmp_path):
    wrong = script().replace("elastic=True", "elastic=job.rank == 0")
    run = run_job(tmp_path, wrong)
    assert run.code != 0
    assert "static sampling" in run.output and "must train on the same data" in run.output

"""Collectives of scripts, alone and in jobs with real processes."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from support import BIN, CONFIG, HANGS, POINTS, USUAL, held_port, run_alone, run_job

import slackline
from slackline._loop import collectives

THREE = CONFIG.replace("count: 2", "count: 3")

# At every place of a script where they may be called.
EVERYWHERE = POINTS + """
job = slackline.join()
r, n = job.rank, job.world_size
assert job.all_gather(r * 10) == [10 * k for k in range(n)]
words = job.broadcast({"words": ["a", "b"], "rank": r} if r == 0 else None)
assert words == {"words": ["a", "b"], "rank": 0}
net = job.model(make())
opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
job.barrier()
for epoch in job.epochs(2):
    assert job.all_reduce(r + 1, "max") == n
    for i, (x, y) in enumerate(job.loader(train_set, batch_size=100)):
        if i == 1:
            assert job.all_gather(f"step {job.steps}") == [f"step {job.steps}"] * n
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
        if i == 2:
            total = job.all_reduce(torch.full((2, 2), r + 0.5, dtype=torch.float64))
            assert total.dtype == torch.float64
            assert (total == n * (n - 1) / 2 + n / 2).all()
    seen = job.all_reduce(torch.tensor([r, epoch]))
    assert seen.dtype == torch.int64 and seen.tolist() == [n * (n - 1) // 2, n * epoch]
    job.barrier()
    job.barrier()
print("all is as it should be")
"""


@pytest.mark.parametrize("mode", ["bsp", "ssp:3", "asp", "allreduce"])
def test_everywhere_in_a_script_in_every_mode(tmp_path, mode):
    job = run_job(tmp_path, EVERYWHERE, "--mode", mode, config=THREE)
    job.succeeded()
    assert [("all is as it should be" in job.log(rank)) for rank in range(3)] == [True] * 3


def test_between_epochs_also_where_workers_skip_steps(tmp_path):
    # One that skips the end of an epoch is left out there.
    script = USUAL.replace("        opt.step()", "        opt.step(); time.sleep(0.02 * job.rank)").replace(
        "    job.evaluate", "    print('epoch', epoch, job.all_gather(job.rank))\n    job.evaluate"
    )
    job = run_job(tmp_path, "import time\n" + script, "--mode", "backup:1", config=THREE)
    job.succeeded()
    said = [dict(re.findall(r"epoch (\d) (\[.*\])", job.log(rank))) for rank in range(3)]
    assert said[0] == said[1] and set(said[0]) == {"0", "1"}, said
    assert said[0]["1"] == "[0, 1]" or said[2] == said[0], said
    if said[0]["1"] == "[0, 1]":  # The others are gone when this one learns of it.
        assert "the job has ended before the last step of this worker" in job.log(2)


def test_alone_they_return_at_once(tmp_path):
    assert "all is as it should be" in run_alone(tmp_path, EVERYWHERE).succeeded().output


def test_the_result_has_the_same_bits_on_all_workers(tmp_path):
    script = POINTS + """
job = slackline.join()
torch.manual_seed(100 + job.rank)
for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
    x = torch.randn(50).to(dtype)
    for op in ("sum", "mean", "min", "max", "product"):
        result = job.all_reduce(x, op)
        assert result.dtype == dtype and result.shape == x.shape
        assert all(torch.equal(other, result) for other in job.all_gather(result))
yes = torch.tensor([True, job.rank == 0])
assert job.all_reduce(yes, "min").tolist() == [True, False]
assert job.all_reduce(yes, "max").tolist() == [True, True]
assert job.all_gather(torch.zeros(job.rank, 2))[2].shape == (2, 2)
assert [t is None for t in job.all_gather(None if job.rank else torch.zeros(()))] == [False, True, True]
assert job.all_reduce(0.1 * (job.rank + 1), "mean") == (0.1 + 0.2 + 0.1 * 3) / 3
net = job.model(make())
opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
for epoch in job.epochs(1):
    for x, y in job.loader(train_set, batch_size=100):
        F.cross_entropy(net(x), y).backward()
        opt.step()
"""
    run_job(tmp_path, script, config=THREE).succeeded()


@pytest.mark.parametrize(
    "other, said",
    [
        ("job.barrier()", r"workers 0, 2: all_reduce\(float32\[3\], sum\); worker 1: barrier\(\)"),
        ("job.all_reduce(torch.zeros(4))", r"worker 1: all_reduce\(float32\[4\], sum\)"),
        ("job.all_reduce(torch.zeros(3).double())", r"worker 1: all_reduce\(float64\[3\], sum\)"),
        ("job.all_reduce(torch.zeros(3), 'max')", r"worker 1: all_reduce\(float32\[3\], max\)"),
    ],
)
def test_different_calls_are_named_by_rank_on_all(tmp_path, other, said):
    script = USUAL.replace(
        "    job.evaluate",
        f"    {other} if job.rank == 1 else job.all_reduce(torch.zeros(3))\n    job.evaluate",
    )
    job = run_job(tmp_path, script, config=THREE)
    assert job.code == 1
    assert re.search(said, job.summary["reason"]), job.summary["reason"]


def test_who_has_not_come_is_named(tmp_path):
    config = THREE + "limits { wait_timeout_ms: 2000 lease_ms: 500 }\n"
    script = USUAL.replace("    job.evaluate", "    if job.rank != 1: job.barrier()\n    job.evaluate")
    job = run_job(tmp_path, script, "--mode", "asp", config=config)
    assert job.code == 1, job.output
    assert "waits for worker 1 for 2000 ms" in job.output, job.output


def test_who_has_not_come_before_the_first_batch_is_named(tmp_path):
    config = CONFIG + "limits { start_timeout_ms: 3000 }\n"
    script = USUAL.replace(
        "net = job.model", "import time\ntime.sleep(30) if job.rank == 1 else job.barrier()\nnet = job.model"
    )
    job = run_job(tmp_path, script, config=config)
    assert job.code == 1
    assert "worker 1" in job.output + job.log(0), job.output


def test_who_fails_before_the_first_batch_tells_the_coordinator(tmp_path):
    for name, ends, said in (
        ("error", "open('/nowhere/data')", "FileNotFoundError"),
        ("exit", "sys.exit(3)", "its script ended before its first batch (sys.exit(3)"),
    ):
        script = USUAL.replace("net = job.model", f"import sys\nif job.rank == 1: {ends}\nnet = job.model")
        job = run_job(tmp_path, script, config=CONFIG, name=name)
        assert job.code == 1
        of_server = (tmp_path / name / "logs" / "server-0.log").read_text()
        assert "worker 1 (pid " in of_server and f"cannot join: {said}" in of_server, of_server


def test_a_worker_that_dies_is_left_out(tmp_path):
    script = USUAL.replace(
        "    job.evaluate",
        """    if job.rank == 1 and epoch == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    print('took part', [int(k) for k in job.all_gather(job.rank)], job.all_reduce(1.0, "mean"))
    job.evaluate""",
    )
    job = run_job(tmp_path, "import os, signal\n" + script, "--mode", "asp", config=THREE)
    job.succeeded()
    for rank in (0, 2):
        assert job.log(rank).count("took part [0, 2] 1.0") == 2, job.log(rank)
    script = script.replace("job.all_gather(job.rank)", "[0, job.broadcast('x', src=1) == 'x']")
    job = run_job(tmp_path, "import os, signal\n" + script, "--mode", "asp", config=THREE, name="b")
    assert job.code == 1
    assert "job.broadcast(): worker 1 is gone" in job.output + job.log(0) + job.log(2)


def test_a_worker_that_is_started_again_takes_part(tmp_path):
    # Started by hand: worker 1 is killed in the first epoch and started once more. The
    # others have a step left when it is back, however long that takes.
    script = POINTS + """
import os, pathlib, signal, time
job = slackline.join()
words = job.broadcast(f"of process {job.rank}")
net = job.model(make())
opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
for epoch in job.epochs(3):
    for x, y in job.loader(train_set, batch_size=20):
        F.cross_entropy(net(x), y).backward()
        opt.step()
        if 'dies' in sys.argv and job.steps == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        if 'again' in sys.argv:
            pathlib.Path('back').touch()
        while job.steps == 12 and not pathlib.Path('back').exists():
            time.sleep(0.05)
    print("took part", epoch, words, job.all_gather(job.rank), flush=True)
"""
    (tmp_path / "job.py").write_text(script)
    place = held_port()
    port = place.getsockname()[1]
    (tmp_path / "job.textproto").write_text(
        THREE + f'coordinator {{ host: "127.0.0.1" port: {port} }}\nsync {{ phase {{ ssp {{ staleness: 2 }} }} }}\n'
    )
    python = [sys.executable, "job.py"]
    server = [str(BIN / "slackline_server"), "--cluster", "job.textproto", "--index", "0"]
    processes, logs = [], []

    def start(command, rank="0"):
        path = tmp_path / f"log-{len(processes)}"
        logs.append(path)
        with open(path, "w") as log:
            env = {**os.environ, "SLACKLINE_CLUSTER": "job.textproto", "SLACKLINE_INDEX": rank}
            processes.append(
                subprocess.Popen(command, cwd=tmp_path, env=env, stdout=log, stderr=subprocess.STDOUT)
            )
        return processes[-1]

    try:
        start(server)
        first = [start(python, "0"), start(python, "2")]
        dies = start([*python, "dies"], "1")
        assert dies.wait(timeout=HANGS) == -signal.SIGKILL, logs[-1].read_text()
        again = start([*python, "again"], "1")
        ends = [process.wait(timeout=HANGS) for process in (*first, again)]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        place.close()
    said = [path.read_text() for path in logs]
    assert ends == [0, 0, 0], said
    took = [re.findall(r"took part (\d) of process 0 (\[.*\])", text) for text in said]
    assert took[1] == took[2] and len(took[1]) == 3, said
    assert took[1][-1] == ("2", "[0, 1, 2]"), took
    assert took[4] and set(took[4]) <= set(took[1]), took


def test_a_worker_that_is_given_up_in_a_step_goes_on_after_it(tmp_path):
    # It stands still for longer than its lease, with a step begun; the step is lost, the worker is not.
    script = POINTS + """
import os, signal, subprocess, time
job = slackline.join()
net = job.model(make())
opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
steps = 0
for epoch in job.epochs(2):
    for x, y in job.loader(train_set, batch_size=20):
        F.cross_entropy(net(x), y).backward()
        if job.steps == 5:
            if job.rank == 1 and steps == 5:
                subprocess.Popen(["sh", "-c", f"sleep 4; kill -CONT {os.getpid()}"])
                os.kill(os.getpid(), signal.SIGSTOP)
            print("in step 5:", job.all_gather(job.rank), flush=True)
        opt.step()
        steps += 1
        time.sleep(0.15)
print("steps", steps)
"""
    config = CONFIG + "limits { lease_ms: 1000 }\n"
    job = run_job(tmp_path, script, "--mode", "asp", config=config).succeeded()
    assert "in step 5: [0]" in job.log(0), job.log(0)
    assert "joining again" in job.log(1), job.log(1)
    assert re.search(r"steps \d+", job.log(1)), job.log(1)


def test_ctrl_c_ends_the_wait(tmp_path):
    (tmp_path / "run.py").write_text(
        USUAL.replace(
            "net = job.model",
            "if job.rank == 0: open('waits', 'w'); job.barrier()\n"
            "import time; time.sleep(60)\nnet = job.model",
        )
    )
    (tmp_path / "run.textproto").write_text(CONFIG)
    process = subprocess.Popen(
        [str(BIN / "slackline"), "run", "run.textproto", "--out", "run", "--", sys.executable, "run.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while not (tmp_path / "waits").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=HANGS)  # Else it would wait for worker 1.
    assert process.returncode != 0 and "interrupted" in output, output


def test_a_stop_rule_ends_the_script_as_usual(tmp_path):
    script = USUAL.replace("epochs(2)", "epochs(50)").replace(
        "    job.evaluate", "    print('sum', job.all_reduce(1))\n    job.evaluate"
    )
    config = CONFIG.replace("seed: 1", "seed: 1 stop { test_accuracy: 0.6 }")
    job = run_job(tmp_path, script, config=config)
    job.succeeded()
    assert job.summary["steps"] < 1500


def test_what_cannot_be_sent_is_refused_by_name(tmp_path):
    script = POINTS + """
job = slackline.join()
for call in (
    lambda: job.all_reduce("x"),
    lambda: job.all_reduce(torch.tensor([True])),
    lambda: job.all_reduce(torch.tensor([1]), "mean"),
    lambda: job.all_reduce(1, "median"),
    lambda: job.all_gather({1: 2}),
    lambda: job.all_gather([torch.zeros(1)]),
    lambda: job.all_gather(torch.zeros(1 << 20)),
    lambda: job.broadcast(1, src=1),
):
    try:
        call()
    except ValueError as error:
        print(error)
"""
    said = run_alone(tmp_path, script).succeeded().output
    for part in (
        "a str cannot be reduced",
        "the sum of torch.bool; give x.long()",
        "the mean of torch.int64; give x.double()",
        "op is 'median'; one of sum, mean, min, max, product",
        "a dict cannot be sent",
        "a Tensor cannot be sent",
        "4194",
        "src is 1; 0 to 0 is required",
    ):
        assert part in said, part


def test_damaged_bytes_are_refused():
    good = collectives.pack("c", "d", slackline.load and __import__("torch").zeros(3))
    assert len(collectives.unpack("c", "d", [(0, good)])) == 1
    for bad in (
        b"",
        b"{}",
        b"[]\n",
        b"{}\n",
        b'{"call": 1}\n',
        b'{"call": "d"}\n',
        b'{"call": "d", "dtype": "F32", "shape": [-1]}\n',
        b'{"call": "d", "dtype": "F32", "shape": [1000000000000]}\n',
        b'{"call": "d", "dtype": "F99", "shape": [1]}\n1234',
        b'{"call": "d", "dtype": "F32", "shape": [true]}\n1234',
        good[:-1],
        good + b"x",
    ):
        with pytest.raises(ValueError, match="what worker 3 has sent is damaged"):
            collectives.unpack("c", "d", [(3, bad)])

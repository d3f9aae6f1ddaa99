"""Where scripts stand still: by `slackline status --stacks`, and by itself."""

import json
import os
import signal
import subprocess
import time

from support import BIN, HANGS, POINTS, python

# Worker 0 waits for the others, each of which stands still at a line of its own.
SCRIPT = (
    """
import ctypes, faulthandler, os, signal, sys, threading, time
# Neither a handler of the script's own nor its use of faulthandler is in the way.
signal.signal(signal.SIGRTMAX - 3, lambda number, frame: None)
faulthandler.enable()
"""
    + POINTS
    + """
job = slackline.join()

class Images(torch.utils.data.Dataset):
    def __init__(self, stuck):
        self.stuck, self.calls = stuck, 0
    def __len__(self):
        return len(train_set)
    def __getitem__(self, i):
        self.calls += 1
        if self.stuck and self.calls > 40:
            time.sleep(1000)  # in the data set
        return train_set[i]

def pause():
    time.sleep(1000)  # in a function

def in_c():
    pipe = os.open("pipe", os.O_RDONLY)
    # A PyDLL keeps the GIL.
    ctypes.PyDLL(None).read(pipe, ctypes.create_string_buffer(1), 1)  # in C

net = job.model(make())
opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
images = Images(job.rank in (1, 2))
loader = job.loader(images, batch_size=20, num_workers=1 if job.rank == 1 else 0)
for epoch in job.epochs(2):
    for x, y in loader:
        F.cross_entropy(net(x), y).backward()
        opt.step()
        if job.steps == 2:
            pause() if job.rank == 3 else in_c() if job.rank == 4 else None
"""
)
CONFIG = """
job: "script"
server { host: "127.0.0.1" }
worker { host: "127.0.0.1" count: 5 }
train { seed: 1 }
sync { bsp {} }
limits { lease_ms: 3000 }
"""


def command(*arguments):
    return [str(BIN / "slackline"), *arguments]


def line_of(words):
    return 1 + next(i for i, line in enumerate(SCRIPT.splitlines()) if line.endswith(f"# {words}"))


def test_each_line_at_which_a_script_stands_still_is_named(tmp_path):
    (tmp_path / "stuck.py").write_text(SCRIPT)
    (tmp_path / "job.textproto").write_text(CONFIG)
    os.mkfifo(tmp_path / "pipe")
    in_data = f"stuck.py line {line_of('in the data set')}, in __getitem__"
    places = {
        "worker 1": f"a loader process: {in_data}",
        "worker 2": in_data,
        "worker 3": f"stuck.py line {line_of('in a function')}, in pause",
        "worker 4": f"stuck.py line {line_of('in C')}, in in_c",
    }
    log = tmp_path / "log"
    run = subprocess.Popen(
        command("run", "job.textproto", "--out=run", "--", *python(), "stuck.py"),
        cwd=tmp_path, stdout=open(log, "w"), stderr=subprocess.STDOUT,
    )  # fmt: skip
    writes = os.open(tmp_path / "pipe", os.O_RDWR)

    def status(*arguments):
        asked = subprocess.run(command("status", "run", "--json", *arguments), cwd=tmp_path, capture_output=True, text=True)
        return json.loads(asked.stdout) if asked.returncode in (0, 3) else {}

    def until(what):
        end = time.monotonic() + HANGS
        while not (value := what()):
            assert run.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        return value

    try:
        # By itself: in the sentences about who holds whom up, and whole beside them.
        def places_by_itself():
            now = status()
            said = {f"worker {stacks['of']['index']}": stacks for stacks in now.get("stacks", [])}
            in_sentences = all(any(f", in {place};" in each for each in now.get("held_up", [])) for place in places.values())
            return said if in_sentences and len(said) == len(places) else None

        said = until(places_by_itself)
        assert {name: stacks["stacks"]["where"] for name, stacks in said.items()} == places
        # On demand: of all, the one that waits and the server among them.
        asked = status("--stacks")
        assert asked["missing"] == [] and asked["gone"] == [], asked
        by_name = {stacks["of"]: stacks for stacks in asked["stacks"]}
        assert {name: stacks["where"] for name, stacks in by_name.items() if name in places} == places
        assert "stuck.py line" in by_name["worker 0"]["where"], by_name["worker 0"]
        assert by_name["server 0"]["where"] == "" and " shards 0 " in by_name["server 0"]["text"]
        assert " communication " in by_name["worker 4"]["text"], by_name["worker 4"]["text"]
        assert f'line {line_of("in C")}, in in_c' in by_name["worker 4"]["text"]
        # Of one, for people.
        one = subprocess.run(command("status", "run", "--stacks", "worker-3"), cwd=tmp_path, capture_output=True, text=True)
        assert one.returncode == 0 and f"), in {places['worker 3']}\n" in one.stdout, one
        assert "worker 1" not in one.stdout
        for name, why in (("worker-9", "there is no worker 9"), ("nobody", "names no member")):
            refused = subprocess.run(command("status", "run", "--stacks", name), cwd=tmp_path, capture_output=True, text=True)
            assert refused.returncode in (1, 2) and why in refused.stderr, refused
        # A process that is stopped does not answer, and the others' do.
        (worker_0,) = [worker["pid"] for worker in status()["worker"] if worker["rank"] == 0]
        os.kill(worker_0, signal.SIGSTOP)
        try:
            silent = status("--stacks", "worker-0", "worker-2")
        finally:
            os.kill(worker_0, signal.SIGCONT)
        assert [stacks["of"] for stacks in silent["stacks"]] == ["worker 2"], silent
        assert silent["missing"] == ["worker 0"] or "worker 0" in str(silent["gone"]), silent
        # Nobody has died of being asked, and who was given up meanwhile joins again.
        until(lambda: len(status().get("worker", [])) == 5)
        subprocess.run(command("stop", "run", "--now"), cwd=tmp_path, check=True, capture_output=True)
        os.write(writes, b"x")
        run.wait(timeout=HANGS)
    finally:
        os.close(writes)
        if run.poll() is None:
            run.send_signal(signal.SIGINT)
            run.wait()
    page = (tmp_path / "run" / "failure.txt").read_text()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert {f"worker {each['rank']}": each["where"] for each in summary["stood_still"]} == places
    assert any("stood still" in line and line.endswith(f": in {places[name]}") for line in page.splitlines() for name in places), page
    assert 'File "' in page and "stuck.py" in page
    assert any(place in (tmp_path / "run" / "logs" / "server-0.log").read_text() for place in places.values())

"""Elastic sampling: which examples scripts train on, in jobs with real processes."""

import collections
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from support import BIN, CONFIG, HANGS, POINTS, Run, Ended, run_alone, run_job

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
    (tmp_path / "job.textproto").write_text(CONFIG.replace("count: 2", "count: 4"))
    # All leave something to do for the one that comes.
    pace = """time.sleep(0.1 if job.rank == 3 else 0.02)
            while job.steps > 30 and not has_come():
                time.sleep(0.05)"""
    text = script(batch=4, pace=pace).replace("import time", """
import glob, time
def has_come():
    return sum(open(name).read() != "" for name in glob.glob("seen-1-*.txt")) == 2
""", 1)
    (tmp_path / "script.py").write_text(text)
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
    output, _ = process.communicate(timeout=HANGS)
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


def test_a_worker_that_comes_back_counts_the_epoch_of_its_examples(tmp_path):
    (tmp_path / "job.textproto").write_text(CONFIG.replace("count: 2", "count: 4"))
    # Who comes again begins when another one is in a later epoch.
    text = script(batch=4, pace="time.sleep(0.08 if job.rank == 3 else 0.02)").replace(
        "epochs(2)", "epochs(12)"
    )
    text = text.replace("print(*number", "print(epoch, job._loop.place.examples[0], *number")
    text = text.replace("    for epoch in", """
    import glob
    def others_are_further():
        return any(line.startswith("1 ") for name in glob.glob("seen-2-*.txt") for line in open(name))
    while len(glob.glob(f"seen-{job.rank}-*.txt")) > 1 and not others_are_further():
        time.sleep(0.05)
    for epoch in""", 1)
    (tmp_path / "script.py").write_text(text)
    command = [str(BIN / "slackline"), "run", "job.textproto", "--out", "run", "--mode", "asp"]
    command += ["--restart-workers", "1", "--", sys.executable, "script.py"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    deadline = time.time() + 60
    first = None
    while first is None and time.time() < deadline:
        time.sleep(0.05)
        for path in tmp_path.glob("seen-1-*.txt"):
            if path.read_text().count("\n") >= 5:
                first = path
    assert first is not None, process.communicate()[0]
    os.kill(int(re.fullmatch(r"seen-1-(\d+).txt", first.name).group(1)), signal.SIGKILL)
    output, _ = process.communicate(timeout=HANGS)
    assert process.returncode == 0, output
    (second,) = (path for path in tmp_path.glob("seen-1-*.txt") if path != first)
    epochs = [tuple(map(int, line.split()[:2])) for line in second.read_text().splitlines()]
    assert epochs[0][0] > 0, epochs
    log = (tmp_path / "run" / "logs" / "worker-1.log").read_text()
    wrong = [(counted, of_examples) for counted, of_examples in epochs if counted < of_examples]
    # Only if an epoch has ended just when it came, which is said then.
    assert not wrong or "counts as epoch" in log, (wrong, log)


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ("train_set, 20, elastic=True, drop_last=True", "does not go with drop_last"),
        ("train_set, 20, elastic=True, steps=3", "does not go with steps: an epoch has all"),
        ("train_set, elastic=True, batch_sampler=[[1], [2]]", "batch_sampler: give sampler"),
        ("Stream(), 20, elastic=True", "does not go with an IterableDataset"),
        (
            "train_set, 20, elastic=True, sampler=torch.utils.data.RandomSampler(train_set, "
            "generator=torch.Generator())",
            "a generator of its own goes on from draw to draw, so leave it out",
        ),
        ("train_set, 20, elastic=True, prefetch_factor=3", "prefetch_factor option could only be"),
        ("train_set, 20, elastic=True, persistent_workers=True", "option needs num_workers > 0"),
    ],
)
def test_what_does_not_go_with_it_is_named(tmp_path, arguments, reason):
    stream = "class Stream(torch.utils.data.IterableDataset): pass\n"
    ended = run_alone(tmp_path, POINTS + stream + f"slackline.join().loader({arguments})")
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


# ---- Processes of a DataLoader

# A data set that is no TensorDataset, and writes down who loads it.
LOADED = """
import contextlib, os, signal, time
from torch.utils.data import Dataset, get_worker_info

class Numbered(Dataset):
    def __len__(self):
        return 1200
    def __getitem__(self, i):
        info = get_worker_info()
        assert info is None or info.dataset is self
        FAULT
        x, y = train_set[i]
        return {"x": x, "y": y, "number": i, "name": f"example {i}"}

def write_down(worker):
    with open(f"loads-{job.rank}-{os.getpid()}.txt", "w") as file:
        print(worker, file=file)

job = slackline.join()
net = job.model(make())
opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=0.05))
options = dict(OPTIONS)
if options.get("num_workers"):
    options["worker_init_fn"] = write_down
loader = job.loader(Numbered(), 35, elastic=True, **options)
with open(f"seen-{job.rank}-{os.getpid()}.txt", "w") as seen:
    for epoch in job.epochs(2):
        for batch in loader:
            opt.zero_grad()
            F.cross_entropy(net(batch["x"]), batch["y"]).backward()
            numbers = batch["number"].tolist()
            assert list(batch["name"]) == [f"example {i}" for i in numbers]
            print(*numbers, file=seen, flush=True)
            opt.step()
            PACE
        job.evaluate(lambda net: right(net, test_set))
"""


def loaded(options: str, fault: str = "pass", pace: str = "pass") -> str:
    script = LOADED.replace("OPTIONS", options).replace("FAULT", fault).replace("PACE", pace)
    return POINTS + script


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def loading(folder) -> list:
    """The processes that have loaded, dead or alive."""
    return [int(path.stem.rsplit("-", 1)[1]) for path in folder.glob("loads-*.txt")]


def assert_none_is_left(folder, at_least: int) -> None:
    pids = loading(folder)
    assert len(pids) >= at_least
    # One whose worker was killed sees it within PyTorch's 5 s, if it is nobody's else to end it.
    deadline = time.time() + 30
    while any(map(is_alive, pids)) and time.time() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if is_alive(pid)]


def wait_for(found, process) -> None:
    deadline = time.time() + 60
    while not found() and time.time() < deadline and process.poll() is None:
        time.sleep(0.05)
    assert found(), process.communicate()[0]


def steps_of(folder) -> list:
    (path,) = folder.glob("seen-*.txt")
    return [line.split() for line in path.read_text().splitlines()]


def test_loader_processes_load_what_one_process_does(tmp_path):
    """The same batches in the same order, whatever loads them."""
    batches = []
    for number, options in enumerate(
        [
            "",
            "num_workers=1",
            "num_workers=3, prefetch_factor=4, timeout=30",
            "num_workers=2, persistent_workers=True, collate_fn=lambda all: torch.utils.data.default_collate(all)",
            "collate_fn=lambda all: torch.utils.data.default_collate(all), pin_memory=True",
            "num_workers=2, multiprocessing_context='fork', generator=torch.Generator()",
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        run_alone(folder, loaded(options)).succeeded()
        batches.append(steps_of(folder))
        processes = {0: 0, 1: 2, 2: 6, 3: 2, 4: 0, 5: 4}[number]  # Of two epochs, but one if they stay.
        assert len(loading(folder)) == processes
        if processes:
            assert_none_is_left(folder, processes)
    assert all(of == batches[0] for of in batches)
    assert len(batches[0]) == 70 and len(batches[0][-1]) == 1200 % 35


def test_loader_processes_that_are_spawned(tmp_path):
    script = """
import torch
import slackline
from torch.utils.data import Dataset

class Squares(Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, i):
        return torch.tensor([float(i)]), i

if __name__ == "__main__":
    job = slackline.join()
    net = job.model(torch.nn.Linear(1, 1))
    opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=1e-6))
    loader = job.loader(Squares(), 30, elastic=True, num_workers=2, multiprocessing_context="spawn")
    numbers = []
    for x, number in loader:
        opt.zero_grad()
        net(x).sum().backward()
        opt.step()
        numbers += number.tolist()
    assert sorted(numbers) == list(range(100))
"""
    run_alone(tmp_path, script).succeeded()


@pytest.mark.parametrize("mode", ["bsp", "asp", "allreduce"])
def test_loader_processes_in_a_job(tmp_path, mode):
    run = run_job(tmp_path, loaded("num_workers=2"), "--mode", mode).succeeded()
    times, workers = seen(tmp_path)
    assert len(times) == 1200 and set(times.values()) == {2} and len(workers) == 2
    assert run.summary["examples_done"] == 2400
    assert_none_is_left(tmp_path, 4)


@pytest.mark.parametrize(
    "fault, said",
    [
        ("assert i != 700, 'no such picture'", r"AssertionError: .*no such picture"),
        ("i == 700 and os.kill(os.getpid(), signal.SIGKILL)", r"DataLoader worker .* (exited|is killed)"),
        ("i == 700 and time.sleep(100)", r"DataLoader timed out after 2 seconds"),
    ],
)
def test_a_loader_process_that_fails_ends_the_job(tmp_path, fault, said):
    # Only in a loader process: the script itself goes on until it hears of it.
    # A timeout where one is waited for: on a busy machine the others might run into it, too.
    options = "num_workers=2" + (", timeout=2" if "sleep" in fault else "")
    run = run_job(tmp_path, loaded(options, f"if info: {fault}"))
    assert run.code == 1 and re.search(r"worker \d has failed: ", run.output), run.output
    logs = run.log(0) + run.log(1)
    assert re.search(said, logs), logs
    if "assert" in fault:
        assert re.search(r"Caught AssertionError in DataLoader worker process [01]", logs)
    assert_none_is_left(tmp_path, 2)


def test_a_killed_worker_leaves_no_loader_process_and_others_do_its_part(tmp_path):
    (tmp_path / "job.textproto").write_text(CONFIG)
    # The one that is to be killed waits for that.
    pace = """time.sleep(0.02)
            while job.rank == 1 and open(seen.name).read().count("\\n") >= 5:
                time.sleep(0.05)"""
    (tmp_path / "script.py").write_text(loaded("num_workers=2", pace=pace))
    command = [str(BIN / "slackline"), "run", "job.textproto", "--out", "run", "--mode", "asp"]
    command += ["--", sys.executable, "script.py"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )

    def victim():
        paths = [p for p in tmp_path.glob("seen-1-*.txt") if p.read_text().count("\n") >= 5]
        return int(paths[0].stem.rsplit("-", 1)[1]) if paths else 0

    wait_for(victim, process)
    os.kill(victim(), signal.SIGKILL)
    output, _ = process.communicate(timeout=HANGS)
    run = Run(Ended(process.returncode, output), tmp_path / "run").succeeded()
    assert run.summary["examples_done"] == 2400 and run.summary["examples_given_again"] > 0
    times, _ = seen(tmp_path)
    assert len(times) == 1200 and min(times.values()) == 2
    assert_none_is_left(tmp_path, 4)


@pytest.mark.parametrize("where", ["alone", "job"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_an_interrupted_script(tmp_path, where, number):
    (tmp_path / "job.textproto").write_text(CONFIG)
    endless = loaded("num_workers=2", pace="time.sleep(0.05)").replace("epochs(2)", "epochs(100000)")
    (tmp_path / "script.py").write_text(endless)
    command = [sys.executable, "script.py"]
    if where == "job":
        command = [str(BIN / "slackline"), "run", "job.textproto", "--out", "run", "--", *command]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        # As in a terminal: whoever starts these tests in the background has them ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_for(lambda: any(path.read_text() for path in tmp_path.glob("seen-*.txt")), process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=HANGS)
    assert process.returncode != 0, output
    assert_none_is_left(tmp_path, 2)


@pytest.mark.parametrize(
    "ends", ["if job.steps == 3: raise SystemExit(0)", "if job.steps == 3: break", "assert job.steps < 3"]
)
def test_nothing_is_left_of_a_script_that_leaves_the_loop(tmp_path, ends):
    assert run_alone(tmp_path, loaded("num_workers=2", pace=ends)).code == 1
    assert_none_is_left(tmp_path, 2)


# ---- Gradients that add up, and orders of one's own

ADDED = POINTS + """
import os
job = slackline.join()
net = job.model(make())
opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=0.05))
numbered = TensorDataset(*train_set.tensors, torch.arange(1200))
loader = job.loader(numbered, SIZE, elastic=True, accumulate=4)
sizes = []
with open(f"seen-{job.rank}-{os.getpid()}.txt", "w") as seen:
    for epoch in job.epochs(EPOCHS):
        opt.zero_grad()
        for i, (x, y, number) in enumerate(loader):
            (F.cross_entropy(net(x), y) / 4).backward()
            print(*number.tolist(), file=seen, flush=True)
            sizes.append(len(x))
            if i % 4 == 3:
                opt.step()
        assert i % 4 == 3
        job.evaluate(lambda net: right(net, test_set))
print("sizes", set(sizes))
"""


def added(size: int, epochs: float = 2) -> str:
    return ADDED.replace("SIZE", str(size)).replace("EPOCHS", str(epochs))


@pytest.mark.parametrize("mode", ["bsp", "asp", "allreduce"])
def test_a_step_has_always_as_many_batches(tmp_path, mode):
    # 1200 examples: 21 steps of 4 batches with 14, and one of 24 examples.
    run = run_job(tmp_path, added(14), "--mode", mode).succeeded()
    times, workers = seen(tmp_path)
    assert len(times) == 1200 and set(times.values()) == {2}
    assert run.summary["examples_done"] == 2400
    sizes = [len(batch) for batches in workers.values() for batch in batches]
    assert sorted(set(sizes)) == [6, 14] and sizes.count(6) == 2 * 4


def test_accumulated_gradients_are_those_of_the_whole_step(tmp_path):
    whole = added(80).replace("accumulate=4", "accumulate=1").replace("/ 4)", "/ 1)")
    whole = whole.replace("i % 4 == 3", "True")
    figures = []
    for number, script in enumerate((added(20), whole)):
        # Without BatchNorm, which sees each batch by itself.
        script = script.replace("torch.nn.BatchNorm1d(16)", "torch.nn.Identity()")
        ended = run_alone(tmp_path, script + "print(*net[0].weight.flatten().tolist())").succeeded()
        figures.append([float(value) for value in ended.output.strip().splitlines()[-1].split()])
    assert figures[0] == pytest.approx(figures[1], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    "size, epochs, said",
    [
        (19, 1, "the last step of an epoch has 3 of its 1200 examples, .* accumulate=7 batches"),
        (17, 0.5, "the last step of the job has 5 of its 600 examples"),
        (19, 0.5, None),
        (17, 1, None),
    ],
)
def test_a_step_with_too_few_examples_is_refused(tmp_path, size, epochs, said):
    script = added(size, epochs).replace("accumulate=4", "accumulate=7").replace("4 == 3", "7 == 6")
    # BatchNorm wants two examples in each batch.
    script = script.replace("torch.nn.BatchNorm1d(16)", "torch.nn.Identity()")
    ended = run_alone(tmp_path, script)
    assert ended.code == (1 if said else 0) and re.search(said or "sizes", ended.output), ended.output


@pytest.mark.parametrize(
    "change, said",
    [
        (("i % 4 == 3:", "i % 4 == 2:"), "optimizer.step.. was called before the last of the accumulate=4"),
    ],
)
def test_a_step_at_the_wrong_batch_is_said(tmp_path, change, said):
    ended = run_alone(tmp_path, added(14).replace(*change))
    assert ended.code == 1 and re.search(said, ended.output), ended.output


# All examples of the last two classes, and some of them twice.
DRAWN = COUNTED.replace("elastic=True", "elastic=True, sampler=Drawn()").replace(
    "\njob = ",
    """
class Drawn:
    def __len__(self):
        return 900
    def __iter__(self):
        numbers = torch.arange(1200).reshape(400, 3)[:, 1:].flatten()
        drawn = torch.cat([numbers, numbers[:100]])[torch.randperm(900)].tolist()
        epochs.append(drawn)
        return iter(drawn)

epochs = []
job = """,
    1,
)


def test_an_order_of_one_s_own(tmp_path):
    script = DRAWN.replace("BATCH", "35").replace("PACE", "pass")
    run = run_job(tmp_path, script + "print('drawn', epochs)").succeeded()
    times, workers = seen(tmp_path)
    # Each drawn number in each epoch as often as it was drawn.
    twice = {number for number, count in times.items() if count == 4}
    assert len(times) == 800 and len(twice) == 100 and set(times.values()) == {2, 4}
    assert not any(number % 3 == 0 for number in times) and len(workers) == 2
    assert run.summary["examples_done"] == 1800
    drawn = [re.search(r"^drawn (.*)$", run.log(rank), re.MULTILINE).group(1) for rank in (0, 1)]
    assert drawn[0] == drawn[1]


def test_alone_an_order_of_one_s_own_is_followed(tmp_path):
    script = DRAWN.replace("BATCH", "35").replace("PACE", "pass")
    ended = run_alone(tmp_path, script + "print('drawn', sum(epochs, []))").succeeded()
    drawn = re.search(r"^drawn \[(.*)\]$", ended.output, re.MULTILINE).group(1)
    _, workers = seen(tmp_path)
    (steps,) = workers.values()
    assert [number for step in steps for number in step] == [int(number) for number in drawn.split(",")]


@pytest.mark.parametrize("length, elastic, required", [(901, "True", 901), (935, "False", 910)])
def test_a_sampler_that_draws_another_number_is_refused(tmp_path, length, elastic, required):
    script = DRAWN.replace("return 900", f"return {length}").replace("BATCH", "35").replace("PACE", "pass")
    ended = run_alone(tmp_path, script.replace("elastic=True", f"elastic={elastic}"))
    said = f"the sampler has drawn 900 examples for epoch 0, and {required} are required"
    assert ended.code == 1 and said in ended.output, ended.output


def test_all_loaders_of_a_job_have_equally_many_examples(tmp_path):
    fewer = "numbered if epoch == 0 else TensorDataset(*numbered[:1190])"
    ended = run_alone(tmp_path, script().replace("loader(numbered", f"loader({fewer}"))
    assert ended.code == 1 and "has 1190 examples in an epoch, the one before had 1200" in ended.output

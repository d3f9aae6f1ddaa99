"""What a script has beside its parameters goes into checkpoints, and comes back."""

import collections
import functools
import random
import types

import pytest
import torch
from support import POINTS, run_alone, run_job

import slackline
from slackline._loop import kept as script_state

CONFIG = """
job: "script"
server { host: "127.0.0.1" }
worker { host: "127.0.0.1" count: 2 }
train { seed: 1 }
limits { lease_ms: 1000 }
checkpoint { every_steps: 10 }
"""

# Every step depends on a rate, on masks and noise, on running means and on the script's own
# average. A worker that is told so ends like a lost machine when a checkpoint is there.
SCRIPT = (
    POINTS
    + """
import glob, os, random, signal, time
import numpy

per_epoch, epochs, dataset, dies = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:] == ["dies"]

class Average:
    def __init__(self):
        self.mean, self.count = 0.0, 0
    def add(self, value):
        self.count += 1
        self.mean += (value - self.mean) / self.count
    def state_dict(self):
        return {"mean": self.mean, "count": self.count}
    def load_state_dict(self, state):
        self.mean, self.count = state["mean"], state["count"]

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return len(train_set)
    def __getitem__(self, row):
        return tuple(column[row] for column in train_set.tensors)

job = slackline.join()
net = make()
net.insert(3, torch.nn.Dropout(0.3))
job.model(net)
opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
inner = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 7)
outer = torch.optim.lr_scheduler.StepLR(opt, max(1, 20 // per_epoch), 0.5)
average = Average()
job.keep(inner=inner, outer=outer)
job.keep(average=average)
data = Rows() if dataset == "rows" else train_set
for epoch in job.epochs(epochs):
    for x, y in job.loader(data, batch_size=20, steps=per_epoch):
        if dies:
            time.sleep(0.05 if job.steps < 45 else 1)  # Not before there is a checkpoint.
            if glob.glob(job.out + "/checkpoints/step-*/manifest.json"):
                os.kill(os.getpid(), signal.SIGKILL)
        noise = torch.from_numpy(numpy.random.rand(20, 4)).float() * random.random()
        loss = F.cross_entropy(net(x + 0.1 * noise), y) * (1 + average.mean)
        loss.backward()
        opt.step()
        average.add(float(loss.detach()))
        inner.step()
    outer.step()
torch.save(
    {"buffers": dict(net.named_buffers()), "average": average.state_dict(), "inner": inner.state_dict(),
     "outer": outer.state_dict(), "lr": opt.param_groups[0]["lr"], "torch": torch.rand(3).tolist(),
     "numpy": numpy.random.rand(3).tolist(), "random": random.random()},
    f"{job.out}/rest-{job.rank}.pt")
"""
)


# Slow enough for checkpoints to be taken.
SLOW = SCRIPT.replace("        loss.backward()\n", "        loss.backward()\n        time.sleep(0.1)\n")


def rest(run, rank):
    read = torch.load(run.folder / f"rest-{rank}.pt")
    return {**read, "buffers": {name: tensor.tolist() for name, tensor in read["buffers"].items()}}


# In the middle of an epoch; where one epoch ends and the next begins; with a DataLoader, which
# draws random numbers itself; by all-reduce.
@pytest.mark.parametrize(
    "per_epoch, epochs, dataset, mode",
    [(30, 2, "tensors", "bsp"), (1, 60, "tensors", "bsp"), (30, 2, "rows", "allreduce")],
)
def test_a_killed_job_goes_on_as_if_nothing_had_happened(tmp_path, per_epoch, epochs, dataset, mode):
    def train(name, *flags, more=[]):
        args = [str(per_epoch), str(epochs), dataset, *more]
        return run_job(
            tmp_path, SCRIPT, "--mode", mode, *flags, args=args, config=CONFIG, name=name
        )

    whole = train("whole").succeeded()
    killed = train("killed", more=["dies"])
    assert killed.code != 0
    (checkpoint,) = (killed.folder / "checkpoints").glob("step-*")
    assert sorted(file.name for file in checkpoint.glob("*.state")) == [
        "worker-0.state",
        "worker-1.state",
    ]
    resumed = train("resumed", "--resume", str(killed.folder)).succeeded()
    assert 0 < resumed.summary["resumed_from"]["clock"] < 60
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]
    for rank in range(2):
        assert rest(resumed, rank) == rest(whole, rank)
        assert "bytes of its own" in resumed.log(rank)


def test_names_that_do_not_fit_are_said_and_a_new_object_begins_anew(tmp_path):
    first = run_job(tmp_path, SLOW, args=["30", "1", "tensors"], config=CONFIG, name="first")
    first.succeeded()
    other = SCRIPT.replace("job.keep(average=average)", "job.keep(other=average)")
    resumed = run_job(
        tmp_path,
        other,
        "--resume",
        str(first.folder),
        args=["30", "2", "tensors"],
        config=CONFIG,
        name="resumed",
    ).succeeded()
    log = resumed.log(1)
    assert "worker 1: the checkpoint has the state of 'average'" in log
    assert "job.keep(average=...)" in log
    assert log.count("no state of 'other', which begins anew") == 1


def test_state_that_fails_gives_up_the_checkpoint_and_not_the_training(tmp_path):
    script = SLOW.replace(
        'return {"mean": self.mean, "count": self.count}',
        'return {"mean": self.mean, "count": self.count, **({"bad": object()} if self.count else {})}',
    )
    run = run_job(tmp_path, script, args=["30", "1", "tensors"], config=CONFIG).succeeded()
    assert run.summary["checkpoints_failed"] >= 1
    assert not list((run.folder / "checkpoints").glob("step-*"))
    log = (run.folder / "logs" / "server-0.log").read_text()
    assert "could not keep its state: ValueError: the script's state['objects']['average']" in log
    assert "['bad'] is a object, which cannot be kept" in log


def test_a_state_that_is_damaged_is_named(tmp_path):
    first = run_job(tmp_path, SLOW, args=["30", "1", "tensors"], config=CONFIG, name="first")
    first.succeeded()
    for state in (first.folder / "checkpoints").glob("step-*/worker-1.state"):
        data = bytearray(state.read_bytes())
        data[len(data) // 2] ^= 1
        state.write_bytes(data)
    resumed = run_job(
        tmp_path, SCRIPT, "--resume", str(first.folder), args=["30", "2", "tensors"],
        config=CONFIG, name="resumed",
    )
    assert resumed.code != 0
    assert "worker-1.state: bytes [0, " in resumed.output


def test_what_cannot_be_kept_is_refused_by_name(tmp_path):
    script = """
        import slackline, torch
        job = slackline.join()
        class Half:
            def state_dict(self):
                return {}
        class Odd:
            def state_dict(self):
                return {"deep": [1, {2: object()}]}
            def load_state_dict(self, state):
                pass
        for objects in ({"half": Half()}, {"odd": Odd()}):
            try:
                job.keep(**objects)
            except ValueError as error:
                print(error)
        net = torch.nn.Linear(1, 1)
        job.keep(net=net)
        try:
            job.keep(net=net)
        except ValueError as error:
            print(error)
    """
    output = run_alone(tmp_path, script).succeeded().output
    assert "job.keep(): 'half' is a Half without load_state_dict()" in output
    assert "job.keep(): the state of 'odd'['deep'][1][2] is a object, which cannot be kept" in output
    assert "job.keep(): 'net' was given before" in output


def test_rates_and_momenta_come_back_and_of_another_rate_the_ratio():
    def made(rule, **now):
        optimizer = types.SimpleNamespace(param_groups=[{**rule.options, **now}], rules=[rule])
        optimizer.options_now = functools.partial(slackline.Optimizer.options_now, optimizer)
        optimizer.set_options = functools.partial(slackline.Optimizer.set_options, optimizer)
        return optimizer

    def brought(before, after):
        script_state._restore_rates([{**before.options_now()[0], "first": before.rules[0].lr}], after, print)
        return after.param_groups[0]

    sgd = made(slackline.SGD(0.5, momentum=0.9), lr=0.25, momentum=0.8)
    group = brought(sgd, made(slackline.SGD(0.5, momentum=0.9)))
    assert (group["lr"], group["momentum"]) == (0.25, 0.8)
    assert brought(sgd, made(slackline.SGD(2.0, momentum=0.9)))["lr"] == 1.0
    adam = made(slackline.Adam(0.5), betas=(0.8, 0.999))
    assert brought(adam, made(slackline.Adam(0.5)))["betas"] == (0.8, 0.999)
    # Of a checkpoint that was taken before there were momenta in it.
    old = made(slackline.SGD(0.5, momentum=0.9))
    script_state._restore_rates([[0.25, 0.5]], old, print)
    assert (old.param_groups[0]["lr"], old.param_groups[0]["momentum"]) == (0.25, 0.9)


def test_schedulers_of_pytorch_come_back():
    def make(kind):
        opt = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
        lr = torch.optim.lr_scheduler
        return opt, {
            "multi": lambda: lr.MultiStepLR(opt, [2, 5], 0.1),
            "cycle": lambda: lr.OneCycleLR(opt, 1.0, total_steps=20, cycle_momentum=False),
            "lambda": lambda: lr.LambdaLR(opt, lambda epoch: 0.9**epoch),
            "plateau": lambda: lr.ReduceLROnPlateau(opt),
            "sequence": lambda: lr.SequentialLR(
                opt, [lr.ConstantLR(opt, 0.1), lr.ExponentialLR(opt, 0.9)], [3]
            ),
        }[kind]()

    for kind in ("multi", "cycle", "lambda", "plateau", "sequence"):
        opt, scheduler = make(kind)
        step = (lambda s: s.step(1.0)) if kind == "plateau" else (lambda s: s.step())
        for _ in range(4):
            step(scheduler)
        state = script_state.unpack(script_state.pack(scheduler.state_dict()))
        rate = opt.param_groups[0]["lr"]
        other_opt, other = make(kind)
        other.load_state_dict(state)
        other_opt.param_groups[0]["lr"] = rate
        for _ in range(4):
            step(scheduler)
            step(other)
            assert opt.param_groups[0]["lr"] == other_opt.param_groups[0]["lr"], kind


def test_random_numbers_of_every_generator_of_numpy_come_back():
    numpy = pytest.importorskip("numpy", minversion="1.24")
    module = torch.nn.Linear(1, 1)
    optimizer = types.SimpleNamespace(
        options_now=lambda: [], rules=[], param_groups=[], set_options=lambda options: None
    )
    warnings = []
    make = numpy.random
    before = numpy.random.get_bit_generator()
    try:
        for kind in (make.MT19937, make.PCG64, make.PCG64DXSM, make.Philox, make.SFC64):
            numpy.random.set_bit_generator(kind(1))
            own = {
                "numpy": make.Generator(kind(2)),
                "bits": kind(3),
                "old": make.RandomState(kind(4)),
                "torch": torch.Generator(),
            }
            kept = script_state.Kept()
            kept.add(own)
            numpy.random.standard_normal()

            def draw(own=own):
                return [
                    numpy.random.standard_normal(3).tolist(),
                    own["numpy"].random(3).tolist(),
                    own["bits"].random_raw(3).tolist(),
                    own["old"].rand(3).tolist(),
                    torch.rand(3, generator=own["torch"]).tolist(),
                ]

            state = kept.state(module, optimizer, warnings.append)
            drawn = draw()
            assert draw() != drawn
            kept.restore(state, module, optimizer, warnings.append)
            assert draw() == drawn, kind
            assert warnings == []
        # Another one than in the checkpoint: said, and everything else goes on.
        numpy.random.set_bit_generator(make.PCG64(1))
        kept.restore(state, module, optimizer, warnings.append)
        assert len(warnings) == 1 and "SFC64" in warnings[0] and "PCG64" in warnings[0]
        # A generator whose state is no data: said once, and the checkpoint is taken.
        warnings.clear()

        class Odd(make.PCG64):
            @property
            def state(self):
                return {"bit_generator": "Odd", "state": object()}

        numpy.random.set_bit_generator(Odd(1))
        for _ in range(2):
            assert kept.state(module, optimizer, warnings.append)
        assert len(warnings) == 1 and "Odd" in warnings[0]
    finally:
        numpy.random.set_bit_generator(before)


def test_random_numbers_of_checkpoints_of_earlier_versions_come_back():
    numpy = pytest.importorskip("numpy")
    name, keys, *rest = numpy.random.get_state(legacy=True)
    states = script_state._random_states(print)
    states["numpy"] = [name, keys.tolist(), *rest]
    drawn = numpy.random.standard_normal(3).tolist()
    script_state._set_random_states(states, print)
    assert numpy.random.standard_normal(3).tolist() == drawn


def test_values_of_all_kinds_come_back():
    value = {
        "numbers": [1, -(2**70), 0.1, float("inf"), True, None, "ä"],
        (1, "pair"): (1.5, [2]),
        "tensors": [torch.tensor([1.5, 2.5], dtype=torch.bfloat16), torch.zeros(0), torch.tensor(True)],
        "bytes": b"\x00\xff",
        "counter": collections.Counter([3, 3, 4]),
        "deque": collections.deque([1, 2]),
        "set": {1, 2},
        "ordered": collections.OrderedDict(b=1, a=2),
    }
    back = script_state.unpack(script_state.pack(value))
    tensors = zip(back.pop("tensors"), value.pop("tensors"))
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in tensors)
    assert back == value
    assert isinstance(back["counter"], collections.Counter)
    assert list(back["ordered"]) == ["b", "a"]
    with pytest.raises(ValueError, match="the state in the checkpoint cannot be read"):
        script_state.unpack(b"no file of torch.save")

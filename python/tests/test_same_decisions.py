"""What is decided for a script is the same alone as in a job of one worker.

A row is a script of the form below with some of its parts changed. It notes each task that it is given, of
which the steps, their examples and the evaluations come, and what it sees itself. All of it has to be the same
alone, over servers and by all-reduce.
"""

import re

import forked
import pytest

MODES = ("alone", "bsp", "ssp:1", "allreduce")

FORM = '''
import os
import torch
from torch.nn import functional as F
import slackline
from slackline import _core
torch.set_num_threads(1)

if "JOB_CONFIG" in os.environ:
    job = slackline.join(os.environ["JOB_CONFIG"], int(os.environ["JOB_INDEX"]), mode=os.environ["JOB_MODE"])
else:
    job = slackline.join()

def said(*what):
    print("said:", *what, flush=True)

# Tasks of the compiled part are what it has decided.
def next_task(next=job._world.next):
    task = next()
    if isinstance(task, _core.Step):
        said("step", task.clock, task.examples)
    elif isinstance(task, _core.Evaluation):
        said("evaluation", task.clock)
    else:
        said("end" if task is None else "conclusion")
    return task
job._world.next = next_task

# As by a signal while the compiled part finishes the step.
interrupted = {interrupted}
def finish_step(*given, finish=job._world.finish_step):
    done = finish(*given)
    if job.steps in interrupted:
        interrupted.remove(job.steps)
        raise KeyboardInterrupt
    return done
job._world.finish_step = finish_step

data = torch.utils.data.TensorDataset(torch.arange(10), torch.randn(10, 3, generator=torch.Generator().manual_seed(1)))
net = job.model(torch.nn.Linear(3, 2))
opt = job.optimizer({optimizer})
evaluated = 0
def evaluate(net):
    global evaluated
    evaluated += 1
    return 0.5
try:
    for epoch in job.epochs({epochs}):
        for number, x in job.loader(data, {loader}):
            said("batch", epoch, job.steps, number.tolist())
            opt.zero_grad()
            ({loss}).backward()
            {step}
        said("after", epoch, job.steps)
        {then}
        job.evaluate(evaluate)
    said("over", job.steps, evaluated)
except Exception as error:
    said(type(error).__name__, "all finite:", all(bool(p.isfinite().all()) for p in net.parameters()), error)
    job.save("model.safetensors")  # What there is.
'''
DEFAULTS = dict(
    optimizer="torch.optim.Adam(net.parameters(), lr=0.1)",
    epochs="2",
    loader="batch_size=4",
    loss="net(x).square().mean()",
    step="opt.step()",
    interrupted=[],
    then="pass",
)


def row(name, **parts):
    return pytest.param({**DEFAULTS, **parts}, id=name)


def run(folder, mode, parts):
    """How the script ended, and what it has said."""
    script = FORM.format(**parts)
    ended = forked.alone(folder, script) if mode == "alone" else forked.job(folder, script, mode, workers=1)[0]
    return ended, [line[6:] for line in ended.output.splitlines() if line.startswith("said: ")]


@pytest.mark.parametrize(
    "parts",
    [
        row("whole epochs"),
        row("an epoch and a half", epochs="1.5"),
        row("less than an epoch", epochs="0.5", loader="batch_size=2"),
        row("less than a step", epochs="0.01"),
        row("the last epoch is short", epochs="2.4", loader="batch_size=2"),
        row("an epoch of one step", epochs="3", loader="batch_size=10"),
        row("shorter epochs", epochs="2", loader="batch_size=2, steps=3"),
        row("in order", loader="batch_size=4, shuffle=False"),
        row("a sampler", loader="batch_size=3, sampler=torch.utils.data.RandomSampler(data)"),
        row("a batch_sampler", loader="batch_sampler=[[0, 1, 2], [3, 4], [9, 8, 7]]"),
        row(
            "accumulated batches",
            loader="batch_size=2, accumulate=2, shuffle=False",
            step="opt.step() if number[0] % 4 == 2 else None",
        ),
        row(
            "several steps for a batch",
            optimizer=DEFAULTS["optimizer"] + ", steps_per_batch=2",
            step="opt.step(); opt.zero_grad(); net(x).square().mean().backward(); opt.step()",
        ),
        row("steps that are left out", optimizer=DEFAULTS["optimizer"] + ", steps_per_batch=2"),
        # The last step of the first epoch is interrupted, and so are the first and the last of the second.
        row(
            "steps that are interrupted when they are done",
            interrupted=[1, 2, 3],
            step="""
            try:
                opt.step()
            except KeyboardInterrupt:
                pass""",
        ),
        row("parameters in another order", then="weight = net.weight; del net.weight; net.weight = weight"),
        row("elastic", loader="batch_size=4, elastic=True"),
        row("elastic, an epoch and a half", epochs="1.5", loader="batch_size=4, elastic=True"),
        row("elastic, the last epoch is short", epochs="2.2", loader="batch_size=3, elastic=True"),
        row("elastic, less than a batch", epochs="0.1", loader="batch_size=4, elastic=True"),
        row("elastic, an epoch of one step", epochs="3", loader="batch_size=16, elastic=True"),
        row("elastic, a sampler", loader="batch_size=4, elastic=True, sampler=torch.utils.data.RandomSampler(data)"),
    ],
)
def test_tasks_and_batches_are_the_same(tmp_path, parts):
    said = {}
    for mode in MODES:
        (tmp_path / mode).mkdir()
        ended, said[mode] = run(tmp_path / mode, mode, parts)
        assert ended.code == 0 and said[mode][-1].startswith("over"), ended.output
    for mode in MODES[1:]:
        assert said[mode] == said["alone"], mode


@pytest.mark.parametrize("mode", ["alone", "bsp", "allreduce"])
@pytest.mark.parametrize("step", [2, 3])
def test_a_gradient_that_is_no_number_ends_the_training_and_is_not_in_the_model(tmp_path, mode, step):
    loss = f"net(x).square().mean() * (float('nan') if job.steps == {step} else 1)"
    ended, said = run(tmp_path, mode, {**DEFAULTS, "loss": loss})
    assert said[-1].startswith("JobError all finite: True") and "a NaN or an infinity" in said[-1], ended.output
    # In a job the end comes a little later.
    assert len([line for line in said if line.startswith("step")]) == step + 1 or mode == "bsp"
    assert not any(line.startswith("after 1") for line in said) or mode != "alone"


@pytest.mark.parametrize("mode", ["alone", "bsp", "allreduce"])
@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize(
    "change, refused",
    [
        (
            "from torch.nn.utils import prune; prune.l1_unstructured(net, 'weight', 0.5)",
            "parameter 'weight' is not in the model any more, or has another name; change the model",
        ),
        (
            "net.weight.data = torch.zeros(5, 3)",
            r"parameter 'weight' (has the shape \[5, 3\] now, and had \[2, 3\]|lies in other memory than) at job.model\(\)",
        ),
        (
            "torch.nn.Linear.__deepcopy__ = lambda net, copies: torch.nn.Linear(3, 2, bias=False)",
            "parameter 'bias' is not in the copy of the model that is evaluated, or has another shape there; let copy",
        ),
        (
            "torch.nn.Linear.__deepcopy__ = lambda net, copies: torch.nn.Linear(3, 4)",
            "parameter 'weight' is not in the copy of the model that is evaluated, or has another shape there; let copy",
        ),
    ],
    ids=["pruned", "resized", "a copy without a parameter", "a copy of another shape"],
)
def test_a_model_that_has_become_another_is_not_evaluated(tmp_path, mode, epoch, change, refused):
    """After an epoch: beside the training, or at its end."""
    ended, said = run(tmp_path, mode, {**DEFAULTS, "then": f"if epoch == {epoch}: {change}"})
    assert re.match(f"RuntimeError .*{refused}", said[-1]), ended.output
    assert ended.code in (0, 1), ended.output

"""The state of an optimizer leaves a job and comes into one, as in PyTorch."""

import pathlib
import textwrap

import pytest
import torch
from support import POINTS, run_alone, run_job

import slackline
from slackline._optim import state as optimizer_state

CONFIG = """
job: "script"
server { host: "127.0.0.1" count: 2 }
worker { host: "127.0.0.1" count: 2 }
"""
# All batches are equal, so that a job of 4 steps and another of 5 are one of 9.
SCRIPT = (
    POINTS
    + """
begin, end, steps = sys.argv[1:]
job = slackline.join()
net = make()
del net[1]  # Its means would be each worker's own.
if begin:
    net.load_state_dict(slackline.load(begin + ".safetensors"))
job.model(net)
opt = job.optimizer(net, slackline.RULE)
if begin and job.rank == 0:
    opt.load_state_dict(torch.load(begin + ".pt"))
same = TensorDataset(*[column[:20].repeat(60, *[1] * (column.dim() - 1)) for column in train_set.tensors])
for epoch in job.epochs(1):
    for x, y in job.loader(same, batch_size=20, shuffle=False, steps=int(steps)):
        F.cross_entropy(net(x), y).backward()
        opt.step()
job.save(end + ".safetensors")
if job.rank == 0:
    torch.save(opt.state_dict(), end + ".pt")
"""
)


def train(folder, rule, begin, end, steps, mode):
    script = SCRIPT.replace("RULE", rule)
    args = [begin and str(folder / begin), str(folder / end), str(steps)]
    run_job(folder, script, "--mode", mode, args=args, config=CONFIG, name=f"job_{end}").succeeded()
    return slackline.load(folder / f"{end}.safetensors"), torch.load(folder / f"{end}.pt")


@pytest.mark.parametrize(
    "rule, modes",
    [
        ("Adam(lr=0.01, weight_decay=0.1)", ("bsp", "bsp", "bsp")),
        ("SGD(lr=0.1, momentum=0.9, nesterov=True)", ("allreduce", "allreduce", "bsp")),
        ("Adagrad(lr=0.1)", ("bsp", "allreduce", "bsp")),
    ],
)
def test_two_jobs_after_each_other_are_one(tmp_path, rule, modes):
    train(tmp_path, rule, "", "first", 4, modes[0])
    model, state = train(tmp_path, rule, "first", "second", 5, modes[1])
    whole_model, whole_state = train(tmp_path, rule, "", "whole", 9, modes[2])
    for name, tensor in whole_model.items():
        assert torch.equal(model[name], tensor), name
    assert state["state"].keys() == whole_state["state"].keys() == set(range(4))
    for number, named in whole_state["state"].items():
        for name, value in named.items():
            assert torch.equal(state["state"][number][name], value), (number, name)


def test_what_is_saved_at_the_end_of_an_epoch_is_of_one_moment(tmp_path):
    script = SCRIPT.replace("RULE", "Adam(lr=0.01)")
    script = script.replace("job.epochs(1)", "job.epochs(2)")
    script = script.replace(
        "        opt.step()\n",
        "        opt.step()\n"
        "    if epoch == 0 and job.rank == 0:\n"
        "        torch.save(opt.state_dict(), end + '_half.pt')\n"
        "        slackline.save(net.state_dict(), end + '_half.safetensors')\n",
    )
    args = ["", str(tmp_path / "whole"), "4"]
    run_job(tmp_path, script, "--mode", "bsp", args=args, config=CONFIG, name="job").succeeded()
    model, state = train(tmp_path, "Adam(lr=0.01)", "whole_half", "second", 4, "bsp")
    for name, tensor in slackline.load(tmp_path / "whole.safetensors").items():
        assert torch.equal(model[name], tensor), name
    assert state["state"][0]["step"] == 8


def test_the_script_of_the_page_stops_and_goes_on(tmp_path):
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs/manual/python.md").read_text()
    section = page.split("## Stopping and going on")[1]
    script = section.split("```python\n")[1].split("```")[0]
    for steps in (10, 20):
        run_job(tmp_path, script, config=CONFIG, name=f"job_{steps}").succeeded()
        saved = torch.load(tmp_path / "last.pt")
        assert {float(named["step"]) for named in saved["opt"]["state"].values()} == {steps}
    run_alone(tmp_path, script).succeeded()  # With one worker an epoch has 10.
    assert torch.load(tmp_path / "last.pt")["opt"]["state"][0]["step"] == 40


def test_the_model_of_the_last_epoch_s_end_has_its_last_step(tmp_path):
    script = SCRIPT.replace("RULE", "SGD(lr=0.1)").replace(
        'job.save(end + ".safetensors")',
        "    if job.rank == 0:\n"
        "        opt.state_dict()\n"
        '        slackline.save(net.state_dict(), end + "_early.safetensors")\n'
        'job.save(end + ".safetensors")',
    )
    args = ["", str(tmp_path / "last"), "3"]
    run_job(tmp_path, script, "--mode", "bsp", args=args, config=CONFIG, name="job").succeeded()
    early = slackline.load(tmp_path / "last_early.safetensors")
    for name, tensor in slackline.load(tmp_path / "last.safetensors").items():
        assert torch.equal(early[name], tensor), name


def test_an_optimizer_without_a_past_may_begin_any_job(tmp_path):
    script = SCRIPT.replace(
        "job.optimizer(net, slackline.RULE)",
        "job.optimizer(torch.optim.Adagrad(net.parameters(), lr=0.1))",
    )
    args = ["", str(tmp_path / "end"), "2"]
    run_job(
        tmp_path, script, "--delays", "uniform:2", args=args, config=CONFIG, name="job"
    ).succeeded()


def test_ssp_tells_a_state_and_goes_on_from_it(tmp_path):
    train(tmp_path, "AdamW(lr=0.01)", "", "first", 6, "ssp:2")
    model, state = train(tmp_path, "AdamW(lr=0.01)", "first", "second", 6, "ssp:2")
    # Two workers' gradients are an update each; the first step is all-reduce's.
    assert {float(named["step"]) for named in state["state"].values()} == {2.0 * (1 + 2 * 5)}
    assert all(bool(tensor.isfinite().all()) for tensor in model.values())


PLAIN = """
import sys
import torch
import slackline

torch.manual_seed(0)
job = slackline.join()
net = torch.nn.Linear(3, 2)
plain = torch.nn.Linear(3, 2)
plain.load_state_dict(net.state_dict())
x, y = torch.randn(8, 3), torch.randn(8, 2)
make = lambda of: getattr(torch.optim, sys.argv[1])(of.parameters(), lr=0.1, **eval(sys.argv[2]))

def step(net, opt):
    opt.zero_grad()
    torch.nn.functional.mse_loss(net(x), y).backward()
    opt.step()

def compare(opt, of):
    mine, theirs = opt.state_dict(), of.state_dict()
    assert mine["state"].keys() == theirs["state"].keys(), (mine, theirs)
    for number, named in theirs["state"].items():
        for name, value in named.items():
            assert torch.allclose(torch.as_tensor(mine["state"][number][name]), torch.as_tensor(value).float()), name
    for mine_of, theirs_of in zip(mine["param_groups"], theirs["param_groups"]):
        assert mine_of == theirs_of

before = make(plain)
for _ in range(3):
    step(plain, before)
net.load_state_dict(plain.state_dict())
of_net = make(net)
of_net.load_state_dict(before.state_dict())
job.model(net)
opt = job.optimizer(of_net)
compare(opt, before)
for epoch in job.epochs(1):
    for _ in job.loader(list(range(4))):
        step(net, opt)
        step(plain, before)
        compare(opt, before)
compare(opt, before)
after = make(net)
after.load_state_dict(opt.state_dict())
step(net, after)
step(plain, before)
assert torch.allclose(net.weight, plain.weight)
"""


@pytest.mark.parametrize(
    "rule, options",
    [
        ("SGD", dict(momentum=0.9)),
        ("Adam", dict(betas=(0.8, 0.99))),
        ("AdamW", {}),
        ("Adagrad", {}),
        ("SGD", dict(momentum=0.9, dampening=0.5)),
        ("Adam", dict(amsgrad=True)),
        ("RMSprop", dict(momentum=0.5)),
        ("Adadelta", {}),
        ("Adamax", {}),
        ("RAdam", dict(betas=(0.9, 0.9))),
    ],
)
def test_it_is_that_of_the_optimizer_of_pytorch(tmp_path, rule, options):
    run_alone(tmp_path, PLAIN, rule, repr(options)).succeeded()


@pytest.mark.parametrize(
    "change, error",
    [
        ("state['state'][0]['exp_avg'] = torch.zeros(2)", "the state of '0.weight' has a exp_avg of shape [2]"),
        ("del state['state'][1]['step']", "the state of '0.bias' has no step"),
        ("state['state'][1]['step'] = 0.5", "the state of '0.bias' is of step 0.5"),
        ("del state['state'][1]['exp_avg_sq']", "the state of '0.bias' has no exp_avg_sq"),
        ("state['state'][0]['max_exp_avg_sq'] = 1", "'0.weight' has max_exp_avg_sq; Adam here has exp_avg, exp_avg_sq"),
        ("state['param_groups'][0]['amsgrad'] = True", "amsgrad was False at the start of the job and is True now"),
        ("state['param_groups'][0]['betas'] = (0.5, 0.5)", "betas was (0.9, 0.999)"),
        ("state['state'][0]['step'] = float('inf')", "the state of '0.weight' is of step inf"),
        ("del state['param_groups'][0]['betas']", "a group has no betas, which Adam has"),
        ("del state['state']", "state and param_groups are required"),
        ("state['param_groups'] *= 2", "2 parameter groups; 1 are required"),
    ],
)
def test_what_does_not_fit_is_named_and_changes_nothing(tmp_path, change, error):
    script = f"""
    import torch, slackline
    job = slackline.join()
    net = job.model(torch.nn.Sequential(torch.nn.Linear(3, 2)))
    opt = job.optimizer(net, slackline.Adam(lr=0.1))
    of = torch.optim.Adam(net.parameters(), lr=0.3)
    net(torch.ones(1, 3)).sum().backward()
    of.step()
    state = of.state_dict()
    {change}
    try:
        opt.load_state_dict(state)
        raise SystemExit("it was loaded")
    except (ValueError, RuntimeError) as error:
        print(error)
    assert opt.param_groups[0]["lr"] == 0.1 and opt.state_dict()["state"] == {{}}
    """
    # The script changed its parameters before the first batch, as it may.
    ended = run_alone(tmp_path, textwrap.dedent(script)).succeeded()
    assert error in ended.output


def test_it_is_loaded_before_the_first_batch_and_told_to_the_main_thread(tmp_path):
    script = """
    import threading, torch, slackline
    job = slackline.join()
    net = job.model(torch.nn.Linear(3, 2))
    opt = job.optimizer(net, slackline.Adam(lr=0.1))
    state = opt.state_dict()
    def refused(call):
        try:
            call()
        except RuntimeError as error:
            print(error)
    for epoch in job.epochs(1):
        for _ in job.loader(list(range(4))):
            net(torch.ones(1, 3)).sum().backward()
            opt.step()
            refused(lambda: opt.load_state_dict(state))
            other = threading.Thread(target=refused, args=(opt.state_dict,))
            other.start()
            other.join()
    """
    ended = run_alone(tmp_path, script).succeeded()
    assert ended.output.count("the job has begun; load before the first batch") == 4
    assert ended.output.count("it is called by the script's main thread") == 4


def test_workers_that_did_not_conclude_the_job_say_so(tmp_path):
    script = POINTS + """
job = slackline.join()
net = job.model(make())
opt = job.optimizer(net, slackline.Adam(lr=0.01))
for epoch in job.epochs(1):
    for x, y in job.loader(train_set, batch_size=20, steps=3):
        F.cross_entropy(net(x), y).backward()
        assert len(opt.state_dict()["state"]) == (6 if job.steps else 0)  # On all of them.
        opt.step()
try:
    opt.state_dict()
    print("has it")
except RuntimeError as error:
    print(error)
"""
    run = run_job(tmp_path, script, config=CONFIG).succeeded()
    logs = [run.log(rank) for rank in range(2)]
    assert sum("has it" in log for log in logs) == 1
    assert sum("is not the one that concluded it" in log for log in logs) == 1


def test_at_the_end_the_parameters_come_without_slots(tmp_path):
    pulled = []
    for rule in ("SGD(lr=0.01)", "Adam(lr=0.01)"):
        args = ["", str(tmp_path / "end"), "3"]
        script = SCRIPT.replace("RULE", rule)
        run = run_job(tmp_path, script, args=args, config=CONFIG, name=rule[:3]).succeeded()
        pulled.append(run.summary["bytes_pulled"])
    values = sum(4 * tensor.numel() for tensor in slackline.load(tmp_path / "end.safetensors").values())
    # The worker that concludes the job has Adam's two slots of each, for state_dict().
    assert pulled[1] - pulled[0] < 3 * values


def test_alone_it_is_not_copied_until_it_is_asked_for(tmp_path):
    script = """
    import torch, slackline
    from slackline._loop import worlds
    asked = []
    optimizer_state = worlds.Alone.optimizer_state
    worlds.Alone.optimizer_state = lambda self: asked.append(1) or optimizer_state(self)
    job = slackline.join()
    net = job.model(torch.nn.Linear(3, 2).bfloat16())
    opt = job.optimizer(net, slackline.Adam(lr=0.1))
    for epoch in job.epochs(1):
        for _ in job.loader(list(range(4))):
            net(torch.ones(1, 3).bfloat16()).sum().backward()
            opt.step()
    assert not asked
    with torch.no_grad():
        net.weight.fill_(7)
    assert opt.state_dict()["state"][0]["step"] == 4 and asked
    assert (net.weight == 7).all()  # After the end it is the script's.
    """
    run_alone(tmp_path, script).succeeded()


def test_with_given_delays_it_is_refused(tmp_path):
    script = SCRIPT.replace("RULE", "Adam(lr=0.01)")
    args = ["", str(tmp_path / "first"), "2"]
    run_job(tmp_path, script, args=args, config=CONFIG, name="job_first").succeeded()
    args = [str(tmp_path / "first"), str(tmp_path / "second"), "2"]
    run = run_job(
        tmp_path, script, "--delays", "uniform:2", args=args, config=CONFIG, name="job_second"
    )
    assert run.code != 0
    assert "a job with given delays begins with a new optimizer" in run.output


def test_a_state_and_its_dict_are_inverse():
    rule = slackline.Adam(lr=0.1)
    state = optimizer_state.TableState(3, [torch.ones(2), torch.full((2,), 2.0)])
    named = optimizer_state.to_torch(rule, state)
    back = optimizer_state.from_torch(rule, "name", torch.Size([2]), named)
    assert back.updates == 3
    assert all(torch.equal(a, b) for a, b in zip(back.slots, state.slots))

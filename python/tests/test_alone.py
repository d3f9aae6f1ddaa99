"""A script by itself: a world of one."""

import sys

import pytest
from support import LOOP, POINTS, USUAL, run, run_alone, run_job


def test_trains_and_the_file_is_the_plain_module_s(tmp_path):
    script = USUAL + """
job.save("model.safetensors")
plain = make()
plain.load_state_dict(slackline.load("model.safetensors"))
plain.eval()
net.eval()
assert torch.equal(plain(test_set.tensors[0]), net(test_set.tensors[0]))
assert right(plain, test_set) > 0.8, right(plain, test_set)
"""
    ended = run_alone(tmp_path, script).succeeded()
    assert "120 steps, 60 in an epoch; batch 20 x 1 workers = 20" in ended.output
    assert "epoch 2, step 120: loss" in ended.output


@pytest.mark.parametrize(
    "make",
    [
        "SGD(net.parameters(), lr=0.1)",
        "SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)",
        "SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)",
        "Adagrad(net.parameters(), lr=0.05)",
        "Adam(net.parameters(), lr=0.01, weight_decay=0.01)",
        "AdamW([{'params': [net[0].weight], 'weight_decay': 0.2}, "
        "{'params': [p for p in net.parameters() if p is not net[0].weight], 'lr': 0.003}])",
    ],
)
def test_computes_what_torch_optim_computes(tmp_path, make):
    # Without BatchNorm, behind which a bias has no gradient but rounding errors.
    script = POINTS + f"""
def trained(join):
    torch.manual_seed(5)
    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    if join:
        job = slackline.join(seed=False)
        job.model(net)
        opt = job.optimizer(torch.optim.{make})
        batches = job.loader(train_set, batch_size=20, shuffle=False)
    else:
        opt = torch.optim.{make}
        batches = torch.utils.data.DataLoader(train_set, batch_size=20)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 20, 0.5)
    for x, y in batches:
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
    return net
for mine, theirs in zip(trained(True).parameters(), trained(False).parameters()):
    assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-7), (mine - theirs).abs().max()
"""
    run_alone(tmp_path, script).succeeded()


def test_gradients_add_up_over_accumulated_batches(tmp_path):
    script = POINTS + """
def trained(size, accumulate):
    torch.manual_seed(5)
    net = torch.nn.Linear(4, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    return net, opt
net, plain = trained(20, 1)
for x, y in torch.utils.data.DataLoader(train_set, batch_size=40):
    plain.zero_grad()
    F.cross_entropy(net(x), y).backward()
    plain.step()
job = slackline.join(seed=False)
mine, opt = trained(20, 2)
job.model(mine)
opt = job.optimizer(opt)
for i, (x, y) in enumerate(job.loader(train_set, batch_size=20, accumulate=2, shuffle=False)):
    (F.cross_entropy(mine(x), y) / 2).backward()
    if i % 2:
        opt.step()
for a, b in zip(net.parameters(), mine.parameters()):
    assert torch.allclose(a, b, rtol=1e-5, atol=1e-7)
"""
    run_alone(tmp_path, script).succeeded()


def test_shared_frozen_unused_and_half_precision_parameters(tmp_path):
    script = POINTS + """
class Odd(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.same = torch.nn.Linear(4, 4)
        self.same.weight = self.first.weight
        self.frozen = torch.nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.unused = torch.nn.Linear(4, 4)
        self.last = torch.nn.Linear(4, 3).bfloat16()
    def forward(self, x):
        return self.last(self.frozen(self.same(self.first(x))).bfloat16()).float()
job = slackline.join()
net = job.model(Odd())
before = {name: value.clone() for name, value in net.state_dict().items()}
opt = job.optimizer(net, slackline.SGD(lr=0.1))
""" + LOOP + """
job.save("model.safetensors")
after = slackline.load("model.safetensors")
same = {name for name in before if torch.equal(before[name], after[name])}
assert same == {"frozen.weight", "frozen.bias", "unused.weight", "unused.bias"}, same
assert torch.equal(after["first.weight"], after["same.weight"])
assert after["last.weight"].dtype == torch.bfloat16
plain = Odd()
plain.load_state_dict(after)
"""
    run_alone(tmp_path, script).succeeded()


@pytest.mark.parametrize(
    "change, said",
    [
        (("opt.step()", "pass"), r"step 60: an epoch has ended without any optimizer.step\(\)"),
        (("loss.backward()\n        opt.step()", "pass"), "backward.. has not reached any parameter"),
        (("opt.step()", "opt.step(); opt.step()"), "no step is open"),
        (("batch_size=20", "batch_size=2000"), "1200 training examples do not make one step"),
        (("job.epochs(2)", "job.epochs(-1)"), "-1 epochs; a number above 0"),
        (("right(net, test_set)", "97.5"), "the accuracy is 97.5, it has to be in"),
        (("SGD(net.parameters()", "SGD([net[0].weight]"), "0.bias, 1.weight, 1.bias and 2 more would not be"),
        (("SGD(net.parameters()", "SGD(make().parameters()"), "is not one of job.model"),
        (("net = job.model(make())", "net = make()"), "call job.model.. first"),
        (("opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))",
          "opt = torch.optim.SGD(net.parameters(), lr=0.1); torch.optim.lr_scheduler.StepLR(opt, 9); "
          "opt = job.optimizer(opt)"), "make it for the optimizer that job.optimizer.. returns"),
        (("lr=0.1", "lr=0.0"), "lr is 0.0 in parameter group 0; a rate above 0 is required at the start"),
        (("momentum=0.9)", "momentum=0.9), scale_lr='cubic'"), "scale_lr is 'cubic'; 'linear', 'sqrt' or None"),
        (("batch_size=20", "batch_size=20, global_batch_size=20"), "give batch_size or global_batch_size"),
        (("batch_size=20", "global_batch_size=21, accumulate=4"),
         "21, which 1 workers with accumulate=4 cannot share equally; a multiple of 4 is required, .* 20"),
        (("    job.evaluate", "    sys.exit(0)\n    job.evaluate"),
         "its script ended after 60 of 120 steps"),
    ],
)
def test_what_is_wrong_with_a_script_is_said(tmp_path, change, said):
    import re

    assert change[0] in USUAL
    ended = run_alone(tmp_path, USUAL.replace(*change))
    assert ended.code == 1 and re.search(said, ended.output), ended.output


def test_a_grad_scaler_that_is_off_changes_nothing_and_another_leaves_steps_out(tmp_path):
    scaled = USUAL.replace("loss.backward()", "scaler.scale(loss).backward()").replace(
        "opt.step()", "scaler.unscale_(opt); scaler.step(opt); scaler.update()"
    )
    script = "import warnings; warnings.simplefilter('ignore')\n" + scaled.replace(
        "\nfor epoch", "\nscaler = torch.cuda.amp.GradScaler(enabled=False)\nfor epoch", 1
    )
    plain = run_alone(tmp_path, USUAL).succeeded().output
    assert run_alone(tmp_path, script).succeeded().output == plain
    # Without CUDA PyTorch 1.13 turns each scaler off, and has no check of gradients on a CPU.
    script = USUAL.replace("opt.step()", "scaler.step(opt); scaler.update()").replace("loss.backward()", "scaler.scale(loss).backward()")
    script = script.replace(
        "\nfor epoch",
        """
def check(grads, found, inverse):
    for grad in grads:
        grad.mul_(inverse)
        found.fill_(max(float(found), float(not torch.isfinite(grad).all())))
def follow(scale, tracker, found, growth, backoff, interval):
    if float(found):
        scale.mul_(backoff)
torch._amp_foreach_non_finite_check_and_unscale_, torch._amp_update_scale_ = check, follow
class Same:
    def __init__(self, value): self.value, self._per_device_tensors = value, {"cpu": value}
    def get(self, device): return self.value
torch.cuda.amp.grad_scaler._MultiDeviceReplicator = Same
torch.cuda.is_available = lambda: True
scaler = torch.cuda.amp.GradScaler(init_scale=2.0**14, backoff_factor=0.5)
scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))
scaler.scale = lambda loss: loss * scaler._scale * (float('inf') if job.steps == 0 else 1)
for epoch""",
        1,
    )
    ended = run_alone(tmp_path, script + "\nprint('scale', float(scaler._scale))").succeeded()
    assert "scale 8192.0" in ended.output  # The first step was skipped, and no other.


def test_a_mode_without_effect_is_said(tmp_path):
    script = USUAL.replace("slackline.join()", "slackline.join(mode='ssp:3')")
    assert "alone, mode='ssp:3' has no effect" in run_alone(tmp_path, script).succeeded().output


def test_options_that_may_not_change_in_a_step_are_named(tmp_path):
    script = USUAL.replace("opt.step()", "opt.step(); opt.param_groups[0]['weight_decay'] = 0.5")
    ended = run_alone(tmp_path, script)
    assert "weight_decay was 0" in ended.output and ended.code == 1


def test_the_model_can_be_copied_and_pickled(tmp_path):
    script = USUAL.replace(
        "    job.evaluate", "    import copy, io; copy.deepcopy(net); torch.save(net, io.BytesIO())\n    job.evaluate"
    )
    run_alone(tmp_path, script).succeeded()


def test_data_sets_that_are_streams_and_own_orders(tmp_path):
    script = POINTS + """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter((train_set[i] for i in range(90)))
job = slackline.join()
net = job.model(make())
opt = job.optimizer(net, slackline.SGD(lr=0.1))
seen = 0
for epoch in job.epochs(2):
    for x, y in job.loader(Stream(), batch_size=10, steps=12):
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
        seen += len(x)
assert seen == 240
for steps, said in ((None, "say with steps="), (0, "0 is too few")):
    try:
        job.loader(Stream(), batch_size=10, steps=steps)
        assert False, steps
    except ValueError as error:
        assert said in str(error), error
sampler = torch.utils.data.WeightedRandomSampler([1.0] * 600 + [0.0] * 600, 1200)
batches = list(job.loader(train_set, batch_size=20, sampler=sampler)._deal(0))
assert len(batches) == 60 and max(max(b) for b in batches) < 600
assert batches == list(job.loader(train_set, batch_size=20, sampler=sampler)._deal(0))
other = torch.utils.data.RandomSampler(train_set)
job.loader(train_set, batch_size=20, sampler=other, steps=2)
assert len(job.loader(train_set, batch_size=20, sampler=other)._deal(0)) == 60
"""
    run_alone(tmp_path, script).succeeded()


def test_a_data_set_in_order_may_be_longer_than_the_memory(tmp_path):
    script = """
    import torch, slackline
    class Numbers(torch.utils.data.Dataset):
        def __len__(self): return 10**15
        def __getitem__(self, i): return torch.tensor([float(i)])
    job = slackline.join()
    net = job.model(torch.nn.Linear(1, 1))
    opt = job.optimizer(net, slackline.SGD(lr=0.1))
    seen = []
    for epoch in job.epochs(2):
        for x in job.loader(Numbers(), batch_size=2, shuffle=False, steps=2):
            seen += x[:, 0].int().tolist()
            net(x).mean().backward()
            opt.step()
    assert seen == 2 * [0, 1, 2, 3], seen
    """
    run_alone(tmp_path, script).succeeded()


def test_data_loader_processes(tmp_path):
    script = USUAL.replace("batch_size=20", "batch_size=20, num_workers=2").replace("epochs(2)", "epochs(1)")
    run_alone(tmp_path, script).succeeded()


def test_a_config_without_an_index_and_the_reverse_are_refused(tmp_path):
    ended = run_alone(tmp_path, "import slackline\nslackline.join('c.textproto')")
    assert "which worker of c.textproto is this? Give index" in ended.output
    ended = run_alone(tmp_path, "import slackline\nslackline.join(index=1)")
    assert "index 1 of which config?" in ended.output
    ended = run_alone(tmp_path, "import slackline\nslackline.join('c.textproto', '1.5')")
    assert "index is '1.5'; a number from 0, 'auto', or 'auto+N' is required" in ended.output
    ended = run_alone(tmp_path, "import slackline\nslackline.join('c.textproto', 0)")
    assert "c.textproto" in ended.output and ended.code == 1
    auto = "import os, slackline\nos.environ.update({})\nslackline.join('c.textproto', 'auto')"
    ended = run_alone(tmp_path, auto.format("SLURM_PROCID='1', PMI_RANK='2'"))
    assert "index: auto: SLURM_PROCID=1 and PMI_RANK=2 disagree" in ended.output and ended.code == 1
    ended = run_alone(tmp_path, auto.format("SLURM_PROCID='1'"))
    assert "this is worker 1, by SLURM_PROCID=1" in ended.output and ended.code == 1


def test_a_loop_that_takes_just_as_many_batches_as_there_are(tmp_path):
    script = USUAL.replace(
        "for x, y in job.loader(train_set, batch_size=20):",
        "loader = job.loader(train_set, batch_size=20)\n    epochs.append(epoch)\n"
        "    for _, (x, y) in zip(range(len(loader)), loader):",
    )
    script = "epochs = []\n" + script + "\nassert job.steps == 120 and epochs == [0, 1], epochs"
    ended = run_alone(tmp_path, script).succeeded()
    assert "step 60: loss" in ended.output and "step 120: loss" in ended.output


def test_the_model_is_saved_before_the_end_too(tmp_path):
    script = USUAL.replace("    job.evaluate", "    job.save(f'epoch-{epoch}.safetensors')\n    job.evaluate")
    run_alone(tmp_path, script).succeeded()
    assert (tmp_path / "epoch-0.safetensors").exists() and (tmp_path / "epoch-1.safetensors").exists()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_step_that_is_lost_comes_again_with_its_batch_and_its_collectives(tmp_path, num_workers):
    script = f"""
    import torch, slackline
    from slackline._loop import worlds
    lost, called = [2, 3], []
    finish_step, gather = worlds.Alone.finish_step, worlds.Alone.gather
    def lose(self, gradients, factors, skipped):
        if lost and self._worker.clock == lost[0]:
            lost.pop(0)
            return False
        return finish_step(self, gradients, factors, skipped)
    def note(self, place, number, data):
        called.append((place, number))
        return gather(self, place, number, data)
    worlds.Alone.finish_step, worlds.Alone.gather = lose, note
    job = slackline.join()
    net = job.model(torch.nn.Linear(1, 1))
    opt = job.optimizer(net, slackline.SGD(lr=0.1))
    seen = []
    numbers = torch.arange(8.0).reshape(8, 1)
    for epoch in job.epochs(1):
        for x in job.loader(numbers, batch_size=2, shuffle=False, num_workers={num_workers}):
            seen.append(int(x[0]))
            job.all_reduce(1)
            net(x).sum().backward()
            opt.step()
    print(seen, called, job.steps)
    """
    ended = run_alone(tmp_path, script).succeeded()
    places = "[(1, 0), (3, 0), (5, 0), (5, 0), (7, 0), (7, 0)]"
    assert f"[0, 2, 4, 4, 6, 6] {places} 4" in ended.output


TWO_OPTIMIZERS = """
import sys, torch, slackline
from slackline._loop import worlds
lost = [int(clock) for clock in sys.argv[1:]]
finish_step = worlds.Alone.finish_step
def lose(self, gradients, factors, skipped):
    if lost and self._worker.clock == lost[0]:
        lost.pop(0)
        return False
    return finish_step(self, gradients, factors, skipped)
worlds.Alone.finish_step = lose
job = slackline.join()
net = job.model(torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)]))
first = job.optimizer(net[0], slackline.SGD(lr=0.1))
second = job.optimizer(net[1], slackline.SGD(lr=0.1))
seen = []
for epoch in job.epochs(1):
    for x in job.loader(torch.arange(8.0).reshape(8, 1) / 8, batch_size=2, shuffle=False):
        seen.append(int(8 * x[0]))
        net[0](x).sum().backward()
        first.step()
        net[1](x).sum().backward()
        second.step()
print(seen, job.steps, *(round(float(p), 4) for p in net.parameters()))
"""


def test_a_batch_comes_again_if_its_second_step_is_lost_and_its_first_is_not_done_twice(tmp_path):
    plain = run_alone(tmp_path, TWO_OPTIMIZERS).succeeded().output.splitlines()[-1]
    assert plain.startswith("[0, 2, 4, 6] 8 ")
    # Of the second batch the second step, and then the first step of the third batch.
    lost = run_alone(tmp_path, TWO_OPTIMIZERS, "3", "4").succeeded().output.splitlines()[-1]
    assert lost == plain.replace("[0, 2, 4, 6]", "[0, 2, 2, 4, 4, 6]")


def test_several_steps_for_a_batch_do_not_go_with_elastic(tmp_path):
    ended = run_alone(tmp_path, TWO_OPTIMIZERS.replace("shuffle=False", "elastic=True"))
    assert ended.code == 1 and "elastic=True does not go with 2 optimizer steps for a batch" in ended.output


SPAWNS = """
import torch, slackline

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.tensor([float(i)])

def main():
    job = slackline.join()
    net = job.model(torch.nn.Linear(1, 1))
    opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    loader = job.loader(Numbers(), batch_size=2, num_workers=1, persistent_workers=True, drop_last=True,
                        multiprocessing_context="HOW")
    for epoch in job.epochs(2):
        seen = []
        for x in loader:
            seen += x[:, 0].int().tolist()
            net(x).mean().backward()
            opt.step()
        assert sorted(seen) == list(range(8)), seen

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("how", ["spawn", "forkserver"])
def test_workers_of_a_data_loader_by(tmp_path, how):
    (tmp_path / "script.py").write_text(SPAWNS.replace("HOW", how))
    run([sys.executable, str(tmp_path / "script.py")], tmp_path).succeeded()


def test_a_script_that_its_own_workers_would_start_anew_is_told_so(tmp_path):
    script = SPAWNS.replace("HOW", "spawn").replace('if __name__ == "__main__":\n    main()', "main()")
    (tmp_path / "script.py").write_text(script)
    ended = run([sys.executable, str(tmp_path / "script.py")], tmp_path)
    assert ended.code == 1
    assert 'put what trains under if __name__ == "__main__":' in ended.output


def test_it_does_without_numpy(tmp_path):
    script = "import sys\nsys.modules['numpy'] = None\n" + USUAL.replace(
        "    job.evaluate", "    job.log_image('noise', torch.rand(4, 4)); job.all_gather(torch.ones(2))\n    job.evaluate"
    )
    script += "import torch\ntry: torch.ones(1).numpy()\nexcept RuntimeError: print('without NumPy')\n"
    (tmp_path / "script.py").write_text(script)
    ended = run([sys.executable, str(tmp_path / "script.py")], tmp_path).succeeded()
    assert "without NumPy" in ended.output


@pytest.mark.parametrize("mode", ["alone", "bsp", "allreduce"])
def test_no_python_code_runs_where_an_interrupt_would_be_lost(tmp_path, mode):
    """nanobind drops what __dlpack__ raises, so a KeyboardInterrupt, too, and goes another way."""
    script = USUAL.replace("import slackline", """import slackline
lost = []
plain = torch.Tensor.__dlpack__
def noted(self, *args, **options):
    lost.append(self.shape)
    return plain(self, *args, **options)
torch.Tensor.__dlpack__ = noted""", 1)
    script += "\nprint(f'{job.steps} steps, lost: {lost}')"
    ended = run_alone(tmp_path, script) if mode == "alone" else run_job(tmp_path, script, "--mode", mode)
    output = ended.succeeded().output if mode == "alone" else ended.succeeded().log(0)
    assert "steps, lost: []" in output, output

"""Steps that begin before all parameters have come: what uses one waits for it."""

import re

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, _get_current_function_mode

from slackline._model.arrivals import Arrivals, _Mode
from slackline._model.tables import Tables
from support import POINTS, run_job


class Late:
    """Parameters that come when they are waited for."""

    def __init__(self, net, overlap=True):
        self.net = net
        self.tables = Tables(net)
        self.values = [table.values.numpy().copy() for table in self.tables.tables]
        self.memory = [table.values.numpy() for table in self.tables.tables]
        self.waited = []
        self.arrivals = Arrivals(self.tables, self.come, overlap)
        self.tables.fetch()

    def come(self, index):
        self.waited.append(self.tables.tables[index].name)
        # As the product does: into the memory, whatever PyTorch records or transforms meanwhile.
        self.memory[index][...] = self.values[index]

    def begin(self):
        """A step whose parameters are not there yet."""
        self.waited.clear()
        with torch.no_grad():
            for table in self.tables.tables:
                table.values.fill_(float("nan"))
        self.arrivals.take(by_table=True)
        self.arrivals.watch()


@pytest.fixture(autouse=True)
def nothing_looks_any_more():
    yield
    while isinstance(_get_current_function_mode(), _Mode):  # A test may end in the middle of a step.
        _get_current_function_mode().__exit__(None, None, None)
    torch.nn.modules.module._global_forward_pre_hooks.clear()


class Own(TorchFunctionMode):
    """A mode of the script's."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def layers():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def test_each_use_waits_for_its_parameter_and_no_other():
    late = Late(layers())
    x = torch.randn(3, 4)
    expected = late.net(x)
    late.begin()
    assert late.waited == []
    late.net[0](x)
    assert late.waited == ["0.weight", "0.bias"]
    assert torch.equal(late.net(x), expected)
    assert late.waited == ["0.weight", "0.bias", "2.weight", "2.bias"]
    late.arrivals.end_step()


@pytest.mark.parametrize(
    "use",
    [
        lambda net: F.linear(torch.ones(1, 8), net[2].weight),
        lambda net: F.linear(input=torch.ones(1, 8), weight=net[2].weight),
        lambda net: net[2].weight.square().sum(),
        lambda net: torch.cat([torch.ones(1, 8), net[2].weight]),
        lambda net: torch.stack([net[2].weight]),
        lambda net: net[2].weight + 1,
        lambda net: net[2].weight[0].sum(),
        lambda net: net[2].weight.tolist(),
        lambda net: net[2].weight.data.sum(),
        lambda net: net[2].weight.T @ torch.ones(2, 1),
        lambda net: repr(net[2].weight),
        lambda net: torch.nn.utils.parameters_to_vector([net[2].weight]),
    ],
)
def test_functions_and_operators_are_uses(use):
    late = Late(layers())
    late.begin()
    use(late.net)
    assert late.waited == ["2.weight"]
    late.arrivals.end_step()


def test_a_view_from_before_is_its_parameter():
    late = Late(layers())
    row = late.net[2].weight.detach()[1]
    late.begin()
    row.sum()
    assert late.waited == ["2.weight"]
    late.arrivals.end_step()


def test_what_is_no_use_waits_for_nothing():
    late = Late(layers())
    late.begin()
    for parameter in late.net.parameters():
        parameter.grad = None
        assert parameter.shape[0] in (8, 2) and parameter.dtype == torch.float32
        assert parameter.requires_grad and parameter.grad is None and parameter.is_leaf
    late.net.train()
    assert late.waited == []
    late.arrivals.end_step()
    assert late.waited == ["0.weight", "0.bias", "2.weight", "2.bias"]


@pytest.mark.parametrize(
    "net, example",
    [
        (torch.nn.LSTM(4, 6, num_layers=2, batch_first=True), torch.randn(2, 5, 4)),
        (torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), torch.randn(2, 5, 8)),
        (torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)), torch.randn(2, 1, 6, 6)),
        (torch.nn.EmbeddingBag(10, 3), torch.tensor([[1, 2], [3, 4]])),
    ],
)
def test_modules_of_pytorch_see_no_parameter_that_has_not_come(net, example):
    late = Late(net)
    result = net(example)
    expected = result[0] if isinstance(result, tuple) else result
    late.begin()
    result = net(example)
    got = result[0] if isinstance(result, tuple) else result
    assert torch.equal(got, expected)
    late.arrivals.end_step()


def test_a_parameter_of_another_type_is_converted_when_it_comes():
    late = Late(layers().double())
    x = torch.randn(3, 4, dtype=torch.float64)
    expected = late.net(x)
    late.begin()
    assert torch.equal(late.net(x), expected)
    late.arrivals.end_step()
    late.tables.check_unchanged()


def test_a_mode_of_the_script_that_lasts_longer_than_a_step_stays():
    late = Late(layers())
    late.begin()
    own = Own()
    with own:
        late.net(torch.randn(3, 4))
        late.arrivals.end_step()
        assert _get_current_function_mode() is own
        late.begin()
        late.net(torch.randn(3, 4))
        assert len(late.waited) == 4
        late.arrivals.end_step()
    late.begin()
    late.arrivals.end_step()
    assert _get_current_function_mode() is None


class Unseen(torch.autograd.Function):
    """Computes with memory that it got long ago."""

    memory = None

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x)
        return torch.from_numpy(x.numpy() @ Unseen.memory.T)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return None, gradient.T @ x


class Apart(torch.nn.Module):
    """Holds a parameter that others use, and whose module they do not call."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.holder = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.ones(2, 4))})

    def forward(self, x):
        return Unseen.apply(self.first(x).detach(), self.holder["w"]) + self.first(x)[:, :2]


def backward(net):
    net(torch.randn(3, 4)).sum().backward()


def steps(late, count, make=backward):
    """Steps that make a gradient of every parameter; whether parameters come late in each."""
    came_late = []
    for _ in range(count):
        late.begin()
        came_late.append(not late.waited)
        make(late.net)
        late.arrivals.end_step()
        for parameter in late.net.parameters():
            assert parameter.grad is None or parameter.grad.isfinite().all()
            parameter.grad = None
    return came_late


def test_the_first_steps_wait_for_all_and_see_whether_more_is_safe():
    assert steps(Late(layers(), overlap=None), 6) == [False] * 4 + [True] * 2
    assert steps(Late(layers(), overlap=True), 2) == [True] * 2
    assert not Late(layers(), overlap=False).arrivals.possible
    net = Apart()
    Unseen.memory = net.holder["w"].detach().numpy()
    assert steps(Late(net, overlap=None), 6) == [False] * 6


def test_gradients_that_backward_does_not_make_show_it_as_well():
    late = Late(layers(), overlap=None)
    views = [parameter.detach().numpy() for parameter in late.net.parameters()]

    def by_numpy(net):
        for parameter, view in zip(net.parameters(), views):
            parameter.grad = torch.from_numpy(view * 2)

    assert steps(late, 6, by_numpy) == [False] * 6


@pytest.mark.skipif(not hasattr(torch, "func"), reason="torch.func is of PyTorch 2.0")
def test_functorch_is_not_seen_and_so_waits_for_everything():
    def by_functorch(net):
        x = torch.randn(3, 4)
        loss = lambda values: torch.func.functional_call(net, values, (x,)).sum()
        named = dict(net.named_parameters())
        for name, gradient in torch.func.grad(loss)(named).items():
            named[name].grad = gradient

    came_late = steps(Late(layers(), overlap=None), 6, by_functorch)
    assert came_late in ([False] * 6, [False] * 4 + [True] * 2)  # Never a gradient of nothing.


def test_a_mode_that_begins_in_a_step_does_not_end_the_overlap_of_the_next():
    late = Late(layers())
    for _ in range(2):
        late.begin()
        with Own():
            late.net[0](torch.randn(3, 4))
            assert late.waited == ["0.weight", "0.bias"]
            late.arrivals.end_step()


def test_what_is_interrupted_is_waited_for_once_more():
    late = Late(layers())
    come = late.arrivals._wait_for

    def interrupted(index):
        late.arrivals._wait_for = come
        raise KeyboardInterrupt

    late.begin()
    late.arrivals._wait_for = interrupted
    with pytest.raises(KeyboardInterrupt):
        late.net[0](torch.randn(3, 4))
    late.arrivals.end_step()
    assert late.waited == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_a_use_that_was_not_seen_is_an_error():
    net = Apart()
    Unseen.memory = net.holder["w"].detach().numpy()
    late = Late(net, overlap=True)
    with pytest.raises(RuntimeError, match=r"'holder\.w' was used before it had come.*overlap=False"):
        steps(late, 1)
    late.arrivals.leave()


def test_parts_whose_use_cannot_be_seen_are_refused_where_they_are_asked_for():
    scripted = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.jit.script(torch.nn.Linear(4, 2)))
    assert not Late(scripted, overlap=None).arrivals.possible
    with pytest.raises(ValueError, match=r"parts whose use .* cannot be seen \(TorchScript"):
        Late(scripted, overlap=True)


class Compiled(torch.nn.Module):
    """Stands for what torch.compile() returns: of its call nothing may be looked at."""

    def __init__(self, module, fails=False):
        super().__init__()
        self._orig_mod = module
        self.fails = fails

    # As they are since PyTorch 2.0, before which there are no compiled modules.
    def register_forward_hook(self, hook, *, always_call=False):
        self.always = hook if always_call else None
        return super().register_forward_hook(hook)

    def register_forward_pre_hook(self, hook, *, with_kwargs):
        assert with_kwargs
        return super().register_forward_pre_hook(lambda part, args: hook(part, args, {}))

    def forward(self, x, other=None):
        if other is not None:
            x = x @ torch.from_numpy(other.detach().numpy()).T
        assert _get_current_function_mode() is None
        assert not torch.nn.modules.module._global_forward_pre_hooks
        if self.fails:
            self.always(self, (), None)  # As PyTorch does then.
            raise ValueError("no")
        with torch.no_grad():  # What is compiled has the memory.
            weight = torch.from_numpy(self._orig_mod.weight.detach().numpy())
        return x @ weight.T + self._orig_mod.bias


def test_a_compiled_part_waits_for_all_of_its_parameters_when_it_is_called():
    torch.manual_seed(1)
    late = Late(torch.nn.Sequential(torch.nn.Linear(4, 8), Compiled(torch.nn.Linear(8, 2)), torch.nn.Linear(2, 2)))
    x = torch.randn(3, 4)
    expected = late.net(x)
    late.begin()
    hidden = late.net[0](x)
    assert late.waited == ["0.weight", "0.bias"]
    hidden = late.net[1](hidden)
    assert late.waited[2:] == ["1._orig_mod.weight", "1._orig_mod.bias"]
    assert torch.equal(F.linear(hidden, late.net[2].weight, late.net[2].bias), expected)  # Is looked at again.
    late.arrivals.end_step()
    assert not late.net[1]._forward_pre_hooks and not late.net[1]._forward_hooks


def test_a_compiled_part_waits_for_the_parameters_that_it_is_given():
    torch.manual_seed(1)
    late = Late(torch.nn.Sequential(Compiled(torch.nn.Linear(4, 2)), torch.nn.Linear(4, 4)))
    x = torch.randn(3, 4)
    expected = late.net[0](x, late.net[1].weight)
    late.begin()
    assert torch.equal(late.net[0](x, late.net[1].weight), expected)
    assert late.waited == ["1.weight", "0._orig_mod.weight", "0._orig_mod.bias"]
    late.arrivals.end_step()


def test_after_a_compiled_part_that_raises_uses_are_seen():
    late = Late(torch.nn.Sequential(Compiled(torch.nn.Linear(4, 2), fails=True), torch.nn.Linear(2, 2)))
    late.begin()
    with pytest.raises(ValueError, match="no"):
        late.net(torch.ones(1, 4))
    late.net[1].weight.square().sum()
    assert late.waited[-1] == "1.weight"
    late.arrivals.end_step()


compiles = pytest.mark.skipif(not hasattr(torch, "compile"), reason="this PyTorch has no torch.compile")


def pair():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))


def compiled_steps(net, arrivals_of, call=None):
    """Three steps and one without a use that was not seen, then late ones; returns what is compiled in each."""
    late, frames = Late(net, overlap=None), []
    for step in range(8):
        if step < 4:
            late.arrivals.take(by_table=False)
            late.arrivals.watch()
        elif late.arrivals.possible:
            late.begin()
        (call or net)(torch.randn(3 + (step == 6), 4)).sum().backward()
        for index, table in enumerate(late.tables.tables):
            late.arrivals.gradient_made(index)
            table.parameter.grad = None
        late.arrivals.end_step()
        frames.append(torch._dynamo.utils.counters["frames"]["total"])
    arrivals_of.append(late)
    return frames


@compiles
@pytest.mark.filterwarnings("error:Using .torch.compile")
def test_compiled_parts_begin_early_and_are_compiled_as_often_as_without():
    def alone(net):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        for step in range(8):
            net(torch.randn(3 + (step == 6), 4)).sum().backward()
        return torch._dynamo.utils.counters["frames"]["total"]

    def parts():
        return torch.nn.Sequential(torch.compile(pair(), backend="eager"), torch.compile(pair(), backend="eager"))

    expected = alone(parts())
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    late = []
    assert compiled_steps(parts(), late)[-1] == expected
    assert late[0].arrivals.possible
    assert late[0].waited == [table.name for table in late[0].tables.tables]


@compiles
def test_what_is_compiled_beside_the_module_lets_all_steps_wait():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    late, net = [], pair()
    compiled_steps(net, late, torch.compile(net, backend="eager"))
    assert not late[0].arrivals.possible
    own = pair()
    own.compile(backend="eager")
    assert not Late(own, overlap=None).arrivals.possible


# Over a link on which the parameters of a step take some 60 ms, in several messages.
SLOW = """
job: "script"
server { host: "127.0.0.1" }
worker { host: "127.0.0.1" count: 2 conditions { link { bandwidth_mbit: 500 } } }
train { seed: 1 }
"""
BIG = (
    POINTS
    + """
overlap = {"None": None, "False": False}[sys.argv[1]]
job = slackline.join()
net = job.model(torch.nn.Sequential(
    torch.nn.Linear(4, 1000), torch.nn.ReLU(), torch.nn.Linear(1000, 800), torch.nn.ReLU(),
    torch.nn.Linear(800, 3)), overlap=overlap)
# Gradients during backward go the last layer first, and new values come back in that order.
opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), overlap=False)
early = 0
for epoch in job.epochs(2):
    for x, y in job.loader(train_set, batch_size=60):
        early += bool(job._loop.model.arrivals.missing)
        assert job.steps >= 4 or not early
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        job.log(loss=loss)
    job.evaluate(lambda net: right(net, test_set))
print(f"{early} steps began early")
"""
)


def test_a_job_has_the_same_bits_whether_or_not_its_steps_begin_early(tmp_path):
    hashes = {}
    for overlap in ("None", "False"):
        job = run_job(tmp_path, BIG, args=[overlap], config=SLOW, name=f"overlap{overlap}")
        job.succeeded()
        hashes[overlap] = job.summary["model_sha256"]
        early = [int(re.search(r"(\d+) steps began early", job.log(rank))[1]) for rank in range(2)]
        assert (sum(early) > 0) == (overlap == "None"), early
    assert hashes["None"] == hashes["False"]

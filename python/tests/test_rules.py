"""Rules, and what a script's optimizer becomes."""

import inspect
import pickle

import pytest
import torch

import slackline
from slackline import _core
from slackline._optim import rules
from slackline._optim import state as optimizer_state


EACH = [
    slackline.SGD(0.1),
    slackline.SGD(0.1, momentum=0.9, weight_decay=1e-4),
    slackline.SGD(0.1, momentum=0.9, nesterov=True),
    slackline.SGD(0.1, momentum=0.9, dampening=0.5, maximize=True),
    slackline.Adagrad(),
    slackline.Adam(lr=1e-3, betas=(0.8, 0.99)),
    slackline.Adam(amsgrad=True),
    slackline.AdamW(maximize=True),
    slackline.RMSprop(),
    slackline.RMSprop(momentum=0.5, centered=True),
    slackline.Adadelta(),
    slackline.Adamax(),
    slackline.NAdam(decoupled_weight_decay=True),
    slackline.RAdam(weight_decay=0.1),
    slackline.Lion(),
]


def test_pickles_name_the_package_alone():
    for rule in EACH:
        assert pickle.loads(pickle.dumps(rule)) == rule
    for name in slackline.__all__:
        public = pickle.dumps(getattr(slackline, name))
        assert b"slackline._" not in public and pickle.loads(public) is getattr(slackline, name)
    assert b"slackline._" not in pickle.dumps(EACH[0])


@pytest.mark.parametrize("rule", EACH, ids=lambda rule: rule.text())
def test_text_is_a_config_s_optimizer_with_the_same_numbers(rule):
    core = _core.Rule(rule.text())
    assert core.learning_rate == rule.lr
    assert core.momentum == rule.momentum
    assert core.slots == len(optimizer_state.slot_names(rule))
    assert rules.rule_of_config(*core.fields) == rule


def test_what_a_config_leaves_out_has_its_default():
    momentum = _core.Rule("momentum { learning_rate: 0.1 }")
    assert rules.rule_of_config(*momentum.fields) == slackline.SGD(0.1, momentum=0.9)
    adamw = _core.Rule("adamw { learning_rate: 0.1 beta2: 0.5 } maximize: true")
    assert rules.rule_of_config(*adamw.fields) == slackline.AdamW(0.1, betas=(0.9, 0.5), maximize=True)


def test_what_is_no_rule_here_is_refused_by_name():
    with pytest.raises(ValueError, match="the config has signum, and scripts have no such rule"):
        rules.rule_of_config("signum", {"learning_rate": 0.1})
    with pytest.raises(ValueError, match="Adam has no option 'trust'"):
        rules.rule_of_config("adam", {"learning_rate": 0.1, "beta1": 0.9, "beta2": 0.99, "trust": 1.0})
    with pytest.raises(ValueError, match="there is no rule Signum"):
        slackline.Rule("Signum", {"lr": 0.1, "weight_decay": 0.0}).text()
    with pytest.raises(ValueError, match="there is no rule Signum"):
        optimizer_state.slot_names(slackline.Rule("Signum", {"lr": 0.1}))


def test_optimizers_of_torch_keep_their_options():
    net = torch.nn.Linear(2, 2)
    adam = torch.optim.Adam(net.parameters(), lr=0.01, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)
    rule = rules.rule_of_group(adam, adam.param_groups[0])
    assert rule == slackline.Adam(lr=0.01, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)


def with_what_it_knows(name, **options):
    """An optimizer of torch.optim, without options that this PyTorch does not have yet."""
    make = getattr(torch.optim, name)
    known = inspect.signature(make).parameters
    return lambda p: make(p, **{option: value for option, value in options.items() if option in known})


class Applied:
    """Values that a rule updates, as those of a script alone."""

    def __init__(self, rule, values):
        self.values = values.clone()
        table = _core.Table("values", list(values.shape), self.values, rule.text())
        self._worker = _core.LoneWorker(_core.Parameters([table]), 1000, 1000, 1)

    def step(self, gradient):
        self._worker.next()
        self._worker.finish_step([gradient], [_core.StepOptions()])

    def state(self):
        ((updates, slots),) = self._worker.optimizer_state()
        return optimizer_state.TableState(updates, [torch.frombuffer(slot, dtype=torch.float32) for slot in slots])


@pytest.mark.parametrize(
    "make",
    [
        with_what_it_knows("SGD", lr=0.1, maximize=True),
        with_what_it_knows("SGD", lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
        with_what_it_knows("SGD", lr=0.1, momentum=0.9, dampening=0.3, maximize=True, weight_decay=0.01),
        with_what_it_knows("SGD", lr=0.1, momentum=0.9, nesterov=True, maximize=True),
        with_what_it_knows("SGD", lr=0.1, foreach=False),
        with_what_it_knows("Adagrad", lr=0.1, weight_decay=0.01, maximize=True),
        with_what_it_knows("Adam", lr=0.01, amsgrad=True, weight_decay=0.1),
        with_what_it_knows("Adam", lr=0.01, maximize=True, foreach=True),
        with_what_it_knows("AdamW", lr=0.01, amsgrad=True),
        with_what_it_knows("RMSprop", lr=0.01, weight_decay=0.1),
        with_what_it_knows("RMSprop", lr=0.01, alpha=0.9, momentum=0.8, maximize=True),
        with_what_it_knows("RMSprop", lr=0.01, centered=True),
        with_what_it_knows("RMSprop", lr=0.01, centered=True, momentum=0.8),
        with_what_it_knows("Adadelta", rho=0.8, weight_decay=0.1),
        with_what_it_knows("Adadelta", maximize=True),
        with_what_it_knows("Adamax", lr=0.01, betas=(0.8, 0.9), weight_decay=0.1),
        # Without foreach PyTorch 1.13 takes a product with one momentum too many, which later ones do not.
        with_what_it_knows("NAdam", lr=0.01, foreach=True),
        with_what_it_knows("NAdam", lr=0.01, momentum_decay=0.3, weight_decay=0.1, foreach=True),
        with_what_it_knows("NAdam", lr=0.01, weight_decay=0.1, decoupled_weight_decay=True, foreach=True),
        with_what_it_knows("RAdam", lr=0.01),
        with_what_it_knows("RAdam", lr=0.01, betas=(0.9, 0.9), weight_decay=0.1),
        with_what_it_knows("RAdam", lr=0.01, weight_decay=0.1, decoupled_weight_decay=True),
    ],
)
def test_each_step_and_state_is_that_of_torch_optim(make):
    generator = torch.Generator().manual_seed(1)
    parameter = torch.nn.Parameter(torch.randn(37, generator=generator))
    of_torch = make([parameter])
    rule = rules.rule_of_group(of_torch, of_torch.param_groups[0])
    ours = Applied(rule, parameter.detach())
    for update in range(1, 41):
        gradient = torch.randn(37, generator=generator)
        parameter.grad = gradient.clone()
        of_torch.step()
        ours.step(gradient)
        assert torch.allclose(ours.values, parameter, rtol=1e-5, atol=2e-6), update
        named = optimizer_state.to_torch(rule, ours.state())
        state = {key: value for key, value in of_torch.state[parameter].items() if value is not None}
        if rule.name == "SGD":
            state.pop("step", None)
        assert named.keys() == state.keys()
        for name, value in state.items():
            assert torch.allclose(named[name], torch.as_tensor(value, dtype=torch.float32), rtol=1e-5, atol=2e-6)
        back = optimizer_state.from_torch(rule, "name", parameter.shape, state)
        if rule.name != "SGD":
            assert back.updates == update


def test_lion_is_the_published_rule():
    # Chen et al. 2023, algorithm 2, in float64.
    rule = slackline.Lion(lr=0.01, betas=(0.8, 0.95), weight_decay=0.1)
    generator = torch.Generator().manual_seed(1)
    ours = Applied(rule, torch.randn(37, generator=generator))
    theta, m = ours.values.double(), torch.zeros(37, dtype=torch.float64)
    for update in range(1, 41):
        gradient = torch.randn(37, generator=generator)
        gradient[0] = 0.0
        c = 0.8 * m + (1 - 0.8) * gradient.double()
        theta = theta - 0.01 * (torch.sign(c) + 0.1 * theta)
        m = 0.95 * m + (1 - 0.95) * gradient.double()
        ours.step(gradient)
        assert torch.allclose(ours.values.double(), theta, rtol=1e-5, atol=1e-6)
        assert torch.allclose(ours.state().slots[0].double(), m, rtol=1e-5, atol=1e-6)


class Named(torch.optim.SGD):
    """An optimizer of somebody else, under any name."""

    def __init__(self, parameters, name):
        super().__init__(parameters, lr=0.1)
        self.__class__ = type(name, (Named,), {})


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda p: torch.optim.Adagrad(p, lr_decay=0.1), "lr_decay=0 is required"),
        (lambda p: torch.optim.LBFGS(p), "LBFGS cannot run on servers: it computes the loss several times.*SGD"),
        (lambda p: torch.optim.SparseAdam(list(p)), "SparseAdam cannot.*Write slackline.Adam.. in its place"),
        (lambda p: torch.optim.ASGD(p), "ASGD cannot run on servers: .*AveragedModel"),
        (lambda p: torch.optim.Rprop(p), "Rprop cannot run on servers: "),
        (lambda p: Named(p, "Lamb"), "Lamb cannot run on servers: its trust ratio needs the norm of each whole"),
        (lambda p: Named(p, "Lion"), "Lion cannot run on servers: .*job.optimizer.net, slackline.Lion"),
        (lambda p: Named(p, "Other"), "Other cannot run on servers; torch.optim's SGD, .*RAdam can"),
    ],
)
def test_what_servers_cannot_do_is_refused_by_name(make, said):
    optimizer = make(torch.nn.Linear(2, 2).parameters())
    with pytest.raises(ValueError, match=said):
        rules.rule_of_group(optimizer, optimizer.param_groups[0])


def test_a_momentum_that_a_scheduler_sets_travels_and_other_options_do_not():
    def numbers(rule, **changes):
        return rules.step_numbers(rule, {**rule.options, **changes})

    sgd = slackline.SGD(0.1, momentum=0.9)
    assert numbers(sgd) == (1.0, None)
    assert numbers(sgd, lr=0.05) == (0.5, None)
    assert numbers(sgd, momentum=0.85) == (1.0, 0.85)
    assert numbers(slackline.Adam(), betas=(0.8, 0.999)) == (1.0, 0.8)
    assert numbers(slackline.Adam(), betas=(0.0, 0.999)) == (1.0, 0.0)
    assert numbers(slackline.RMSprop(momentum=0.5), momentum=0.25) == (1.0, 0.25)
    for rule, changes, said in (
        (sgd, {"weight_decay": 0.1}, "weight_decay was 0.0 .* only lr and momentum may change"),
        (sgd, {"momentum": 0.0}, "the momentum is 0.0 now; above 0 and, as a float, below 1 is required"),
        (sgd, {"momentum": 1.0}, "the momentum is 1.0 now"),
        (sgd, {"momentum": 1 - 1e-9}, "the momentum is 0.999999999 now; above 0"),
        (slackline.RMSprop(momentum=0.5), {"momentum": 0.0}, "the momentum is 0.0 now; above 0"),
        (slackline.Adam(), {"betas": (1.0, 0.999)}, "the first of betas is 1.0 now; at least 0"),
        (slackline.SGD(0.1), {"momentum": 0.5}, "without momentum at the start only lr may change"),
        (slackline.Adam(), {"betas": (0.9, 0.99)}, "only lr and the first of betas may change"),
        (slackline.NAdam(), {"betas": (0.8, 0.999)}, "of NAdam only lr may change"),
        (slackline.Adadelta(), {"rho": 0.8}, "of Adadelta only lr may change"),
    ):
        with pytest.raises(ValueError, match=said):
            numbers(rule, **changes)


def test_nadam_goes_on_only_with_betas_that_were_the_same():
    parameter = torch.nn.Parameter(torch.ones(2))
    of_torch = torch.optim.NAdam([parameter])
    for beta1 in (0.9, 0.8):
        of_torch.param_groups[0]["betas"] = (beta1, 0.999)
        parameter.grad = torch.ones(2)
        of_torch.step()
    with pytest.raises(ValueError, match="mu_product of .* after 2 updates; .* is required"):
        optimizer_state.from_torch(slackline.NAdam(), "name", parameter.shape, of_torch.state[parameter])


def test_an_unknown_option_of_a_group_is_named():
    with pytest.raises(ValueError, match="Adam has no option 'momentum'; it has lr, betas"):
        slackline.Adam().with_options({"momentum": 0.9})


def test_a_rule_with_impossible_numbers_is_refused():
    with pytest.raises(ValueError, match="learning_rate"):
        _core.Rule(slackline.SGD(lr=-1).text())

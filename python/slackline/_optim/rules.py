"""Rules by which gradients change parameters, under the names of torch.optim."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, Dict, Mapping, Optional, Tuple, Union

import torch

from slackline import _core

__all__ = [
    "Rule",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "RMSprop",
    "Adadelta",
    "Adamax",
    "NAdam",
    "RAdam",
    "Lion",
]

# The block of a config, by rule; SGD has three.
_SGD_BLOCKS = ("sgd", "momentum", "nesterov")
_BLOCKS = {
    "Adagrad": "adagrad",
    "Adam": "adam",
    "AdamW": "adamw",
    "RMSprop": "rmsprop",
    "Adadelta": "adadelta",
    "Adamax": "adamax",
    "NAdam": "nadam",
    "RAdam": "radam",
    "Lion": "lion",
}
_FIELDS = {"lr": "learning_rate", "eps": "epsilon"}  # The others have the option's name.


def no_such_rule(name: str) -> ValueError:
    return ValueError(f"optimizer: there is no rule {name}; SGD, {', '.join(_BLOCKS)} are there")


@dataclasses.dataclass(frozen=True)
class Rule:
    """One of SGD(), Adam() and the others below: what the servers do with a gradient.

    ``options`` has the names and meanings of the class of torch.optim with the
    same name.
    """

    name: str
    options: Dict[str, Any]

    def with_options(self, changes: Dict[str, Any]) -> "Rule":
        """The same rule with other options, as a parameter group gives them.

        Raises ValueError for an option that the rule does not have.
        """
        for option in changes:
            if option not in self.options:
                raise ValueError(
                    f"{self.name} has no option '{option}'; it has {', '.join(self.options)}"
                )
        return Rule(self.name, {**self.options, **changes})

    @property
    def lr(self) -> float:
        """The learning rate."""
        return float(self.options["lr"])

    @functools.cached_property
    def of_core(self) -> "_core.Rule":
        """The rule as servers have it."""
        return _core.Rule(self.text())

    @functools.cached_property
    def momentum(self) -> Optional[float]:
        """What may change from step to step beside lr: the momentum, or the first of betas.

        None where there is none, or where it has to stay as it is.
        """
        return self.of_core.momentum

    def ignores_zeros(self, moves: bool) -> bool:
        """Whether a gradient of zeros changes nothing; ``moves``: there was another one before."""
        if self.options["weight_decay"] != 0:
            return False
        still = self.name == "Adagrad" or (self.name == "SGD" and self.options["momentum"] == 0)
        return still or not moves

    def text(self) -> str:
        """The rule as a config's ``optimizer`` has it."""
        options = dict(self.options)
        up = " maximize: true" if options.pop("maximize", False) else ""
        if self.name == "SGD":
            block = "sgd"
            nesterov = options.pop("nesterov")
            if options["momentum"] == 0:
                del options["momentum"], options["dampening"]
            else:
                block = "nesterov" if nesterov else "momentum"
                if nesterov:
                    del options["dampening"]
        elif self.name in _BLOCKS:
            block = _BLOCKS[self.name]
        else:
            raise no_such_rule(self.name)
        if "betas" in options:
            options["beta1"], options["beta2"] = options.pop("betas")
        body = " ".join(f"{_FIELDS.get(name, name)}: {_text(value)}" for name, value in options.items())
        return f"{block} {{ {body} }}{up}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(float(value))


def rule_of_config(block: str, fields: Mapping[str, Union[bool, float]]) -> Rule:
    """The rule of a config's optimizer: its block, and all its fields as the compiled module reads them.

    Raises ValueError naming a block, or a field, that no rule here has.
    """
    rule_of_block = {of: name for name, of in _BLOCKS.items()}
    name = "SGD" if block in _SGD_BLOCKS else rule_of_block.get(block)
    if name is None:
        raise ValueError(
            f"optimizer: the config has {block}, and scripts have no such rule; "
            f"{', '.join([*_SGD_BLOCKS, *rule_of_block])} are there"
        )
    option_of_field = {field: option for option, field in _FIELDS.items()}
    options: Dict[str, Any] = {option_of_field.get(field, field): value for field, value in fields.items()}
    if "beta1" in options:
        options["betas"] = (options.pop("beta1"), options.pop("beta2"))
    if block == "nesterov":
        options["nesterov"] = True
    return make_rule(name).with_options(options)


def SGD(
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    dampening: float = 0.0,
    maximize: bool = False,
) -> Rule:
    """Stochastic gradient descent, as torch.optim.SGD."""
    if nesterov and (momentum == 0 or dampening != 0):
        raise ValueError("SGD: nesterov needs a momentum above 0, and no dampening")
    return Rule(
        "SGD",
        {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "dampening": dampening,
            "maximize": maximize,
        },
    )


def Adagrad(
    lr: float = 0.01, eps: float = 1e-10, weight_decay: float = 0.0, maximize: bool = False
) -> Rule:
    """AdaGrad, as torch.optim.Adagrad with lr_decay 0."""
    return Rule(
        "Adagrad", {"lr": lr, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
    )


def Adam(
    lr: float = 0.001,
    betas: Tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    maximize: bool = False,
) -> Rule:
    """Adam, as torch.optim.Adam."""
    return Rule(
        "Adam",
        {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
        },
    )


def AdamW(
    lr: float = 0.001,
    betas: Tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    amsgrad: bool = False,
    maximize: bool = False,
) -> Rule:
    """Adam with decoupled weight decay, as torch.optim.AdamW."""
    return Rule("AdamW", Adam(lr, betas, eps, weight_decay, amsgrad, maximize).options)


def RMSprop(
    lr: float = 0.01,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    centered: bool = False,
    maximize: bool = False,
) -> Rule:
    """RMSprop, as torch.optim.RMSprop."""
    return Rule(
        "RMSprop",
        {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": centered,
            "maximize": maximize,
        },
    )


def Adadelta(
    lr: float = 1.0,
    rho: float = 0.9,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> Rule:
    """Adadelta, as torch.optim.Adadelta."""
    return Rule(
        "Adadelta",
        {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize},
    )


def Adamax(
    lr: float = 0.002,
    betas: Tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> Rule:
    """Adamax, as torch.optim.Adamax."""
    return Rule(
        "Adamax",
        {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize},
    )


def NAdam(
    lr: float = 0.002,
    betas: Tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum_decay: float = 4e-3,
    decoupled_weight_decay: bool = False,
    maximize: bool = False,
) -> Rule:
    """NAdam, as torch.optim.NAdam. Its betas are the same in all steps."""
    return Rule(
        "NAdam",
        {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
        },
    )


def RAdam(
    lr: float = 0.001,
    betas: Tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled_weight_decay: bool = False,
    maximize: bool = False,
) -> Rule:
    """RAdam, as torch.optim.RAdam."""
    return Rule(
        "RAdam",
        {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
        },
    )


def Lion(
    lr: float = 1e-4, betas: Tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
) -> Rule:
    """Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"), with decoupled
    weight decay. torch.optim has none."""
    return Rule("Lion", {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": False})


_RULES: Dict[str, Callable[..., Rule]] = {
    "SGD": SGD,
    "Adagrad": Adagrad,
    "Adam": Adam,
    "AdamW": AdamW,
    "RMSprop": RMSprop,
    "Adadelta": Adadelta,
    "Adamax": Adamax,
    "NAdam": NAdam,
    "RAdam": RAdam,
    "Lion": Lion,
}
_OF_TORCH = {name: make for name, make in _RULES.items() if name != "Lion"}

def make_rule(name: str) -> Rule:
    """The rule of this name with the defaults of its options."""
    return _RULES[name](lr=1.0)


# Options of torch.optim that only change how fast it computes.
OF_SPEED = {"foreach", "fused", "capturable", "differentiable", "params"}
# Options that have to have this value, where a rule does not have them.
FIXED = {
    "lr_decay": 0,
    "initial_accumulator_value": 0,
    "decoupled_weight_decay": False,
}

# What to write in place of an optimizer that is not among them, by the name of its class.
_LAMB = (
    "its trust ratio needs the norm of each whole tensor, and servers hold tensors in pieces. Write "
    "slackline.AdamW(lr=..., weight_decay=...) in its place, with a warm-up of the rate for large batches"
)
_INSTEAD = {
    "LBFGS": "it computes the loss several times in a step, and a step here is one gradient of each "
    "worker. Write slackline.SGD(lr=..., momentum=0.9) or slackline.Adam() in its place",
    "SparseAdam": "gradients of tables are dense here. Write slackline.Adam() in its place, and "
    "sparse=False in the embedding",
    "ASGD": "its average is a second set of parameters. Write slackline.SGD(lr=...) in its place, and "
    "torch.optim.swa_utils.AveragedModel for the average",
    "Rprop": "it goes by signs from step to step, of the gradient of all data. Write slackline.Lion() in "
    "its place, which takes minibatches",
    "Lion": "the rule is there under slackline's own name. Write job.optimizer(net, "
    "slackline.Lion(lr=..., betas=..., weight_decay=...)) in its place",
    "Lamb": _LAMB,
    "LAMB": _LAMB,
    "FusedLAMB": _LAMB,
    "Adafactor": "it keeps sums over rows and columns of whole tensors, and servers hold tensors in "
    "pieces. Write slackline.AdamW() in its place",
    "Muon": "it turns whole matrices, and servers hold tensors in pieces. Write slackline.AdamW() in its place",
}


def rule_of_group(optimizer: torch.optim.Optimizer, group: Dict[str, Any]) -> Rule:
    """The rule of a parameter group of an optimizer of torch.optim.

    Raises ValueError for an optimizer, or an option, that no rule here has.
    """
    name = type(optimizer).__name__
    module = type(optimizer).__module__
    if module.split(".")[:2] != ["torch", "optim"] or name not in _OF_TORCH:
        others = f"torch.optim's {', '.join(_OF_TORCH)} can"
        why = f": {_INSTEAD[name]} ({others})" if name in _INSTEAD else f"; {others}"
        raise ValueError(f"optimizer: {module}.{name} cannot run on servers{why}")
    if name == "AdamW":
        group = {key: value for key, value in group.items() if key != "decoupled_weight_decay"}
    rule = _OF_TORCH[name](lr=float(group["lr"]))
    changes = {}
    for option, value in group.items():
        if option in rule.options:
            changes[option] = float(value) if option == "lr" else value
        elif option in FIXED:
            if value != FIXED[option]:
                raise ValueError(
                    f"optimizer: {name}({option}={value!r}) cannot run on servers; "
                    f"{option}={FIXED[option]!r} is required"
                )
        elif option not in OF_SPEED:
            raise ValueError(f"optimizer: {name} has an option '{option}' that is not known here")
    return rule.with_options(changes)


# ---- What may change from step to step ---------------------------------------


def step_numbers(rule: Rule, group: Dict[str, Any]) -> Tuple[float, Optional[float]]:
    """Of a group as it is now: its rate as a multiple of the rule's, and its momentum if it is another.

    The momentum is the first of betas where there are betas. Raises ValueError for an option that
    has changed and may not, and for one that has become what no step can have.
    """
    for option, first in rule.options.items():
        now = group[option]
        if option == "lr" or now == first:
            continue
        of_betas = option == "betas" and len(now) == 2 and now[1] == first[1]
        if rule.momentum is not None and (option == "momentum" or of_betas):
            continue
        raise ValueError(
            f"optimizer: {option} was {first!r} at the start of the job and is {now!r} now; {_may_change(rule)}"
        )
    rate = float(group["lr"]) / rule.lr if group["lr"] != rule.lr else 1.0
    if rule.momentum is None:
        return rate, None
    momentum = float(group["betas"][0] if "betas" in rule.options else group["momentum"])
    if momentum == rule.momentum:
        return rate, None
    fault = rule.of_core.fault_of_momentum(momentum)
    if fault:
        what = "first of betas" if "betas" in rule.options else "momentum"
        raise ValueError(f"optimizer: the {what} is {momentum} now; {fault}")
    return rate, momentum


def _may_change(rule: Rule) -> str:
    if rule.name == "NAdam":
        return (
            "of NAdam only lr may change, because each step goes by the product of all momenta before (a "
            "scheduler that cycles betas takes cycle_momentum=False)"
        )
    if "betas" in rule.options:
        return f"of {rule.name} only lr and the first of betas may change"
    if rule.momentum is not None:
        return f"of {rule.name} only lr and momentum may change"
    if "momentum" in rule.options:
        return (
            "without momentum at the start only lr may change (for a scheduler that cycles momentum give the "
            "optimizer a momentum above 0, or the scheduler cycle_momentum=False)"
        )
    return (
        f"of {rule.name} only lr may change (a scheduler that cycles momentum takes cycle_momentum=False)"
    )


def set_momentum(group: Dict[str, Any], momentum: float) -> None:
    """Writes it where a group has it."""
    if "betas" in group:
        group["betas"] = (momentum, *group["betas"][1:])
    else:
        group["momentum"] = momentum


def momentum_of(group: Dict[str, Any]) -> Optional[float]:
    """The momentum of a group, or the first of its betas; None if it has neither."""
    if "betas" in group:
        return float(group["betas"][0])
    return float(group["momentum"]) if "momentum" in group else None

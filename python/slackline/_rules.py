"""Rules by which gradients change parameters, under the names of torch.optim."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Tuple

import torch

__all__ = ["Rule", "SGD", "Adagrad", "Adam", "AdamW"]


@dataclasses.dataclass(frozen=True)
class Rule:
    """One of SGD(), Adagrad(), Adam(), AdamW(): what the servers do with a gradient.

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

    def ignores_zeros(self, moves: bool) -> bool:
        """Whether a gradient of zeros changes nothing; ``moves``: there was another one before."""
        if self.options["weight_decay"] != 0:
            return False
        still = self.name == "Adagrad" or (self.name == "SGD" and self.options["momentum"] == 0)
        return still or not moves

    def text(self) -> str:
        """The rule as the block ``optimizer`` of a config has it."""
        options = self.options
        kind = {"Adagrad": "adagrad", "Adam": "adam", "AdamW": "adamw"}.get(self.name, "sgd")
        fields = {"learning_rate": self.lr, "weight_decay": options["weight_decay"]}
        if self.name == "SGD" and options["momentum"] != 0:
            kind = "nesterov" if options["nesterov"] else "momentum"
            fields["momentum"] = options["momentum"]
        if "betas" in options:
            fields["beta1"], fields["beta2"] = options["betas"]
        if "eps" in options:
            fields["epsilon"] = options["eps"]
        body = " ".join(f"{name}: {float(value)!r}" for name, value in fields.items())
        return f"{kind} {{ {body} }}"


def SGD(
    lr: float, momentum: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False
) -> Rule:
    """Stochastic gradient descent, as torch.optim.SGD with dampening 0."""
    if nesterov and momentum == 0:
        raise ValueError("SGD: nesterov needs a momentum above 0")
    return Rule(
        "SGD",
        {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov},
    )


def Adagrad(lr: float = 0.01, eps: float = 1e-10, weight_decay: float = 0.0) -> Rule:
    """AdaGrad, as torch.optim.Adagrad with lr_decay 0."""
    return Rule("Adagrad", {"lr": lr, "eps": eps, "weight_decay": weight_decay})


def Adam(
    lr: float = 0.001,
    betas: Tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Rule:
    """Adam, as torch.optim.Adam without amsgrad."""
    return Rule("Adam", {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})


def AdamW(
    lr: float = 0.001,
    betas: Tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> Rule:
    """Adam with decoupled weight decay, as torch.optim.AdamW without amsgrad."""
    return Rule("AdamW", {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})


# Options of torch.optim that only change how fast it computes.
OF_SPEED = {"foreach", "fused", "capturable", "differentiable", "params"}
# Options that have to have this value.
FIXED = {
    "dampening": 0,
    "maximize": False,
    "amsgrad": False,
    "lr_decay": 0,
    "initial_accumulator_value": 0,
    "decoupled_weight_decay": False,
}
_OF_TORCH = {"SGD": SGD, "Adagrad": Adagrad, "Adam": Adam, "AdamW": AdamW}


def rule_of_group(optimizer: torch.optim.Optimizer, group: Dict[str, Any]) -> Rule:
    """The rule of a parameter group of an optimizer of torch.optim.

    Raises ValueError for an optimizer, or an option, that no rule here has.
    """
    name = type(optimizer).__name__
    if type(optimizer).__module__.split(".")[:2] != ["torch", "optim"] or name not in _OF_TORCH:
        raise ValueError(
            f"optimizer: {type(optimizer).__module__}.{name} cannot run on servers; "
            f"torch.optim's {', '.join(_OF_TORCH)} can"
        )
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

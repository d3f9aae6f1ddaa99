"""Parameter groups with their rules: of one optimizer, and of all of a job."""

from __future__ import annotations

from typing import Any, Dict, List, Set

import torch

from slackline import _core
from slackline._optim.rules import Rule, momentum_of, set_momentum, step_numbers


class RuledGroups(torch.optim.Optimizer):
    """Groups of parameters as PyTorch's schedulers know them, each with a rule of the servers."""

    def __init__(self, groups: List[Dict[str, Any]], rules: List[Rule]) -> None:
        super().__init__(groups, dict(rules[0].options))
        self._rules = rules
        for group, rule in zip(self.param_groups, rules):
            for option, value in rule.options.items():
                group[option] = value

    @property
    def rules(self) -> List[Rule]:
        """The rule of each parameter group, as it was at first."""
        return list(self._rules)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients. They are never set to zeros: others may still read them."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Only before the job has begun; called by the constructor."""
        if hasattr(self, "_rules"):
            raise RuntimeError(
                "optimizer: the job's tables cannot grow; give all groups to job.optimizer()"
            )
        super().add_param_group(param_group)

    def step_options(self) -> List[Any]:
        """For each group, what servers are told with a gradient: as a rule, nothing.

        That is its present learning rate as a multiple of that at first, and its momentum or first
        of betas if that is another one. Raises ValueError for another option that has changed.
        """
        numbers = [step_numbers(rule, group) for group, rule in zip(self.param_groups, self._rules)]
        return [_core.StepOptions(rate, momentum) for rate, momentum in numbers]

    def options_now(self) -> List[Dict[str, float]]:
        """For each group, what may change from step to step, by name."""
        options = []
        for group in self.param_groups:
            of_group = {"lr": float(group["lr"])}
            momentum = momentum_of(group)
            if momentum is not None:
                of_group["momentum"] = momentum
            options.append(of_group)
        return options

    def set_options(self, options: List[Dict[str, float]]) -> None:
        """Makes groups have what ``options_now()`` gave, here or on another worker."""
        for group, of_group in zip(self.param_groups, options):
            group["lr"] = of_group["lr"]
            if "momentum" in of_group and momentum_of(group) is not None:
                set_momentum(group, of_group["momentum"])


class Optimizers:
    """All of a job, over disjoint parameters, as if they were one: groups, rules, rates."""

    def __init__(self) -> None:
        self.each: List[RuledGroups] = []

    @property
    def param_groups(self) -> List[Dict[str, Any]]:
        """The groups of all, in their order."""
        return [group for one in self.each for group in one.param_groups]

    @property
    def rules(self) -> List[Rule]:
        """As ``RuledGroups.rules``, for these groups."""
        return [rule for one in self.each for rule in one.rules]

    @property
    def parameters(self) -> Set[torch.nn.Parameter]:
        """Of all groups."""
        return {parameter for group in self.param_groups for parameter in group["params"]}

    def step_options(self) -> List[Any]:
        """As ``RuledGroups.step_options()``."""
        return [options for one in self.each for options in one.step_options()]

    def options_now(self) -> List[Dict[str, float]]:
        """As ``RuledGroups.options_now()``."""
        return [options for one in self.each for options in one.options_now()]

    def set_options(self, options: List[Dict[str, float]]) -> None:
        """As ``RuledGroups.set_options()``."""
        begin = 0
        for one in self.each:
            end = begin + len(one.param_groups)
            one.set_options(options[begin:end])
            begin = end


def check_all_trained(trained: Dict[torch.nn.Parameter, str], optimizers: Optimizers) -> None:
    """Raises ValueError naming parameters that no optimizer has."""
    seen = optimizers.parameters
    missing = [name for parameter, name in trained.items() if parameter not in seen]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ValueError(
            f"job.optimizer(): {', '.join(missing[:3])}{more} would not be trained; put them into "
            "a group, or freeze them with requires_grad_(False) before job.model()"
        )

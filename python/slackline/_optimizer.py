"""The optimizer of a job: parameter groups here, the arithmetic on the servers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Union

import torch

from slackline._rules import Rule, rule_of_group

if TYPE_CHECKING:
    from slackline._job import Job

Source = Union[torch.nn.Module, torch.optim.Optimizer, Iterable[Any]]


class Optimizer(torch.optim.Optimizer):
    """What ``Job.optimizer()`` returns: an optimizer of PyTorch for the loop of a script.

    ``step()`` hands the gradients over; the parameters of the next step come with
    the next batch of the job's loader. Learning-rate schedulers of PyTorch work
    on it. Moments and other state are where the arithmetic is, so
    ``state_dict()`` has the groups alone.
    """

    def __init__(self, job: "Job", groups: List[Dict[str, Any]], rules: List[Rule]) -> None:
        self._job = job
        super().__init__(groups, {})
        self._rules = rules
        for group, rule in zip(self.param_groups, rules):
            for option, value in rule.options.items():
                group[option] = value
        self._fixed = [
            {option: group[option] for option in rule.options if option != "lr"}
            for group, rule in zip(self.param_groups, rules)
        ]

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # Asked for by the step() of a GradScaler that is enabled, and by nobody else.
        raise RuntimeError(
            "optimizer: an enabled GradScaler leaves steps out, which no worker of a job can; use "
            "torch.autocast with torch.bfloat16, which needs none, or GradScaler(enabled=False)"
        )

    @property
    def rules(self) -> List[Rule]:
        """The rule of each parameter group, as it was at first."""
        return list(self._rules)

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Hands the gradients of this step over.

        By all-reduce it returns when the parameters are updated, else at once.
        Then no parameter has a gradient: ``zero_grad()`` before or after it is
        fine. A parameter without a gradient counts as one with zeros.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._job._finish_step(loss)
        return loss

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

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Loads the groups. Raises ValueError if there is more: the servers have the rest."""
        if state_dict.get("state"):
            raise ValueError(
                "optimizer.load_state_dict(): the state of each parameter belongs to the servers; "
                "only param_groups can be loaded"
            )
        super().load_state_dict(state_dict)

    def rate_factors(self) -> List[float]:
        """For each group, its present learning rate as a multiple of that at first.

        Raises ValueError for an option other than lr that has changed.
        """
        for group, fixed, rule in zip(self.param_groups, self._fixed, self._rules):
            for option, value in fixed.items():
                if group[option] != value:
                    raise ValueError(
                        f"optimizer: {option} was {value!r} at the start of the job and is "
                        f"{group[option]!r} now; only lr may change (a scheduler that cycles "
                        "momentum takes cycle_momentum=False)"
                    )
        return [
            float(group["lr"]) / rule.lr if group["lr"] != rule.lr else 1.0
            for group, rule in zip(self.param_groups, self._rules)
        ]


def make_optimizer(
    job: "Job",
    source: Source,
    rule: Optional[Rule],
    of_config: Optional[Rule],
    trained: Dict[torch.nn.Parameter, str],
    factor: float,
) -> Optimizer:
    """``Job.optimizer()``, for parameters with these names; rates are multiplied with ``factor``."""
    rules: List[Rule] = []
    groups: List[Dict[str, Any]] = []
    if isinstance(source, torch.optim.Optimizer):
        if rule is not None:
            raise ValueError("job.optimizer(): give an optimizer of torch.optim or a rule, not both")
        if of_config is not None:
            raise ValueError(_two_rules(of_config))
        for group in source.param_groups:
            if "initial_lr" in group:
                raise ValueError(
                    "job.optimizer(): a scheduler belongs to this optimizer, and would change nothing "
                    "here; make it for the optimizer that job.optimizer() returns"
                )
            rules.append(rule_of_group(source, group))
            groups.append({"params": list(group["params"])})
    else:
        if rule is not None and of_config is not None:
            raise ValueError(_two_rules(of_config))
        base = rule or of_config
        if base is None:
            raise ValueError(
                "job.optimizer(): the config has no optimizer; give one, for example "
                "job.optimizer(net, slackline.Adam(lr=0.001))"
            )
        if isinstance(source, torch.nn.Module):
            source = source.parameters()
        items = list(source)
        if items and not isinstance(items[0], dict):
            items = [{"params": items}]
        for item in items:
            changes = {key: value for key, value in item.items() if key != "params"}
            parameters = item["params"]
            if isinstance(parameters, torch.Tensor):
                parameters = [parameters]
            rules.append(base.with_options(changes))
            groups.append({"params": list(parameters)})
    seen = set()
    for group in groups:
        group["params"] = [p for p in group["params"] if p.requires_grad]
        for parameter in group["params"]:
            if parameter not in trained:
                raise ValueError(
                    "job.optimizer(): a parameter of shape "
                    f"{list(parameter.shape)} is not one of job.model()'s"
                )
            seen.add(parameter)
    missing = [name for parameter, name in trained.items() if parameter not in seen]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ValueError(
            f"job.optimizer(): {', '.join(missing[:3])}{more} would not be trained; put them into "
            "a group, or freeze them with requires_grad_(False) before job.model()"
        )
    kept = [
        (group, r.with_options({"lr": r.lr * factor}))
        for group, r in zip(groups, rules)
        if group["params"]
    ]
    for index, (_, r) in enumerate(kept):
        if not (r.lr > 0 and math.isfinite(r.lr)):
            raise ValueError(
                f"job.optimizer(): lr is {r.lr} in parameter group {index}; a rate above 0 is required at "
                "the start, and a scheduler may change it for each step, to 0 as well"
            )
    return Optimizer(job, [group for group, _ in kept], [r for _, r in kept])


def _two_rules(of_config: Rule) -> str:
    return (
        f"job.optimizer(): the config has an optimizer, {of_config.text()}, and so has the script; "
        "leave one out"
    )

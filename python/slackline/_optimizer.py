"""The optimizer of a job: parameter groups here, the arithmetic on the servers."""

from __future__ import annotations

import math
import sys
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Union

import torch

from slackline._loop.step_loop import StepLoop
from slackline._optim.groups import RuledGroups
from slackline._optim.rules import Rule, rule_of_group
from slackline._optim.state import (
    from_torch,
    to_torch,
    with_options_of_torch,
    without_options_of_torch,
)

Source = Union[torch.nn.Module, torch.optim.Optimizer, Iterable[Any]]


class Optimizer(RuledGroups):
    """What ``Job.optimizer()`` returns: an optimizer of PyTorch for the loop of a script.

    ``step()`` hands the gradients over; the parameters of the next step come with
    the next batch of the job's loader. Learning-rate schedulers of PyTorch work
    on it, also those that cycle momentum or betas. Moments and other state are
    where the arithmetic is: ``state`` is empty, and ``state_dict()`` fetches them.
    """

    def __init__(self, loop: StepLoop, groups: List[Dict[str, Any]], rules: List[Rule]) -> None:
        self._loop = loop
        self._scaler: Any = None
        super().__init__(groups, rules)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # Asked by the step() of a GradScaler that is enabled, and by nobody else. It then says
        # in grad_scale and found_inf of this optimizer what it knows, and calls step(); before
        # PyTorch 2.0 it gives itself to step().
        self._scaler = sys._getframe(1).f_locals.get("self")
        return True

    def _unscale(self, scaler: Any) -> bool:
        """What an enabled GradScaler has step() do. Whether the step is skipped."""
        if scaler is not None:
            state = scaler._per_optimizer_states[id(self)]
            if state["stage"].name == "READY":
                scaler._check_inf_per_device(self)
            found = sum(float(of_device) for of_device in state["found_inf_per_device"].values())
            scale = None if state["stage"].name == "UNSCALED" else scaler._get_scale_async()
        elif getattr(self, "found_inf", None) is not None:
            found, scale = float(self.found_inf), self.grad_scale
            scaler, self._scaler = self._scaler, None
        else:
            return False
        skips = self._loop.agree_on_skip(bool(found))
        if skips:
            # Its update() makes the scale smaller, on all workers alike.
            state = getattr(scaler, "_per_optimizer_states", {}).get(id(self), {})
            for of_device in state.get("found_inf_per_device", {}).values():
                of_device.fill_(1.0)
        elif scale is not None:
            self._scale_gradients(1 / float(scale))
        return skips

    def _scale_gradients(self, factor: float) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)

    def step(self, closure: Optional[Callable[[], Any]] = None, **of_scaler: Any) -> Any:
        """Hands the gradients of this step over.

        By all-reduce it returns when the parameters are updated, else at once.
        Then no parameter of this optimizer has a gradient: ``zero_grad()`` before or after
        it is fine. A parameter without a gradient counts as one with zeros. If other steps
        may follow for the same batch, it returns with the parameters of the next one.
        """
        if of_scaler.keys() - {"grad_scaler"}:
            raise TypeError(f"optimizer.step(): it takes a closure, and not {', '.join(of_scaler)}")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._loop.finish_step(self, loss, self._unscale(of_scaler.get("grad_scaler")))
        return loss

    def state_dict(self) -> Dict[str, Any]:
        """As of the optimizer of torch.optim with the same rule, which can load it.

        The state of each parameter is float32 on the host. Between two steps the parameters
        become those that belong to it; in a step it is that of the step's parameters, and
        with SSP and ASP it may be a little younger. It is fetched with each call, by this
        worker alone: the others need not call it. After the last step, too, until
        ``job.epochs()`` ends; from then on the worker that has concluded the job has it.
        Where a worker learns only by asking for a step that there is none, with ``elastic=True``
        and in a job that ends early (``train { stop }``, ``slackline stop``), that holds from this answer on.
        A worker that works on after the last step for longer than ``limits { stall_timeout_ms
        save_timeout_ms }`` together is removed.

        Raises RuntimeError on another worker then, and in another thread or process than
        the script's.
        """
        packed = dict(super().state_dict())
        states = self._loop.optimizer_states()
        packed["state"] = {}
        groups = packed["param_groups"]
        packed["param_groups"] = [
            with_options_of_torch(rule, group) for group, rule in zip(groups, self._rules)
        ]
        for group, live, rule in zip(groups, self.param_groups, self._rules):
            for number, parameter in zip(group["params"], live["params"]):
                named = to_torch(rule, states[parameter]) if parameter in states else {}
                if named:
                    packed["state"][number] = named
        return packed

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Goes on with what ``state_dict()`` gave, here or of an optimizer of torch.optim.

        Before the first batch, on all workers: groups are each worker's, and of the state
        that of worker 0 counts, as its parameters do. Options other than lr, momentum and the
        first of betas have to be those of this optimizer. torch.optim numbers parameters in the order of its groups:
        of a model with frozen ones its optimizer has to be given those that are trained.

        Raises ValueError naming the parameter whose state does not fit, and RuntimeError
        after the first batch.
        """
        if not {"state", "param_groups"} <= state_dict.keys():
            raise ValueError("optimizer.load_state_dict(): state and param_groups are required")
        if len(state_dict["param_groups"]) != len(self.param_groups):
            raise ValueError(
                f"optimizer.load_state_dict(): {len(state_dict['param_groups'])} parameter groups; "
                f"{len(self.param_groups)} are required"
            )
        groups = [
            without_options_of_torch(rule, group)
            for group, rule in zip(state_dict["param_groups"], self._rules)
        ]
        had = [dict(group) for group in self.param_groups]
        super().load_state_dict({**state_dict, "state": {}, "param_groups": groups})
        try:
            self.step_options()
            given = state_dict["state"]
            states = {}
            for group, live in zip(groups, self.param_groups):
                for number, parameter in zip(group["params"], live["params"]):
                    states[parameter] = given.get(number, {})
            self._begin_with(states)
        except BaseException:
            for group, before in zip(self.param_groups, had):
                group.clear()
                group.update(before)
            raise

    def _begin_with(self, states: Dict[torch.nn.Parameter, Dict[str, Any]]) -> None:
        names = self._loop.model.names()
        self._loop.states.begin_with(
            {
                parameter: from_torch(
                    rule, names[parameter], parameter.shape, states.get(parameter, {})
                )
                for group, rule in zip(self.param_groups, self._rules)
                for parameter in group["params"]
            }
        )


def make_optimizer(
    loop: StepLoop,
    source: Source,
    rule: Optional[Rule],
    of_config: Optional[Rule],
    trained: Dict[torch.nn.Parameter, str],
    taken: Set[torch.nn.Parameter],
    factor: float,
) -> Optimizer:
    """``Job.optimizer()``, for parameters with these names; rates are multiplied with ``factor``.

    Those that are ``taken`` belong to another optimizer.
    """
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
    for group in groups:
        group["params"] = [p for p in group["params"] if p.requires_grad or p in trained]
        for parameter in group["params"]:
            if parameter not in trained:
                raise ValueError(
                    "job.optimizer(): a parameter of shape "
                    f"{list(parameter.shape)} is not one of job.model()'s"
                )
            if parameter in taken:
                raise ValueError(
                    f"job.optimizer(): '{trained[parameter]}' belongs to an optimizer that was given before; "
                    "each parameter has one"
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
    made = Optimizer(loop, [group for group, _ in kept], [r for _, r in kept])
    if isinstance(source, torch.optim.Optimizer) and source.state:
        made._begin_with(dict(source.state))
    return made


def _two_rules(of_config: Rule) -> str:
    return (
        f"job.optimizer(): the config has an optimizer, {of_config.text()}, and so has the script; "
        "leave one out"
    )

"""What optimizers keep of each parameter, under the names of torch.optim."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Tuple

import torch

from slackline._rules import FIXED, OF_SPEED, Rule


@dataclasses.dataclass
class TableState:
    """Of one parameter: how many updates it has had, and the rule's slots, float32 on the host."""

    updates: int
    slots: List[torch.Tensor]


def slot_names(rule: Rule) -> Tuple[str, ...]:
    """The names of a rule's slots, in their order, as torch.optim has them in a state."""
    if rule.name == "SGD":
        return ("momentum_buffer",) if rule.options["momentum"] != 0 else ()
    return ("sum",) if rule.name == "Adagrad" else ("exp_avg", "exp_avg_sq")


def to_torch(rule: Rule, state: TableState) -> Dict[str, Any]:
    """What torch.optim's optimizer has in ``state`` for a parameter; {} before its first update."""
    if state.updates == 0 or not slot_names(rule):
        return {}
    named: Dict[str, Any] = dict(zip(slot_names(rule), state.slots))
    if rule.name != "SGD":
        named["step"] = torch.tensor(float(state.updates))
    return named


def from_torch(rule: Rule, name: str, shape: torch.Size, named: Dict[str, Any]) -> TableState:
    """The other way, for the parameter ``name``. Raises ValueError for what the rule cannot go on with."""
    names = slot_names(rule)
    where = f"optimizer: the state of '{name}'"
    if not named:
        return TableState(0, [torch.zeros(shape) for _ in names])
    given = {key for key, value in named.items() if value is not None} - {"step"}
    if not given <= set(names):
        raise ValueError(
            f"{where} has {', '.join(sorted(given - set(names)))}; {rule.name} here has "
            f"{', '.join(names) or 'none'}"
        )
    # SGD counts nothing, and needs no count.
    updates = 1.0
    if rule.name != "SGD":
        if "step" not in named:
            raise ValueError(f"{where} has no step")
        updates = float(named["step"])
    if not (0 <= updates < 2**50 and updates == int(updates)):
        raise ValueError(f"{where} is of step {updates}; a whole number from 0 is required")
    slots = []
    for slot in names:
        value = named.get(slot)
        if value is None and rule.name == "SGD":  # As before the first step.
            slots.append(torch.zeros(shape))
            continue
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"{where} has no {slot}")
        if value.shape != shape:
            raise ValueError(
                f"{where} has a {slot} of shape {list(value.shape)}; {list(shape)} is required"
            )
        slots.append(value.detach().to("cpu", torch.float32, copy=True).contiguous())
    return TableState(int(updates), slots)


def with_options_of_torch(rule: Rule, group: Dict[str, Any]) -> Dict[str, Any]:
    """A group of a state_dict with the options besides, that torch.optim's class needs to go on."""
    of_torch = getattr(torch.optim, rule.name)([torch.zeros(1)], **rule.options)
    rest = {key: value for key, value in of_torch.param_groups[0].items() if key != "params"}
    return {**rest, **group}


def without_options_of_torch(rule: Rule, group: Dict[str, Any]) -> Dict[str, Any]:
    """The other way. Raises ValueError for an option that cannot run on servers."""
    missing = (rule.options.keys() | {"params"}) - group.keys()
    if missing:
        raise ValueError(
            f"optimizer.load_state_dict(): a group has no {', '.join(sorted(missing))}, which {rule.name} has"
        )
    kept = {}
    for option, value in group.items():
        if option in rule.options or option not in FIXED.keys() | OF_SPEED or option == "params":
            kept[option] = value
        elif option == "decoupled_weight_decay" and rule.name == "AdamW":
            continue
        elif option in FIXED and value != FIXED[option]:
            raise ValueError(
                f"optimizer.load_state_dict(): {option} is {value!r}; {FIXED[option]!r} is required here"
            )
    return kept

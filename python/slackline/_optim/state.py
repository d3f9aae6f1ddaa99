"""What optimizers keep of each parameter, under the names of torch.optim."""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import Any, Dict, List, Tuple

import torch

from slackline._optim.rules import FIXED, OF_SPEED, Rule, make_rule, no_such_rule


@dataclasses.dataclass
class TableState:
    """Of one parameter: how many updates it has had, and the rule's slots, float32 on the host."""

    updates: int
    slots: List[torch.Tensor]


_SLOTS = {
    "Adagrad": ("sum",),
    "Adadelta": ("square_avg", "acc_delta"),
    "Adam": ("exp_avg", "exp_avg_sq"),
    "AdamW": ("exp_avg", "exp_avg_sq"),
    "Adamax": ("exp_avg", "exp_inf"),
    "NAdam": ("exp_avg", "exp_avg_sq"),
    "RAdam": ("exp_avg", "exp_avg_sq"),
    "Lion": ("exp_avg",),
}
# They count nothing, and need no count.
_WITHOUT_COUNT = {"SGD", "Lion"}


def _mu_product(rule: Rule, updates: int) -> float:
    """What torch.optim's NAdam keeps after so many updates."""
    return rule.of_core.product_of_momenta(updates)


def slot_names(rule: Rule) -> Tuple[str, ...]:
    """The names of a rule's slots, in their order, as torch.optim has them in a state.

    Raises ValueError for a rule that is not there.
    """
    buffer = ("momentum_buffer",) if rule.options.get("momentum", 0) != 0 else ()
    if rule.name == "SGD":
        return buffer
    if rule.name == "RMSprop":
        return ("square_avg", *(("grad_avg",) if rule.options["centered"] else ()), *buffer)
    if rule.name not in _SLOTS:
        raise no_such_rule(rule.name)
    if rule.options.get("amsgrad"):
        return (*_SLOTS[rule.name], "max_exp_avg_sq")
    return _SLOTS[rule.name]


def to_torch(rule: Rule, state: TableState) -> Dict[str, Any]:
    """What torch.optim's optimizer has in ``state`` for a parameter; {} before its first update."""
    if state.updates == 0 or not slot_names(rule):
        return {}
    named: Dict[str, Any] = dict(zip(slot_names(rule), state.slots))
    if rule.name not in _WITHOUT_COUNT:
        named["step"] = torch.tensor(float(state.updates))
    if rule.name == "NAdam":
        named["mu_product"] = torch.tensor(_mu_product(rule, state.updates))
    return named


def from_torch(rule: Rule, name: str, shape: torch.Size, named: Dict[str, Any]) -> TableState:
    """The other way, for the parameter ``name``. Raises ValueError for what the rule cannot go on with."""
    names = slot_names(rule)
    where = f"optimizer: the state of '{name}'"
    if not named:
        return TableState(0, [torch.zeros(shape) for _ in names])
    given = {key for key, value in named.items() if value is not None} - {"step"}
    if rule.name == "NAdam":
        given -= {"mu_product"}
    if not given <= set(names):
        raise ValueError(
            f"{where} has {', '.join(sorted(given - set(names)))}; {rule.name} here has "
            f"{', '.join(names) or 'none'}"
        )
    updates = 1.0
    if rule.name == "SGD" and names and named.get("momentum_buffer") is None:
        updates = 0.0  # As before the first step.
    if rule.name not in _WITHOUT_COUNT:
        if "step" not in named:
            raise ValueError(f"{where} has no step")
        updates = float(named["step"])
    if not (0 <= updates < 2**50 and updates == int(updates)):
        raise ValueError(f"{where} is of step {updates}; a whole number from 0 is required")
    if rule.name == "NAdam":
        product = float(named.get("mu_product", math.nan))
        expected = _mu_product(rule, int(updates))
        if not math.isclose(product, expected, rel_tol=1e-4, abs_tol=1e-12):
            raise ValueError(
                f"{where} has a mu_product of {product} after {int(updates)} updates; {expected} is "
                "required, which is that of betas that were the same in all of them"
            )
    slots = []
    for slot in names:
        value = named.get(slot)
        if value is None and rule.name == "SGD":
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
    known = _group_of_torch(rule)
    unknown = {
        option
        for option, value in rule.options.items()
        if known and option not in known and value == _default(rule, option)
    }
    return {**known, **{key: value for key, value in group.items() if key not in unknown}}


def _default(rule: Rule, option: str) -> Any:
    return make_rule(rule.name).options[option]


def _group_of_torch(rule: Rule) -> Dict[str, Any]:
    """The options of the rule's class in this PyTorch, with the rule's values; {} without such a class."""
    of_name = getattr(torch.optim, rule.name, None)
    if of_name is None:
        return {}
    # Options that this PyTorch does not know are at their defaults, or the script has given a rule.
    there = inspect.signature(of_name).parameters
    options = {option: value for option, value in rule.options.items() if option in there}
    group = of_name([torch.zeros(1)], **options).param_groups[0]
    return {key: value for key, value in group.items() if key != "params"}


def without_options_of_torch(rule: Rule, group: Dict[str, Any]) -> Dict[str, Any]:
    """The other way. Raises ValueError for an option that cannot run on servers."""
    # Flags that another PyTorch did not have yet are off.
    off = {option for option, value in rule.options.items() if value is False}
    missing = (rule.options.keys() | {"params"}) - off - group.keys()
    if missing:
        raise ValueError(
            f"optimizer.load_state_dict(): a group has no {', '.join(sorted(missing))}, which {rule.name} has"
        )
    kept = {option: False for option in off}
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

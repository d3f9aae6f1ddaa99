"""A second module with the state of the first, for evaluations beside the training."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Tuple

import torch


def copy_of(module: torch.nn.Module) -> Tuple[torch.nn.Module, List[str]]:
    """A copy, and the names of attributes that both modules have in common.

    Where ``copy.deepcopy()`` can copy the whole, there are none. Else each attribute is copied
    by itself. A tensor that was computed, such as one that forward keeps, becomes a constant; what
    cannot be copied, such as a lock, is shared.
    """
    try:
        return copy.deepcopy(module), []
    except Exception:
        return _ByParts().copy(module)


class _ByParts:
    def __init__(self) -> None:
        self._memo: Dict[int, Any] = {}  # As deepcopy() has it: copies by id.
        self._shared: List[str] = []

    def copy(self, module: torch.nn.Module) -> Tuple[torch.nn.Module, List[str]]:
        states: List[Tuple[str, torch.nn.Module, Dict[str, Any]]] = []
        # First all modules, so that whatever refers to one refers to its copy.
        for name, part in module.named_modules():
            if id(part) in self._memo:
                continue
            if hasattr(type(part), "__deepcopy__") and self._whole(part):
                continue
            new, state = _empty(part)
            self._memo[id(part)] = new
            states.append((name, new, state))
        for tensor in [*module.parameters(), *module.buffers()]:
            if id(tensor) not in self._memo:
                self._memo[id(tensor)] = self._value(tensor, "")
        for name, new, state in states:
            prefix = f"{name}." if name else ""
            copied = {key: self._value(value, prefix + key) for key, value in state.items()}
            if hasattr(new, "__setstate__"):
                new.__setstate__(copied)
            else:
                new.__dict__.update(copied)
        return self._memo[id(module)], self._shared

    def _whole(self, value: Any) -> bool:
        before = len(self._memo)
        try:
            self._memo[id(value)] = copy.deepcopy(value, self._memo)
        except Exception:
            while len(self._memo) > before:  # Copies without content.
                self._memo.popitem()
            return False
        return True

    def _value(self, value: Any, name: str) -> Any:
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if id(value) in self._memo:
            return self._memo[id(value)]
        if self._whole(value):
            return self._memo[id(value)]
        if isinstance(value, torch.Tensor):
            made: Any = value.detach().clone()
        elif isinstance(value, dict):
            made = copy.copy(value)
            for key, item in value.items():
                made[key] = self._value(item, f"{name}[{key!r}]")
        elif type(value) in (list, tuple):
            made = type(value)(self._value(item, f"{name}[{i}]") for i, item in enumerate(value))
        else:
            made = value
            self._shared.append(f"{name} (a {type(value).__name__})")
        self._memo[id(value)] = made
        return made


def _empty(part: torch.nn.Module) -> Tuple[torch.nn.Module, Dict[str, Any]]:
    """A module without content, and the content that it gets."""
    try:
        made, arguments, state = part.__reduce_ex__(4)[:3]  # type: ignore[misc]
        if isinstance(state, dict):
            return made(*arguments), state
    except Exception:  # Parametrised modules refuse it.
        pass
    return type(part).__new__(type(part)), dict(vars(part))

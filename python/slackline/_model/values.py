"""Whether a script has changed the values of parameters."""

from __future__ import annotations

from typing import Dict, List, Optional

import torch

from slackline._model.tables import Tables

# In the first steps all elements of a parameter are compared, and then in one of so many.
_FIRST_STEPS = 4
_STEPS_BETWEEN = 64
# In one of so many steps this many elements are,
_STEPS_BETWEEN_SOME = 4
_ELEMENTS = 16
# others each time, for so many times.
_TURNS = 8
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def looks_at_all(step: int) -> bool:
    """Whether the step is one in which all elements are compared."""
    return step < _FIRST_STEPS or step % _STEPS_BETWEEN == 0


def total(parameter: torch.Tensor) -> int:
    """A number that mostly changes with any bit of the values, the same on all hosts."""
    flat = _flat(parameter)
    return int(flat.view(_WORDS[flat.element_size()]).sum(dtype=torch.int64))


def totals(tables: Tables) -> Dict[str, int]:
    """The total() of each table, by name."""
    return {table.name: total(table.values) for table in tables.tables}


class Values:
    """What the parameters were at one moment, and which of them are something else now.

    PyTorch's counts of versions do not tell: ``parameter.data`` has a count of its own. To
    compare all values would take a few percent of a step, so most steps that look look at some
    elements. Parameters on a GPU, which would have to be waited for, are compared only in steps
    that look at all.
    """

    def __init__(self, tables: Tables) -> None:
        self._parameters = [table.parameter for table in tables.tables]
        self._on_host = all(p.device.type == "cpu" for p in self._parameters)
        self._groups: List[List[int]] = []  # Parameters of one type each.
        # By turn and group: views of the elements that are looked at.
        self._elements: List[List[List[torch.Tensor]]] = []
        self._addresses: List[int] = []
        self._turn = 0
        self._noted: Optional[List[torch.Tensor]] = None
        self._totals: Optional[List[int]] = None

    def note(self, step: int, whole: bool = False) -> None:
        """They are now as they should be in the step. ``whole``: all elements are compared."""
        self.forget()
        if whole or looks_at_all(step):
            self._totals = [total(parameter) for parameter in self._parameters]
        if self._on_host and (step < _FIRST_STEPS or step % _STEPS_BETWEEN_SOME == 0):
            if self._addresses != [parameter.data_ptr() for parameter in self._parameters]:
                self._choose()
            self._turn = (self._turn + 1) % _TURNS
            self._noted = self._look()

    def forget(self) -> None:
        """Nothing was noted."""
        self._noted, self._totals = None, None

    def changed(self) -> Optional[int]:
        """The first parameter that has changed since ``note()``; None if none has, as far as is known."""
        if self._noted is not None and not all(map(torch.equal, self._noted, self._look())):
            return self._find(self._noted)
        if self._totals is not None:
            for index, (parameter, noted) in enumerate(zip(self._parameters, self._totals)):
                if total(parameter) != noted:
                    return index
        return None

    def _choose(self) -> None:
        self._addresses = [parameter.data_ptr() for parameter in self._parameters]
        of_type: Dict[torch.dtype, List[int]] = {}
        for index, parameter in enumerate(self._parameters):
            of_type.setdefault(parameter.dtype, []).append(index)
        self._groups = list(of_type.values())
        self._elements = [
            [[_some(self._parameters[index], turn) for index in group] for group in self._groups]
            for turn in range(_TURNS)
        ]

    def _look(self) -> List[torch.Tensor]:
        return [_as_words(torch.cat(views)) for views in self._elements[self._turn]]

    def _find(self, noted: List[torch.Tensor]) -> Optional[int]:
        for group, views, of_group in zip(self._groups, self._elements[self._turn], noted):
            parts = of_group.split([view.numel() for view in views])
            for index, view, part in zip(group, views, parts):
                if not torch.equal(_as_words(view.clone()), part):
                    return index
        return None


def _some(parameter: torch.Tensor, turn: int) -> torch.Tensor:
    flat = _flat(parameter)
    # An odd distance, so that not all elements are of one column.
    distance = max(flat.numel() // _ELEMENTS, 1) | 1
    return flat[turn * distance // _TURNS :: distance]


def _as_words(flat: torch.Tensor) -> torch.Tensor:
    # NaN is not equal to itself as a number.
    return flat.view(_WORDS[flat.element_size()])


def _flat(parameter: torch.Tensor) -> torch.Tensor:
    """All elements in one dimension, in the parameter's memory if they lie there without gaps."""
    data = parameter.detach()
    if data.is_contiguous():
        return data.view(-1)
    order = sorted(range(data.dim()), key=data.stride, reverse=True)
    return data.permute(order).reshape(-1)

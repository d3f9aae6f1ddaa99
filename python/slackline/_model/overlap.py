"""Gradients that leave while backward still runs."""

from __future__ import annotations

import functools
from typing import Any, Callable, List, Optional, Set, Tuple

import torch

from slackline._model.guarded import Guarded
from slackline._model.tables import Tables

# Steps that have to show that gradients are complete when backward makes them.
_STEPS_WATCHED = 3
# Gradients that are guarded in each step from then on, others each time: a guard costs 6 us.
_GUARDED = 1


class Overlap:
    """Sees each gradient as backward makes it, and hands it over where that is safe.

    It is safe if nobody changes a gradient between backward and the end of the
    step: no second backward, no clipping. The first steps show whether a script
    does that, also where a change leaves all values as they are. From then on a
    change of a gradient that has left is an error, because what is changed while it
    is sent would be wrong without a sign: in each step PyTorch's counts of changes
    tell of all gradients, and one, another each time, is guarded, so that the call
    itself raises. A loop over all gradients meets it at once.
    """

    def __init__(
        self,
        tables: Tables,
        hand_over: Callable[[int], None],
        made: Callable[[int], None],
        wanted: Optional[bool],
    ) -> None:
        """``made`` hears of each gradient that backward makes in a step."""
        self._tables = tables
        self._hand_over = hand_over
        self._on_made = made
        self._counts = [0] * len(tables)
        # Of each gradient when backward made it: itself, its count of changes, and what the
        # script has been given in its place.
        self._made_of: List[Optional[Tuple[torch.Tensor, int, torch.Tensor]]] = [None] * len(tables)
        self._guarded: Set[int] = set()  # In this step.
        self._turn = 0
        self._handed = [False] * len(tables)
        self._wanted = wanted
        self._active = wanted is True
        self._watched = 0 if wanted is None else _STEPS_WATCHED
        self._touched = False  # The script would change a gradient in this step.
        self._open = False
        self._nodes: List[Any] = []
        for index, table in enumerate(tables.tables):
            self._register(index, table.parameter)
        self._told = [functools.partial(self._would_change, index) for index in range(len(tables))]
        self._told_late = [functools.partial(self._changes_late, t.name) for t in tables.tables]

    def _register(self, index: int, parameter: torch.nn.Parameter) -> None:
        register = getattr(parameter, "register_post_accumulate_grad_hook", None)
        if register is not None:
            register(lambda _: self._made(index))
            return
        # Before PyTorch 2.1: the node that adds to the gradient, which lives as
        # long as somebody holds it.
        with torch.enable_grad():
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        node.register_hook(lambda *_: self._made(index))
        self._nodes.append(node)

    def never(self, why: str) -> None:
        """Gradients leave in ``step()`` from now on. Raises ValueError if the script wants it otherwise."""
        if self._wanted:
            raise ValueError(f"job.optimizer(overlap=True): {why} gradients leave in step(); leave overlap out")
        self._active, self._watched = False, _STEPS_WATCHED

    def begin_step(self) -> None:
        """A step is open from now on."""
        self._open = True
        self._touched = False
        count = len(self._counts)
        self._counts = [0] * count
        if self._active:
            self._guarded = {(self._turn + i) % count for i in range(_GUARDED)}
            self._turn = (self._turn + _GUARDED) % count

    def any(self) -> bool:
        """Whether backward has made any gradient in this step."""
        return any(self._counts)

    def _made(self, index: int) -> None:
        if not self._open:
            return
        self._on_made(index)
        self._counts[index] += 1
        table = self._tables.tables[index]
        if self._counts[index] > 1 and self._handed[index]:
            raise RuntimeError(
                f"'{table.name}' has a second gradient in one step, and the first is on its way: "
                "give job.optimizer(overlap=False), and job.loader(accumulate=N) for gradients that "
                "add up"
            )
        self._made_of[index] = None
        if not self._active and self._watched == _STEPS_WATCHED:
            return
        gradient = table.parameter.grad
        if gradient is None:  # A hook of the script's has taken it.
            return
        # With create_graph=True gradients are computed with, and mostly changed later.
        if gradient.is_sparse or gradient.requires_grad or self._counts[index] > 1:
            return
        seen = gradient
        if self._active:
            self._hand_over(index)
            self._handed[index] = True
            if index in self._guarded:
                seen = Guarded.of(gradient, self._told_late[index], True)
        else:
            seen = Guarded.of(gradient, self._told[index], False)
        if seen is not gradient:
            table.parameter.grad = seen
        self._made_of[index] = (gradient, gradient._version, seen)

    def _would_change(self, index: int, call: str) -> None:
        self._touched = True

    def _changes_late(self, name: str, call: str) -> None:
        raise RuntimeError(
            f"the gradient of '{name}' was changed after backward, by {call}, when it was on its "
            "way: give job.optimizer(overlap=False)"
        )

    def end_step(self, used: bool = True) -> List[bool]:
        """Which gradients are handed over. Raises RuntimeError if one has changed since.

        Unless they are ``used``, they are not the step's, but add up, or are forgotten: then
        gradients of this script do not leave before ``step()``, and it is an error if one has.
        """
        self._open = False
        if not used and any(self._handed):
            name = self._tables.tables[self._handed.index(True)].name
            raise RuntimeError(
                f"the gradient of '{name}' was on its way, and optimizer.step() was not called for its batch, or "
                "skips it: give job.optimizer(overlap=False)"
            )
        untouched = not self._touched and (used or not self.any())
        for index, table in enumerate(self._tables.tables):
            if self._counts[index] == 0:
                continue
            made, self._made_of[index] = self._made_of[index], None
            same = False
            if made is not None and table.parameter.grad is made[2]:
                gradient, version, seen = made
                same = self._counts[index] == 1 and gradient._version == version
                if seen is not gradient:
                    table.parameter.grad = gradient
            untouched = untouched and same
            if self._handed[index] and not same:
                raise RuntimeError(
                    f"the gradient of '{table.name}' was changed after backward, when it was on its "
                    "way: give job.optimizer(overlap=False)"
                )
        handed, self._handed = self._handed, [False] * len(self._handed)
        if self._watched < _STEPS_WATCHED:
            self._watched = self._watched + 1 if untouched else _STEPS_WATCHED
            self._active = untouched and self._watched == _STEPS_WATCHED
        return handed

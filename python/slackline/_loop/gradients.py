"""The gradients of a step: which leave, when, and with which options."""

from __future__ import annotations

from typing import Any, List, Optional, Set, Tuple

import torch

from slackline._loop import agreement
from slackline._loop.model import Model
from slackline._loop.words import warn
from slackline._loop.worlds import World
from slackline._model.overlap import Overlap
from slackline._model.tables import Table
from slackline._optim.groups import Optimizers, RuledGroups


class Gradients:
    """Hands gradients over, during backward or in ``step()``, each to the rule of its group."""

    def __init__(
        self, world: World, model: Model, optimizers: Optimizers, overlap: Optional[bool]
    ) -> None:
        self._world = world
        self._model = model
        self._optimizers = optimizers
        self.overlap = Overlap(
            model.tables,
            self._hand_over,
            model.arrivals.gradient_made,
            overlap if world.sends else False,
        )
        self._owner: List[RuledGroups] = []  # The optimizer of each table.
        self.groups: List[int] = []  # The group of each table, among those of all optimizers.
        self.rules: List[str] = []  # The rule of each table, as a config's optimizer has it.
        self._sent_with: Optional[List[Any]] = None  # The options of all groups when the step's first gradient left.
        self._never_had: Set[int] = set()  # Tables that have had no gradient yet.
        self._zeros_said = False
        self._none_said = False

    def assign(self) -> None:
        """From now on each table has its group. All have one."""
        group_of = {
            parameter: index
            for index, group in enumerate(self._optimizers.param_groups)
            for parameter in group["params"]
        }
        tables = self._model.tables.tables
        self.groups = [group_of[table.parameter] for table in tables]
        owner = [one for one in self._optimizers.each for _ in one.param_groups]
        self._owner = [owner[group] for group in self.groups]
        rules = self._optimizers.rules
        self.rules = [rules[group].text() for group in self.groups]
        self._never_had = set(range(len(tables)))

    def end_step(self, optimizer: Optional[RuledGroups]) -> Tuple[List[Any], List[bool], List[int]]:
        """By table: its options and whether it has left; and the tables that ``optimizer`` does not step.

        Raises RuntimeError if something was changed while gradients were on their way.
        """
        by_group = self._optimizers.step_options()
        sent_with, self._sent_with = self._sent_with, None
        if sent_with is not None and sent_with != by_group:
            raise RuntimeError(
                "a learning rate or a momentum was changed between backward and optimizer.step(), when gradients "
                "were on their way: let the scheduler step after the optimizer, or give "
                "job.optimizer(overlap=False)"
            )
        options = [by_group[group] for group in self.groups]
        handed = self.overlap.end_step(optimizer is not None)
        skipped = [
            index
            for index, (table, owner) in enumerate(zip(self._model.tables.tables, self._owner))
            if owner is not optimizer or (table.parameter.grad is None and not table.parameter.requires_grad)
        ]
        return options, handed, skipped

    def take(
        self, step: int, handed: List[bool], options: List[Any], skipped: Set[int]
    ) -> List[Optional[torch.Tensor]]:
        """Those that have not left. Alone there is none where the script has made none."""
        tables = self._model.tables.tables
        wanted = [index for index in range(len(tables)) if index not in skipped]
        has_none = not any(handed[i] or tables[i].parameter.grad is not None for i in wanted)
        if wanted and has_none:
            self._say_none(step)
        if not self._world.sends:
            return [
                None if index in skipped or t.parameter.grad is None else t.gradient()
                for index, t in enumerate(tables)
            ]
        gradients: List[Optional[torch.Tensor]] = []
        missing = []
        for index, table in enumerate(tables):
            if handed[index] or index in skipped:
                gradients.append(None)
                continue
            if table.parameter.grad is None:
                missing.append(index)
            gradients.append(table.gradient())
        if self._never_had:
            self._never_had.intersection_update({*missing, *skipped})
        if missing and not has_none:  # Else it is said already.
            rules = self._optimizers.rules
            self._say_zeros(
                step,
                [
                    tables[index]
                    for index in missing
                    if options[index].rate_factor != 0
                    and not rules[self.groups[index]].ignores_zeros(moves=index not in self._never_had)
                ],
            )
        return gradients

    def forget(self, optimizer: Optional[RuledGroups]) -> None:
        """The parameters of the optimizer have none any more."""
        for table, owner in zip(self._model.tables.tables, self._owner):
            if owner is optimizer:
                table.parameter.grad = None

    def _say_none(self, step: int) -> None:
        """A step without any gradient, as of a script that forgets backward."""
        if not self._none_said:
            self._none_said = True
            warn(
                self._world.rank,
                f"step {step}: no parameter has a gradient; a script calls loss.backward() after zero_grad() "
                "and before optimizer.step()",
            )

    def _say_zeros(self, step: int, without: List[Table]) -> None:
        """Parameters without gradient that the optimizer changes all the same."""
        if without and not self._zeros_said:
            self._zeros_said = True
            warn(
                self._world.rank,
                f"step {step}: no gradient of {agreement.some_names([t.name for t in without])}. It counts "
                "as zeros, so momentum and weight decay still change the parameter, which torch.optim leaves "
                "as it is; give it a parameter group without them, or freeze it before job.model()",
            )

    def _hand_over(self, index: int) -> None:
        """A gradient during backward, with the options that its group has then."""
        if self._sent_with is None:
            self._sent_with = self._optimizers.step_options()
        options = self._sent_with[self.groups[index]]
        with self._model.arrivals.lock:
            self._world.gradient(index, self._model.tables.tables[index].gradient(), options)

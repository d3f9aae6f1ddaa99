"""States of the optimizers: what a job begins with, has, and ended with."""

from __future__ import annotations

from typing import Dict, List, Optional

import torch

from slackline._loop.gathers import Gathers
from slackline._loop.gradients import Gradients
from slackline._loop.model import Model
from slackline._loop.place import Place
from slackline._loop.worlds import World
from slackline._optim.groups import Optimizers
from slackline._optim.state import TableState, from_torch


class States:
    """Asks where the arithmetic is done, on the servers or here."""

    def __init__(self, world: World, place: Place, gathers: Gathers) -> None:
        self._world = world
        self._place = place
        self._gathers = gathers
        self._first: Dict[torch.nn.Parameter, TableState] = {}  # What the script has loaded.
        self._last: Optional[List[TableState]] = None  # Of each table, on the worker that has concluded the job.

    def begin_with(self, states: Dict[torch.nn.Parameter, TableState]) -> None:
        """Raises RuntimeError after the first batch."""
        if self._place.begun:
            raise RuntimeError(
                "optimizer.load_state_dict(): the job has begun; load before the first batch"
            )
        self._first.update(states)

    def first(
        self, model: Model, gradients: Gradients, optimizers: Optimizers
    ) -> Optional[List[TableState]]:
        """By table, what the job begins with; None if all optimizers are new."""
        states = list(self._first.values())
        if all(state.updates == 0 and not any(map(torch.any, state.slots)) for state in states):
            return None
        rules = optimizers.rules
        return [
            self._first.get(table.parameter)
            or from_torch(rules[group], table.name, table.values.shape, {})
            for table, group in zip(model.tables.tables, gradients.groups)
        ]

    def fetch_parameters(self, model: Model) -> None:
        """Between two steps, of a worker whose next one begins with what the servers have."""
        model.check_values(self._place.all_done)
        self._world.fetch_parameters()
        model.tables.refresh()
        model.note_values(self._place.steps_done)

    def fetch(self, model: Model) -> Optional[List[TableState]]:
        """By table; None if the job has finished. Between two steps the parameters become its, too."""
        if not self._world.sends:  # Here both are, of one moment, and after the end.
            return self._world.optimizer_state()
        between = self._place.step is None and not self._place.over
        if between:
            model.check_values(self._place.all_done)
        states = self._world.optimizer_state()
        if self._place.step is None:
            model.tables.refresh()
        if between:
            model.note_values(self._place.steps_done)
        return states

    def keep_last(self, model: Model) -> None:
        """The job is about to end on this worker, which concludes it."""
        if self._world.sends:
            self._last = self.fetch(model)

    def by_parameter(self, model: Model) -> Dict[torch.nn.Parameter, TableState]:
        """Empty before the job has begun, if it begins with none."""
        if not self._gathers.in_script_thread():
            raise RuntimeError(
                "optimizer.state_dict(): it is called by the script's main thread, in its own process"
            )
        if not self._place.begun:
            return self._first
        states = self._last if self._place.over and self._world.sends else self.fetch(model)
        if states is None:
            raise RuntimeError(
                f"optimizer.state_dict(): the job is over, and worker {self._world.rank} is not the one that "
                "concluded it; call it on that one (mostly worker 0), or before job.epochs() ends"
            )
        return {table.parameter: state for table, state in zip(model.tables.tables, states)}

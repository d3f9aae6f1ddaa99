"""The model of a job: its parameters, and whether the script or the job may change them."""

from __future__ import annotations

from typing import Any, Dict, Optional

import torch

from slackline._tensors import devices
from slackline._loop.worlds import World
from slackline._model.arrivals import Arrivals
from slackline._model.tables import Tables
from slackline._model.values import Values, looks_at_all


class Model:
    """What ``Job.model()`` was given."""

    def __init__(self, module: torch.nn.Module, world: World, overlap: Optional[bool]) -> None:
        """Raises ValueError naming a parameter that cannot be trained."""
        self.tables = Tables(module, devices.CPU if world.through_host else world.device)
        self.values = Values(self.tables)  # What the job has written, to see changes.
        self.arrivals = Arrivals(self.tables, world.wait_for, overlap if world.sends else False)
        # Whether all workers do the step that was taken last together, with the same gradients; and whether they
        # have the model after it, all the same one, rather than the servers: the next step begins with it.
        self.is_done_together = False
        self.keeps_model = False

    def names(self) -> Dict[torch.nn.Parameter, str]:
        """Of the parameters that are trained."""
        return {table.parameter: table.name for table in self.tables.tables}

    def take(self, task: Any) -> None:
        """A step is there. Its parameters are too, unless they come table by table."""
        kept = self.keeps_model
        self.is_done_together = task.is_done_together
        self.keeps_model = task.keeps_model
        if kept and not self.keeps_model:
            self.tables.count_anew()
        if not task.by_table:
            self.tables.refresh()
        self.arrivals.take(task.by_table)

    def note_values(self, step: int, whole: bool = False) -> None:
        """Remembers what the parameters of a step are, to see whether the script changes them.

        ``whole``: the script may do something to them that it does in few places.
        """
        if self.keeps_model:
            return
        if looks_at_all(step):
            self.arrivals.wait_for_all()
        if not self.arrivals.missing:
            self.values.note(step, whole)

    def check_values(self, all_done: bool) -> None:
        """The script may have changed parameters. Raises RuntimeError naming one, if they are the servers'.

        ``all_done``: no step follows in which changes that PyTorch counts are seen.
        """
        if self.keeps_model:
            self.tables.take_over()
            return
        if all_done:
            self.tables.check_unchanged()
        changed = self.values.changed()
        self.values.forget()
        if changed is not None:
            self.tables.refuse_change(changed)

    def end_step(self, step: int) -> None:
        """The script has computed its gradients. Raises RuntimeError for what it has changed or missed."""
        by_table = bool(self.arrivals.missing)
        self.arrivals.end_step()
        self.tables.check_frozen()
        if self.keeps_model:
            self.tables.take_over()
        else:
            self.tables.check_unchanged()
            if by_table:
                self.note_values(step)

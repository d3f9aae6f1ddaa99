"""Evaluations of the model: beside the training, and of what was trained."""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, List, Mapping, Optional, Union

import torch

from slackline import _core
from slackline._tensors import devices
from slackline._loop.words import number, warn
from slackline._loop.worlds import World
from slackline._model.copies import copy_of
from slackline._model.tables import Tables

Scores = Union[None, float, torch.Tensor, Mapping[str, Union[float, torch.Tensor]]]
Function = Callable[[torch.nn.Module], Scores]
# An evaluation that takes longer says so this often, in seconds.
_PROGRESS_SECONDS = 2.0
# For an evaluation that nobody waits for any more, when the process ends.
_PATIENCE_SECONDS = 10.0


class Evaluations:
    """Runs the script's function with a copy of the model, one evaluation at a time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.function: Optional[Function] = None
        self._asked: Optional[Any] = None  # What the job wants while there is no function.
        self._thread: Optional[threading.Thread] = None
        self._error: Optional[BaseException] = None
        self._copy: Optional[Tables] = None  # The copy that the last evaluation computes with.
        self._shared_said = False  # That such a copy has something in common with the model.
        self.final_scores: Optional[Dict[str, float]] = None

    def ask(self, task: Any, tables: Tables, rules: List[str]) -> None:
        """The job wants one. ``rules`` of the tables, as texts."""
        if self.function is None:
            self._asked = task
        else:
            self._start(task, self.function, tables, rules)

    @property
    def asked(self) -> bool:
        """Whether the job wants one, and there was no function."""
        return self._asked is not None

    def start_asked(self, tables: Tables, rules: List[str]) -> None:
        """That which the job wants, now that there is a function."""
        task, self._asked = self._asked, None
        self.ask(task, tables, rules)

    def evaluate_final(self, tables: Tables, rules: List[str]) -> None:
        """Of the trained model, if there is a function. The job waits for it."""
        if self.function is None:
            return
        self.wait()
        model = self._copy_of_model(tables, rules)
        with torch.no_grad():
            for mine, theirs in zip(tables.tables, model.tables):  # Those of the same name.
                theirs.parameter.copy_(mine.parameter)
        done = threading.Event()

        def report() -> None:
            while not done.wait(_PROGRESS_SECONDS):
                try:
                    self._world.report_progress()
                except _core.JobError:  # The end comes by itself.
                    return

        progress = threading.Thread(target=report, name="slackline-progress", daemon=True)
        progress.start()
        try:
            self.final_scores = _run(self.function, model.module)
        finally:
            done.set()
            progress.join()

    def wait(self) -> None:
        """Until none runs."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wait_a_little(self) -> None:
        """The same, when the process ends."""
        if self._thread is not None:
            self._thread.join(_PATIENCE_SECONDS)

    def raise_error(self) -> None:
        """What the function has raised beside the training."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _copy_of_model(self, tables: Tables, rules: List[str]) -> Tables:
        """A second module, with all but the trained parameters as it is in the first now.

        Raises RuntimeError naming a parameter that is not what it was at ``job.model()``.
        """
        tables.check_module()
        module, shared = copy_of(tables.module)
        if shared and not self._shared_said:
            self._shared_said = True
            warn(
                self._world.rank,
                f"job.evaluate(): {'; '.join(shared[:3])} cannot be copied, so the model that is trained and its "
                "copy that is evaluated have it in common",
            )
        self._copy = Tables(module, names=[table.name for table in tables.tables])
        copied = {table.name: table.values.shape for table in self._copy.tables}
        for table in tables.tables:
            if copied.get(table.name) != table.values.shape:
                raise RuntimeError(
                    f"job.evaluate(): parameter '{table.name}' is not in the copy of the model that is evaluated, or "
                    "has another shape there; let copy.deepcopy() of the model, with what its classes define for it, "
                    "give one with the same parameters"
                )
        self._copy.bind(rules)
        return self._copy

    def _start(self, task: Any, function: Function, tables: Tables, rules: List[str]) -> None:
        self.wait()
        self.raise_error()
        model = self._copy_of_model(tables, rules)
        model.load(task)
        model.set_companions(tables.companions())
        self._thread = threading.Thread(
            target=self._evaluate_copy,
            args=(task, function, model, devices.like_here(self._world.device)),
            name="slackline-evaluation",
            daemon=True,
        )
        self._thread.start()

    def _evaluate_copy(self, task: Any, function: Function, model: Tables, device: Any) -> None:
        if self._world.threads:
            torch.set_num_threads(self._world.threads)
        try:
            with device:
                scores = _run(function, model.module)
            self._world.evaluated(task, scores, model)
        except BaseException as error:  # The main thread raises it.
            self._error = error


def _run(function: Function, module: torch.nn.Module) -> Dict[str, float]:
    module.eval()
    with torch.no_grad():
        scores = function(module)
    if scores is None:
        return {}
    if not isinstance(scores, Mapping):
        scores = {"accuracy": scores}
    figures = {name: number(name, value) for name, value in scores.items()}
    accuracy = figures.get("accuracy", 0.0)
    if not 0 <= accuracy <= 1:
        raise ValueError(
            f"job.evaluate(): the accuracy is {accuracy}, it has to be in [0, 1]; return a dict to "
            "give other figures their names"
        )
    return figures

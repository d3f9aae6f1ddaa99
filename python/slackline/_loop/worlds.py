"""Where the work of a job is done: with others, or in this process alone."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any, Dict, List, Optional, Protocol, Tuple, Union

import torch

from slackline import _core
from slackline._tensors import devices
from slackline._loop import stacks
from slackline._optim.state import TableState
from slackline._model.tables import Tables


@dataclasses.dataclass
class Work:
    """How long a job is."""

    steps_total: int
    steps_per_epoch: int
    batch_size: int  # Of this worker, in a step.
    data: str
    data_hash: str  # Of the examples; empty: it is not known.
    # Elastic sampling: examples of an epoch, and in all. Steps are then those of
    # workers that keep pace.
    elastic: Optional[Tuple[int, int]] = None
    by_table: bool = False  # Steps may begin before all parameters have come.


class World(Protocol):
    """What a step loop has of it. What has a body here is of no effect where nobody else is."""

    sends: bool  # Gradients go elsewhere.
    job: str
    rank: int
    world_size: int
    threads: Optional[int]
    seed: int
    epochs: Optional[float]
    max_steps: Optional[int]
    mode: str
    steps_together: bool  # All workers do the same steps at the same time, whatever becomes of the job.
    out: str
    data_dir: str
    optimizer: Optional[Tuple[str, Dict[str, Union[bool, float]]]]  # Its block in the config, and the block's fields.
    gather_bytes_max: int
    device: torch.device
    through_host: str  # Why parameters on a GPU go through copies on the host; empty: they do not.

    def begins_in_epoch(self) -> int:
        """Before open(): of a worker that comes later, or of a job that goes on from a checkpoint."""
        return 0

    def open(self, tables: Tables, rules: List[str], work: Work) -> None: ...
    def begin_with(self, states: List[TableState]) -> None: ...

    def next(
        self,
    ) -> "Union[_core.Step, _core.Evaluation, _core.Conclusion, _core.Keep, _core.Restore, None]": ...

    def kept(self, cut: int, state: Optional[bytes], error: str) -> None:
        """The script's state for a checkpoint, or why there is none."""

    def wait_for(self, table: int) -> None:
        """Returns when the table has the parameters of the step."""

    def loaded(self, seconds: float) -> None:
        """So much of the step's time went into getting its batch."""

    def gradient(self, table: int, gradient: torch.Tensor, options: _core.StepOptions) -> None:
        """During backward, if it leaves then."""

    def finish_step(
        self,
        gradients: List[Optional[torch.Tensor]],
        options: List[_core.StepOptions],
        skipped: List[int],
    ) -> bool:
        """``skipped``: tables whose optimizer does nothing. False if the step is lost, and comes again."""
        ...

    def gather(self, place: int, number: int, data: bytes) -> Optional[List[Tuple[int, bytes]]]: ...

    def optimizer_state(self) -> Optional[List[TableState]]:
        """By table; None if the job has finished. Between two steps the tables become its, too."""
        ...

    def fetch_parameters(self) -> None:
        """Between two steps the tables become the job's, unless it has finished."""

    def log(self, name: str, value: float) -> None: ...
    def evaluated(self, task: "_core.Evaluation", scores: Dict[str, float], tables: Tables) -> None: ...
    def conclude(self, train: Dict[str, float], test: Dict[str, float]) -> None: ...

    def report_progress(self) -> None:
        """What the script does takes long, and has come further."""

    def fail(self, why: str, trace: str, ends_job: bool) -> None:
        """The script has failed."""

    @property
    def may_suspend(self) -> bool:
        """Whether suspend() makes a checkpoint."""
        return False

    def suspend(self, reason: str) -> None:
        """The process has to end soon."""

    def interrupt(self, reason: str) -> None: ...

    def close(self) -> None:
        """Nothing is called after it."""


class Joined(World):
    """A worker among others: the session of the C++ library."""

    sends = True

    def __init__(
        self,
        cluster: str,
        index: int,
        out: str,
        data_dir: str,
        mode: str = "",
        health_port: Optional[int] = None,
        key: str = "",
    ) -> None:
        program = sys.argv[0] or "python"
        self._worker = _core.Worker(cluster, index, out, data_dir, program, mode, health_port, key)
        if self._worker.shows_health:
            # Children that outlive this process would keep its port.
            os.register_at_fork(after_in_child=self._worker.forget_health)
        stacks.show(self._worker)
        worker = self._worker
        self.job = worker.job
        self.rank = worker.rank
        self.world_size = worker.world_size
        self.threads = worker.threads
        self.seed = worker.seed
        self.epochs = worker.epochs
        self.max_steps = worker.max_steps
        self.mode = worker.mode
        self.steps_together = worker.steps_together
        self.out = out
        self.data_dir = data_dir
        self.optimizer = worker.optimizer
        self.gather_bytes_max = _core.gather_bytes_max(worker.world_size)
        self.device = devices.of_worker(self.rank, worker.gpu)
        self.through_host = ""
        if worker.gpu is not None and not _core.has_gpu_code:
            self.through_host = "this build of slackline has no GPU code"
        elif worker.gpu is not None and not worker.all_on_gpus:
            self.through_host = "not all workers have device: CUDA"

    def open(self, tables: Tables, rules: List[str], work: Work) -> None:
        self._tables = tables
        self._worker.open(
            tables.bind(rules, self._worker.gpu_parameters),
            work.steps_total,
            work.steps_per_epoch,
            work.batch_size,
            work.data,
            work.data_hash,
            work.elastic,
            work.by_table,
        )

    def next(
        self,
    ) -> "Union[_core.Step, _core.Evaluation, _core.Conclusion, _core.Keep, _core.Restore, None]":
        return self._worker.next()

    def kept(self, cut: int, state: Optional[bytes], error: str) -> None:
        self._worker.kept(cut, state, error)

    def wait_for(self, table: int) -> None:
        self._worker.wait_for(table)

    def gradient(self, table: int, gradient: torch.Tensor, options: _core.StepOptions) -> None:
        self._worker.gradient(table, devices.handed(gradient), options, devices.stream(gradient.device))

    def finish_step(
        self,
        gradients: List[Optional[torch.Tensor]],
        options: List[_core.StepOptions],
        skipped: List[int],
    ) -> bool:
        handed = [None if gradient is None else devices.handed(gradient) for gradient in gradients]
        return self._worker.finish_step(handed, options, skipped)

    def gather(self, place: int, number: int, data: bytes) -> Optional[List[Tuple[int, bytes]]]:
        return self._worker.gather(place, number, data)

    def begins_in_epoch(self) -> int:
        return self._worker.begins_in_epoch()

    def begin_with(self, states: List[TableState]) -> None:
        self._worker.begin_with(_handed_states(states))

    def optimizer_state(self) -> Optional[List[TableState]]:
        states = self._worker.optimizer_state()
        return None if states is None else _table_states(states, self._tables)

    def fetch_parameters(self) -> None:
        self._worker.fetch_parameters()

    def log(self, name: str, value: float) -> None:
        self._worker.log(name, value)

    def loaded(self, seconds: float) -> None:
        self._worker.loaded(seconds)

    def evaluated(self, task: "_core.Evaluation", scores: Dict[str, float], tables: Tables) -> None:
        self._worker.evaluated(task, scores, tables.memory)

    def conclude(self, train: Dict[str, float], test: Dict[str, float]) -> None:
        self._worker.conclude(train, test)

    def report_progress(self) -> None:
        self._worker.report_progress()

    def fail(self, why: str, trace: str, ends_job: bool) -> None:
        self._worker.fail(why, trace, ends_job)

    @property
    def may_suspend(self) -> bool:
        return self._worker.may_suspend

    def suspend(self, reason: str) -> None:
        self._worker.suspend(reason)

    def interrupt(self, reason: str) -> None:
        self._worker.interrupt(reason)

    def close(self) -> None:
        del self._worker


class Alone(World):
    """A world of one: the same decisions and the same arithmetic, without servers and without a config."""

    sends = False
    job = "alone"
    rank = 0
    world_size = 1
    threads = None
    seed = _core.default_seed
    epochs = None
    max_steps = None
    mode = "alone"
    steps_together = True
    out = ""
    data_dir = ""
    optimizer = None
    gather_bytes_max = _core.gather_bytes_max(1)
    device = devices.CPU
    through_host = ""

    def __init__(self) -> None:
        self._interrupted = ""
        self._logged: Dict[str, List[float]] = {}  # Since the last evaluation.
        self._means_at: Dict[int, Dict[str, float]] = {}  # Of evaluations that were not reported yet, by clock.

    def open(self, tables: Tables, rules: List[str], work: Work) -> None:
        self._tables = tables
        self._steps_per_epoch = work.steps_per_epoch
        self._worker = _core.LoneWorker(
            tables.bind(rules), work.steps_total, work.steps_per_epoch, work.batch_size, work.elastic
        )

    def begin_with(self, states: List[TableState]) -> None:
        self._worker.begin_with(_handed_states(states))

    def optimizer_state(self) -> Optional[List[TableState]]:
        return _table_states(self._worker.optimizer_state(), self._tables)

    def next(self) -> "Union[_core.Step, _core.Evaluation, _core.Conclusion, None]":
        if self._interrupted:
            raise _core.JobError(self._interrupted)
        task = self._worker.next()
        if isinstance(task, _core.Evaluation):
            self._means_at[task.clock] = self._take_means()
        return task

    def finish_step(
        self,
        gradients: List[Optional[torch.Tensor]],
        options: List[_core.StepOptions],
        skipped: List[int],
    ) -> bool:
        """A table without gradient stays as it is, as with torch.optim."""
        self._worker.finish_step([None if g is None else devices.handed(g) for g in gradients], options)
        return True

    def gather(self, place: int, number: int, data: bytes) -> Optional[List[Tuple[int, bytes]]]:
        if self._interrupted:
            raise _core.JobError(self._interrupted)
        return [(0, data)]

    def log(self, name: str, value: float) -> None:
        self._logged.setdefault(name, []).append(value)

    def evaluated(self, task: "_core.Evaluation", scores: Dict[str, float], tables: Tables) -> None:
        self._say(task.clock, self._means_at.pop(task.clock), scores)

    def conclude(self, train: Dict[str, float], test: Dict[str, float]) -> None:
        self._say(self._worker.clock, self._take_means(), test)

    def _take_means(self) -> Dict[str, float]:
        logged, self._logged = self._logged, {}
        return {name: sum(values) / len(values) for name, values in logged.items()}

    def _say(self, clock: int, means: Dict[str, float], scores: Dict[str, float]) -> None:
        figures = dict(means)
        figures.update({f"test {name}": value for name, value in scores.items()})
        if figures:
            text = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
            epoch = clock / self._steps_per_epoch
            # In one piece: others print, too.
            sys.stderr.write(f"slackline: epoch {epoch:.4g}, step {clock}: {text}\n")
            sys.stderr.flush()

    def interrupt(self, reason: str) -> None:
        self._interrupted = reason


def _handed_states(states: List[TableState]) -> List[Tuple[int, List[Any]]]:
    return [(state.updates, [devices.handed(slot) for slot in state.slots]) for state in states]


def _table_states(states: List[Tuple[int, List[bytearray]]], tables: Tables) -> List[TableState]:
    """Of each table, from its updates and the bytes of its slots."""
    return [
        TableState(
            updates,
            [torch.frombuffer(slot, dtype=torch.float32).reshape(table.values.shape) for slot in slots],
        )
        for (updates, slots), table in zip(states, tables.tables)
    ]

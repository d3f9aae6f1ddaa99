"""Where the work of a job is done: with others, or in this process alone."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Dict, List, Optional, Tuple, Union

import torch

from slackline import _core, _device
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


class Joined:
    """A worker among others: the session of the C++ library."""

    sends = True  # Gradients go elsewhere.

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
        self.job: str = worker.job
        self.rank: int = worker.rank
        self.world_size: int = worker.world_size
        self.threads: Optional[int] = worker.threads
        self.seed: int = worker.seed
        self.epochs: Optional[float] = worker.epochs
        self.max_steps: Optional[int] = worker.max_steps
        self.mode: str = worker.mode
        self.out: str = out
        self.data_dir: str = data_dir
        # Its block in the config, and the block's fields.
        self.optimizer: Optional[Tuple[str, Dict[str, Union[bool, float]]]] = worker.optimizer
        self.gather_bytes_max: int = worker.gather_bytes_max
        self.device: torch.device = _device.of_worker(self.rank, worker.gpu)
        # Why parameters on a GPU go through copies on the host; empty: they do not.
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
        """The script's state for a checkpoint, or why there is none."""
        self._worker.kept(cut, state, error)

    def wait_for(self, table: int) -> None:
        self._worker.wait_for(table)

    def gradient(self, table: int, gradient: torch.Tensor, options: _core.StepOptions) -> None:
        self._worker.gradient(table, _device.handed(gradient), options, _device.stream(gradient.device))

    def finish_step(
        self,
        gradients: List[Optional[torch.Tensor]],
        options: List[_core.StepOptions],
        skipped: List[int],
    ) -> bool:
        """``skipped``: tables whose optimizer does nothing. False if the step is lost, and comes again."""
        handed = [None if gradient is None else _device.handed(gradient) for gradient in gradients]
        return self._worker.finish_step(handed, options, skipped)

    def gather(self, place: int, number: int, data: bytes) -> Optional[List[Tuple[int, bytes]]]:
        return self._worker.gather(place, number, data)

    def begins_in_epoch(self) -> int:
        """Before open(): of a worker that comes later, or of a job that goes on from a checkpoint."""
        return self._worker.begins_in_epoch()

    def begin_with(self, states: List[TableState]) -> None:
        self._worker.begin_with(
            [(state.updates, [_device.handed(slot) for slot in state.slots]) for state in states]
        )

    def optimizer_state(self) -> Optional[List[TableState]]:
        """By table; None if the job has finished. Between two steps the tables become its, too."""
        states = self._worker.optimizer_state()
        if states is None:
            return None
        return [
            TableState(
                updates,
                [
                    torch.frombuffer(slot, dtype=torch.float32).reshape(table.values.shape)
                    for slot in slots
                ],
            )
            for (updates, slots), table in zip(states, self._tables.tables)
        ]

    def log(self, name: str, value: float) -> None:
        self._worker.log(name, value)

    def loaded(self, seconds: float) -> None:
        """So much of the step's time went into getting its batch."""
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


@dataclasses.dataclass
class _Step:
    clock: int
    examples: Optional[Tuple[int, int, int]] = None
    by_table = False
    is_done_together = False
    keeps_model = False


@dataclasses.dataclass
class _Evaluation:
    clock: int
    values: List[torch.Tensor]
    means: Dict[str, float]  # Of what was logged until then.


class _Conclusion:
    pass


class Alone:
    """A world of one: the same arithmetic, without servers and without a config."""

    sends = False
    job = "alone"
    rank = 0
    world_size = 1
    threads: Optional[int] = None
    seed = 1
    epochs: Optional[float] = None
    max_steps: Optional[int] = None
    mode = "alone"
    out = ""
    data_dir = ""
    optimizer: Optional[Tuple[str, Dict[str, Union[bool, float]]]] = None
    gather_bytes_max = 1 << 20  # As in a job.
    device = _device.CPU
    through_host = ""

    def __init__(self) -> None:
        self._clock = 0
        self._evaluated = 0  # The clock of the last evaluation that was asked for.
        self._concluded = False
        self._interrupted = ""
        self._means: Dict[str, List[float]] = {}

    def open(self, tables: Tables, rules: List[str], work: Work) -> None:
        self._tables = tables
        self._work = work
        self._steps = work.steps_total
        if work.elastic is not None:
            epochs, rest = divmod(work.elastic[1], work.elastic[0])
            self._steps = epochs * work.steps_per_epoch - (-rest // work.batch_size)
        self._rules = [_core.Rule(text) for text in rules]
        self._slots = [
            [torch.zeros_like(table.values) for _ in range(rule.slots)]
            for table, rule in zip(tables.tables, self._rules)
        ]
        self._updates = [0 for _ in tables.tables]

    def begins_in_epoch(self) -> int:
        return 0

    def begin_with(self, states: List[TableState]) -> None:
        self._slots = [[slot.clone() for slot in state.slots] for state in states]
        self._updates = [state.updates for state in states]

    def optimizer_state(self) -> Optional[List[TableState]]:
        return [
            TableState(updates, [slot.clone() for slot in slots])
            for updates, slots in zip(self._updates, self._slots)
        ]

    def next(self) -> object:
        if self._interrupted:
            raise _core.JobError(self._interrupted)
        if self._clock >= self._steps:
            if self._concluded:
                return None
            self._concluded = True
            return _Conclusion()
        at_epoch = self._clock % self._work.steps_per_epoch == 0
        if at_epoch and self._clock > self._evaluated:
            self._evaluated = self._clock
            values = [table.values.clone() for table in self._tables.tables]
            return _Evaluation(self._clock, values, self._take_means())
        if self._work.elastic is None:
            return _Step(self._clock)
        epoch, step = divmod(self._clock, self._work.steps_per_epoch)
        examples, total = self._work.elastic
        begin = step * self._work.batch_size
        end = min(begin + self._work.batch_size, examples, total - epoch * examples)
        return _Step(self._clock, (epoch, begin, end))

    def wait_for(self, table: int) -> None:
        pass

    def finish_step(
        self,
        gradients: List[Optional[torch.Tensor]],
        options: List[_core.StepOptions],
        skipped: List[int],
    ) -> bool:
        self._clock += 1
        for i in reversed(range(len(gradients))):
            gradient = gradients[i]
            if gradient is None:  # As torch.optim, which leaves such a parameter as it is.
                continue
            rule = self._rules[i]
            self._updates[i] += 1
            rule.apply(
                _device.handed(self._tables.tables[i].values),
                _device.handed(gradient),
                [_device.handed(slot) for slot in self._slots[i]],
                options[i],
                self._updates[i],
            )
        self._tables.refresh()
        return True

    def gather(self, place: int, number: int, data: bytes) -> Optional[List[Tuple[int, bytes]]]:
        if self._interrupted:
            raise _core.JobError(self._interrupted)
        return [(0, data)]

    def log(self, name: str, value: float) -> None:
        self._means.setdefault(name, []).append(value)

    def loaded(self, seconds: float) -> None:
        pass

    def evaluated(self, task: _Evaluation, scores: Dict[str, float], tables: Tables) -> None:
        self._say(task.clock, task.means, scores)

    def conclude(self, train: Dict[str, float], test: Dict[str, float]) -> None:
        self._say(self._clock, self._take_means(), test)

    def _take_means(self) -> Dict[str, float]:
        logged, self._means = self._means, {}
        return {name: sum(values) / len(values) for name, values in logged.items()}

    def _say(self, clock: int, means: Dict[str, float], scores: Dict[str, float]) -> None:
        figures = dict(means)
        figures.update({f"test {name}": value for name, value in scores.items()})
        if figures:
            text = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
            epoch = clock / self._work.steps_per_epoch
            # In one piece: others print, too.
            sys.stderr.write(f"slackline: epoch {epoch:.4g}, step {clock}: {text}\n")
            sys.stderr.flush()

    def report_progress(self) -> None:
        pass

    def fail(self, why: str, trace: str, ends_job: bool) -> None:
        pass

    def interrupt(self, reason: str) -> None:
        self._interrupted = reason

    def close(self) -> None:
        pass


World = Union[Joined, Alone]
EVALUATION = (_core.Evaluation, _Evaluation)
CONCLUSION = (_core.Conclusion, _Conclusion)
# Only of a worker among others.
KEEP = _core.Keep
RESTORE = _core.Restore


def load_evaluation(task: object, tables: Tables) -> None:
    """Puts the parameters of an evaluation into the tables' module."""
    if isinstance(task, _Evaluation):
        with torch.no_grad():
            for table, values in zip(tables.tables, task.values):
                table.values.copy_(values)
    else:
        tables.memory.load(task)
    tables.refresh()

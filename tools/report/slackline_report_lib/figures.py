"""The figures of a run by name and step, as TensorBoard and the trackers show them.

Losses, accuracy and a program's own figures of an evaluation are those of the one
worker that makes it. Train losses and a program's own figures are means over the
workers at one step, rates are sums.
"""

import dataclasses
import math
from typing import Iterator

from . import load


@dataclasses.dataclass(frozen=True)
class Figures:
    step: int
    seconds: float  # Since the job started to run.
    values: dict[str, float]


def of_run(run: load.Run) -> Iterator[Figures]:
    """Evaluations first, of two at one step the later one; each by step."""
    for record in run.evaluations():
        yield of_evaluation(record)
    by_step: dict[int, list[load.Record]] = {}
    for record in run.records:
        if record.kind == "train":
            by_step.setdefault(record.step, []).append(record)
    for same in by_step.values():
        yield of_step(same)


def of_evaluation(record: load.Record) -> Figures:
    values = {}
    if record.has_loss:
        values["test/loss"] = record.loss
    if math.isfinite(record.accuracy):
        values["test/accuracy"] = record.accuracy
    for name, value in record.values.items():
        values[f"test/{name}"] = value
    return Figures(record.step, _known(record.seconds), values)


def of_step(same: list[load.Record]) -> Figures:
    """Of the workers' records of one step, at least one."""
    values = {}
    losses = [record.loss for record in same if record.has_loss]
    if losses:
        values["train/loss"] = sum(losses) / len(losses)
    for name in {name: None for record in same for name in record.values}:
        known = [record.values[name] for record in same if name in record.values]
        values[f"train/{name}"] = sum(known) / len(known)
    rate = sum(record.examples_per_second for record in same)
    if rate > 0 and math.isfinite(rate):  # No time passes in a replay.
        values["examples_per_second"] = rate
    return Figures(same[0].step, max(_known(record.seconds) for record in same), values)


def _known(seconds: float) -> float:
    return seconds if math.isfinite(seconds) else 0.0

"""The course of a metric over several seeds as one curve with a band.

The seeds' own courses have different x (times above all). They are put on the
x of all of them together by carrying the last value forward: at each x a seed
has the value that was last known there, and a seed that has ended keeps its
last one. The curve starts where every seed has a value.
"""

import dataclasses
import math
from typing import Optional

import numpy as np

from . import load, statistics

POINTS_MAX = 240  # Of a curve: more cannot be told apart in a plot.


@dataclasses.dataclass
class Curve:
    """NaN where a seed's value is no number. The band is None with one seed; with
    two it goes from the smaller to the larger, as an interval of two means little;
    with more it is the interval of the mean."""

    x: np.ndarray
    mean: np.ndarray
    low: Optional[np.ndarray]
    high: Optional[np.ndarray]
    seeds: int


def curve_of(runs: list[load.Run], metric: str, x_name: str) -> Optional[Curve]:
    """None if no run has the metric over this x."""
    courses = [course_of(run, metric, x_name) for run in runs]
    courses = [course for course in courses if len(course[0]) and np.isfinite(course[1]).any()]
    if not courses:
        return None
    start = max(course[0][0] for course in courses)
    x = np.unique(np.concatenate([course[0] for course in courses]))
    x = x[x >= start]
    if len(x) > POINTS_MAX:
        x = x[np.unique(np.linspace(0, len(x) - 1, POINTS_MAX).round().astype(int))]
    values = np.array([_carried_forward(course, x) for course in courses])
    mean = values.mean(axis=0)
    if len(courses) == 1:
        return Curve(x, mean, None, None, 1)
    if len(courses) == 2:
        return Curve(x, mean, values.min(axis=0), values.max(axis=0), 2)
    band = [statistics.mean_with_interval(column) for column in values.T]
    return Curve(
        x,
        mean,
        np.array([interval.low for interval in band]),
        np.array([interval.high for interval in band]),
        len(courses),
    )


def course_of(run: load.Run, metric: str, x_name: str) -> tuple[np.ndarray, np.ndarray]:
    """One seed's x, growing, and values; both empty if the run has none."""
    if x_name == "seconds" and not run.has_wall_time():
        return np.array([]), np.array([])
    if metric == "train_loss":
        points = _train_losses(run, by_time=x_name == "seconds")
    else:
        value_of = {"test_loss": lambda r: r.loss, "test_accuracy": lambda r: r.accuracy}[metric]
        points = [(r.step, r.epoch, r.seconds, value_of(r)) for r in run.evaluations()]
    column = {"steps": 0, "examples": 1, "seconds": 2}[x_name]
    scale = run.examples_per_epoch() if x_name == "examples" else 1.0
    by_x = {point[column] * scale: point[3] for point in points}
    x = sorted(value for value in by_x if math.isfinite(value))
    return np.array(x, dtype=float), np.array([by_x[value] for value in x], dtype=float)


def places_of_divergence(runs: list[load.Run], x_name: str, examples_per_epoch: float) -> list[float]:
    """Of runs that diverged, as near as their records tell; 0 if they tell nothing."""
    places = []
    for run in runs:
        last = max(run.records, key=lambda record: record.step, default=None)
        step = run.diverged_at_step if run.diverged_at_step is not None else last.step if last else 0
        examples = last.epoch / last.step * step * examples_per_epoch if last and last.step else 0.0
        place = {"steps": step, "examples": examples, "seconds": last.seconds if last else 0.0}[x_name]
        places.append(place if math.isfinite(place) else 0.0)
    return places


def _train_losses(run: load.Run, by_time: bool) -> list[tuple[float, float, float, float]]:
    """Means over the workers, as (step, epoch, seconds, loss): of the records of
    one step, or, by time, of the newest record of each."""
    records = [record for record in run.records if record.kind == "train"]
    points = []
    if by_time:
        ranks = {record.rank for record in records}
        newest: dict[int, float] = {}
        for record in sorted(records, key=lambda record: record.seconds):
            newest[record.rank] = record.loss
            if len(newest) == len(ranks):
                mean = sum(newest.values()) / len(newest)
                points.append((record.step, record.epoch, record.seconds, mean))
        return points
    by_step: dict[int, list[load.Record]] = {}
    for record in records:
        by_step.setdefault(record.step, []).append(record)
    for step in sorted(by_step):
        same = by_step[step]
        mean = sum(record.loss for record in same) / len(same)
        points.append((step, same[0].epoch, max(record.seconds for record in same), mean))
    return points


def _carried_forward(course: tuple[np.ndarray, np.ndarray], x: np.ndarray) -> np.ndarray:
    return course[1][np.searchsorted(course[0], x, side="right") - 1]

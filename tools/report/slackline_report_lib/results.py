"""What the report says in numbers: a value of each metric for each run, its mean
and interval for each variant, the comparison with the baseline, the course along
each axis with numbers; and the files that hold them.

A run that has diverged has no values. It is counted beside the mean of the others,
and never reaches a target; a variant that has one is not compared in what the
others reached, as they are a selection.
"""

import csv
import dataclasses
import io
import json
import math
import pathlib
import re
from typing import Callable, Optional

from . import files, load, statistics

Value = Optional[float]  # None: the run has none, or it is no finite number.

# Metrics that a run has whatever it learns.
SPEEDS = ("wall_seconds", "examples_per_second")


@dataclasses.dataclass(frozen=True)
class Metric:
    key: str
    label: str
    unit: str  # "" for counts and losses. "share": shown in percent.
    better: int  # 1: larger is better, -1: smaller is, 0: neither.
    of: Callable[[load.Run], float]  # NaN for none.
    compared: bool  # With the baseline.


@dataclasses.dataclass(frozen=True)
class Comparison:
    difference: statistics.Difference
    p_holm: Optional[float]  # Corrected over all variants compared.
    detectable: Optional[float]  # As statistics.detectable().

    def significant(self) -> bool:
        return self.p_holm is not None and self.p_holm <= statistics.SIGNIFICANCE

    def significant_alone(self) -> bool:
        """Had it been the only comparison; not so after the correction."""
        alone = self.difference.p_value
        return alone is not None and alone <= statistics.SIGNIFICANCE and not self.significant()


@dataclasses.dataclass
class VariantResult:
    variant: load.Variant
    values: dict[str, dict[int, float]]  # By metric and seed of a finished run; finite ones only.
    means: dict[str, Optional[statistics.Mean]]
    compared: dict[str, Comparison]  # With the baseline; empty for itself.

    def reached(self, target: str) -> int:
        return len(self.values[f"epochs_to_{target}"])

    def all_reached(self, target: str) -> bool:
        return 0 < self.reached(target) == len(self.variant.ended())

    def all_diverged(self) -> bool:
        """Of those that ended, or of all that were tried. Then no metric has a mean."""
        some = bool(self.variant.diverged()) or self.variant.all_tries_diverged
        return some and not self.variant.finished()

    def count(self, state: str) -> int:
        return sum(run.state == state for run in self.variant.runs)


@dataclasses.dataclass(frozen=True)
class AxisPoint:
    """A variant's place on an axis. A text such as 'uniform:8' has the number 8."""

    number: float
    label: str
    line: str  # What else the variant is: the line in the plot that it belongs to.
    variant: str


@dataclasses.dataclass
class Axis:
    field: str
    points: list[AxisPoint]  # By line, then number.
    # By line and metric: each variant compared with the line's first.
    compared: dict[tuple[str, str], dict[str, Comparison]]

    def lines(self) -> list[str]:
        return list(dict.fromkeys(point.line for point in self.points))

    def of_line(self, line: str) -> list[AxisPoint]:
        return [point for point in self.points if point.line == line]


@dataclasses.dataclass
class Results:
    experiment: load.Experiment
    metrics: list[Metric]  # Those that some run has.
    variants: list[VariantResult]
    axes: list[Axis]  # Those with numbers as values.

    def of(self, name: str) -> VariantResult:
        return next(result for result in self.variants if result.variant.name == name)

    def baseline(self) -> VariantResult:
        return self.of(self.experiment.baseline)

    def metric(self, key: str) -> Optional[Metric]:
        return next((metric for metric in self.metrics if metric.key == key), None)


def compute(experiment: load.Experiment) -> Results:
    metrics = [
        metric
        for metric in all_metrics(experiment.target)
        if any(math.isfinite(metric.of(run)) for variant in experiment.variants for run in variant.finished())
        # Whether a target was reached is told even if none did.
        or metric.key.startswith("epochs_to_")
    ]
    variants = [_variant_result(variant, metrics) for variant in experiment.variants]
    baseline = next(v for v in variants if v.variant.name == experiment.baseline)
    others = [result for result in variants if result is not baseline]
    for metric in metrics:
        if metric.compared:
            for result, comparison in zip(others, _compare(others, baseline, metric)):
                if comparison is not None:
                    result.compared[metric.key] = comparison
    return Results(experiment, metrics, variants, _axes(experiment, metrics, variants))


def target_of(key: str) -> str:
    """Which of load.TARGET_KINDS a metric is the way to; empty: it is none."""
    return key.partition("_to_")[2]


def target_texts(experiment: load.Experiment) -> dict[str, str]:
    """'test accuracy of 97 %', which no line break may part, by kind."""
    texts = {}
    for kind, value in experiment.target.items():
        of = f"{100 * value:g}\u00a0%" if kind == "test_accuracy" else f"{value:g}"
        texts[kind] = f"{kind.replace('_', ' ')} of {of}"
    return texts


def first_reaching(run: load.Run, kind: str, target: float) -> Optional[load.Record]:
    """The first evaluation that is at or beyond the target. Between evaluations
    nothing is known, so nothing is interpolated."""
    for record in run.evaluations():
        if kind == "test_accuracy" and record.accuracy >= target:
            return record
        if kind == "test_loss" and record.loss <= target:
            return record
    return None


def evaluation_interval(experiment: load.Experiment) -> dict[str, tuple[float, float]]:
    """Smallest and largest median distance, over the runs, between evaluations:
    how finely "time to target" can tell. Keys "epochs", "seconds"."""
    found: dict[str, list[float]] = {"epochs": [], "seconds": []}
    for run in experiment.runs():
        records = run.evaluations()
        pairs = list(zip(records, records[1:]))
        distances = {"epochs": sorted(b.epoch - a.epoch for a, b in pairs)}
        if run.has_wall_time():
            distances["seconds"] = sorted(b.seconds - a.seconds for a, b in pairs)
        for name, values in distances.items():
            if values and math.isfinite(values[len(values) // 2]):
                found[name].append(values[len(values) // 2])
    return {name: (min(values), max(values)) for name, values in found.items() if values}


def waiting_shares(run: load.Run) -> dict[int, float]:
    """By rank: time waited at pulls, barriers and all-reduce, of that and the
    computing together."""
    shares = {}
    for worker in run.workers():
        wait = load.number(worker.get("wait_seconds"))
        total = wait + load.number(worker.get("compute_seconds"))
        if total > 0 and run.has_wall_time():
            shares[int(worker["rank"])] = wait / total
    return shares


# As docs/manual/modes.md defines them: of each, its words, its unit, and what it means.
STALENESS = {
    "missed_clocks": (
        "missed clocks",
        "clocks",
        "how many clocks of the other workers a gradient missed when it reached its shard: updates since the version "
        "that it was computed from, of which a clock has as many as there are workers, or one where gradients are "
        "applied as the mean of a clock.",
    ),
    "missed_updates": (
        "missed updates",
        "updates",
        "how many updates of the shard a gradient missed when it reached it: those since the version that it was "
        "computed from.",
    ),
    "lead": (
        "lead",
        "clocks",
        "how far a step was ahead of the slowest worker when it read its parameters: its clock less the clock that "
        "all workers had completed. This is what a bound of staleness bounds.",
    ),
}


def histogram(runs: list[load.Run], key: str) -> list[float]:
    """Counts of all runs together; empty if none has any."""
    total: list[float] = []
    for run in runs:
        counts = [load.number(count) for count in run.summary.get(f"{key}_histogram") or []]
        total += [0.0] * (len(counts) - len(total))
        for value, count in enumerate(counts):
            total[value] += count if math.isfinite(count) else 0.0
    return total


def staleness(result: VariantResult, key: str) -> Optional[tuple[int, int, float]]:
    """Of a measure in STALENESS: p50, p99 and the largest value, of all seeds
    together. None if nothing was counted."""
    bins = histogram(result.variant.finished(), key)
    p50, p99 = (statistics.histogram_percentile(bins, fraction) for fraction in (0.5, 0.99))
    if p50 is None or p99 is None:
        return None
    # The last bin holds everything beyond.
    return p50, p99, max(result.values.get(f"{key}_max", {}).values(), default=len(bins) - 1)


def _of_staleness(metric: Metric) -> bool:
    return metric.key.startswith(tuple(STALENESS))


def write(results: Results, folder: pathlib.Path) -> None:
    """results.json, results.csv, runs.csv, metrics.csv, and with a search of values tune.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write_text(folder / "results.json", json.dumps(_as_json(results), indent=2) + "\n")
    files.write_text(folder / "results.csv", _csv(_result_rows(results)))
    files.write_text(folder / "runs.csv", _csv(_run_rows(results)))
    files.write_text(folder / "metrics.csv", _csv(_metric_rows(results.experiment)))
    if results.experiment.tune is not None:
        files.write_text(folder / "tune.csv", _csv(_tune_rows(results.experiment.tune)))


# ---- Metrics of a run


def all_metrics(target: dict[str, float]) -> list[Metric]:
    """Whether or not a run has them."""

    def summary(key: str) -> Callable[[load.Run], float]:
        return lambda run: load.number(run.summary.get(key))

    def timed(key: str) -> Callable[[load.Run], float]:
        return lambda run: load.number(run.summary.get(key)) if run.has_wall_time() else math.nan

    def percentile(key: str, name: str) -> Callable[[load.Run], float]:
        return lambda run: load.number((run.summary.get(key) or {}).get(name))

    metrics = [
        Metric("test_accuracy", "test accuracy", "share", 1, summary("test_accuracy"), True),
        Metric("test_loss", "test loss", "", -1, summary("test_loss"), True),
        Metric("train_loss", "train loss", "", -1, summary("train_loss"), True),
        Metric("wall_seconds", "wall time", "s", -1, timed("wall_seconds"), True),
        Metric("examples_per_second", "throughput", "examples/s", 1, timed("examples_per_second"), True),
    ]
    for kind, value in target.items():
        text = {"test_accuracy": "accuracy", "test_loss": "loss"}[kind] + " target"
        metrics += [
            Metric(f"seconds_to_{kind}", f"time to {text}", "s", -1, _seconds_to(kind, value), True),
            Metric(f"epochs_to_{kind}", f"epochs to {text}", "epochs", -1, _epochs_to(kind, value), True),
            Metric(
                f"examples_to_{kind}", f"examples to {text}", "examples", -1, _examples_to(kind, value), False
            ),
        ]
    metrics += [
        Metric("steps", "steps per worker", "", 0, summary("steps"), False),
        Metric("bytes_per_example", "traffic", "bytes/example", -1, _bytes_per_example, False),
        Metric("bytes_pushed_per_example", "pushed", "bytes/example", -1, _traffic("bytes_pushed"), False),
        Metric("bytes_pulled_per_example", "pulled", "bytes/example", -1, _traffic("bytes_pulled"), False),
        Metric("wait_share", "waiting", "share", -1, _wait_share, False),
        Metric("dropped", "gradients dropped", "", 0, summary("dropped"), False),
    ]
    return metrics + [
        Metric(f"{key}_{name}", f"{words} {name}", unit, 0, percentile(key, name), False)
        for key, (words, unit, _) in STALENESS.items()
        for name in ("p50", "p99", "max")
    ]


def _seconds_to(kind: str, target: float) -> Callable[[load.Run], float]:
    def of(run: load.Run) -> float:
        record = first_reaching(run, kind, target) if run.has_wall_time() else None
        return record.seconds if record else math.nan

    return of


def _epochs_to(kind: str, target: float) -> Callable[[load.Run], float]:
    def of(run: load.Run) -> float:
        record = first_reaching(run, kind, target)
        return record.epoch if record else math.nan

    return of


def _examples_to(kind: str, target: float) -> Callable[[load.Run], float]:
    return lambda run: _epochs_to(kind, target)(run) * run.examples_per_epoch()


def _traffic(key: str) -> Callable[[load.Run], float]:
    """Bytes per example in one direction ("bytes_pushed" or "bytes_pulled"). NaN
    for a replay, whose pushes cross no network."""

    def of(run: load.Run) -> float:
        examples = run.examples_trained()
        if not run.has_wall_time() or not examples > 0:
            return math.nan
        return load.number(run.summary.get(key)) / examples

    return of


def _bytes_per_example(run: load.Run) -> float:
    return _traffic("bytes_pushed")(run) + _traffic("bytes_pulled")(run)


def _wait_share(run: load.Run) -> float:
    shares = waiting_shares(run)
    return sum(shares.values()) / len(shares) if shares else math.nan


# ---- Variants


def _variant_result(variant: load.Variant, metrics: list[Metric]) -> VariantResult:
    values: dict[str, dict[int, float]] = {}
    means = {}
    for metric in metrics:
        by_seed = {run.seed: metric.of(run) for run in variant.finished()}
        values[metric.key] = {s: value for s, value in by_seed.items() if math.isfinite(value)}
        means[metric.key] = statistics.mean_with_interval(list(values[metric.key].values()))
    return VariantResult(variant, values, means, {})


def _compare(
    others: list[VariantResult], baseline: VariantResult, metric: Metric
) -> list[Optional[Comparison]]:
    """With `baseline`, in the order of `others`. What runs reached is compared only
    where no run of both sides diverged, and times to a target where all of them
    reached it: leaving the others out would flatter."""
    key = metric.key
    found: list[Optional[statistics.Difference]] = []
    for result in others:
        sides = (result, baseline)
        complete = key in SPEEDS or not any(side.variant.diverged() for side in sides)
        if target_of(key):
            complete = all(len(side.values[key]) == len(side.variant.ended()) for side in sides)
        found.append(statistics.compare(result.values[key], baseline.values[key]) if complete else None)
    tested = [i for i, one in enumerate(found) if one is not None and one.p_value is not None]
    corrected = dict(zip(tested, statistics.holm([found[i].p_value for i in tested])))
    return [
        (
            Comparison(one, corrected.get(i), statistics.detectable(one, len(tested)))
            if one is not None
            else None
        )
        for i, one in enumerate(found)
    ]


# ---- Axes


def axis_number(text: str) -> Optional[tuple[str, float]]:
    """The number in an axis value and what stands before it: "8", "uniform:8",
    "inf", "bsp" (a mode that waits for all, before any bound), "asp"."""
    match = re.fullmatch(r"(?:([A-Za-z_]+):)?([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|inf)", text.strip())
    if match is None:
        return None
    return match.group(1) or "", float(match.group(2))


def _axis_point(field: str, text: str) -> Optional[tuple[str, float, str]]:
    """What stands before the number, the number, and how to show it."""
    if field == "mode":
        if text == "bsp":
            return "", -1.0, text
        if text == "asp":
            return "", math.inf, text
        found = axis_number(text)
        return ("", found[1], text) if found is not None and found[0] == "ssp" else None
    found = axis_number(text)
    if found is None:
        return None
    prefix, number = found
    return prefix, number, "∞" if math.isinf(number) else f"{number:g}"


def _axes(experiment: load.Experiment, metrics: list[Metric], results: list[VariantResult]) -> list[Axis]:
    by_name = {result.variant.name: result for result in results}
    fields = list(dict.fromkeys(field for v in experiment.variants for field in v.axes))
    axes = []
    for field in fields:
        places = {v.name: _axis_point(field, v.axes[field]) for v in experiment.variants if field in v.axes}
        if any(place is None for place in places.values()):
            continue
        if len({place[1] for place in places.values()}) < 2:
            continue
        lines = _line_names(experiment, field, places)
        points = [AxisPoint(place[1], place[2], lines[name], name) for name, place in places.items()]
        order = {line: i for i, line in enumerate(dict.fromkeys(lines.values()))}
        points.sort(key=lambda point: (order[point.line], point.number))
        axis = Axis(field, points, {})
        for line in axis.lines():
            of_line = [by_name[point.variant] for point in axis.of_line(line)]
            for metric in metrics:
                if metric.compared:
                    pairs = zip(of_line[1:], _compare(of_line[1:], of_line[0], metric))
                    axis.compared[line, metric.key] = {
                        result.variant.name: one for result, one in pairs if one is not None
                    }
        axes.append(axis)
    return axes


def _line_names(
    experiment: load.Experiment, field: str, places: dict[str, tuple[str, float, str]]
) -> dict[str, str]:
    """By variant: what it is apart from its place on the axis, as short as the
    differences between the lines allow."""
    parts: dict[str, dict[str, str]] = {}
    for name, (prefix, _, _) in places.items():
        variant = experiment.variant(name)
        own = {"": prefix}
        # Where variants have names, these say what they change.
        for change in [] if "variant" in variant.axes else variant.set:
            changed, _, value = (part.strip() for part in change.partition("="))
            counts_workers = "workers" in variant.axes and re.fullmatch(r"worker\[\d+\]\.count", changed)
            if changed not in variant.axes and not counts_workers:
                own[changed] = value
        own.update({other: value for other, value in variant.axes.items() if other != field})
        # An axis of the synchronisation says the mode as well: "ssp:8", no bound "asp".
        if not any(other == "mode" or other.startswith("sync.") for other in variant.axes):
            own["mode"] = variant.mode
        if "replay" not in variant.axes:
            own["replay"] = variant.replay
        parts[name] = own
    keys = list(dict.fromkeys(key for own in parts.values() for key in own))
    shown = {key: value_names([own.get(key, "") for own in parts.values()]) for key in keys}
    varying = [key for key in keys if len(shown[key]) > 1]
    lines = {
        name: ", ".join(shown[key][own[key]] for key in varying if own.get(key)) or "all"
        for name, own in parts.items()
    }
    # Variants that these words do not tell apart keep their names.
    spots = [(lines[name], place[1]) for name, place in places.items()]
    return lines if len(set(spots)) == len(spots) else {name: name for name in lines}


def value_names(values: list[str]) -> dict[str, str]:
    """How to show the values of a field: a block "{adam{rate:0.001}}" by its first
    word, where that tells it from the others."""
    distinct = list(dict.fromkeys(values))
    words = [re.search(r"\w+", value) if value.startswith("{") else None for value in distinct]
    short = [word.group() if word else value for word, value in zip(words, distinct)]
    return dict(zip(distinct, short if len(set(short)) == len(distinct) else distinct))


# ---- Files


def _mean_json(mean: Optional[statistics.Mean], values: dict[int, float]) -> Optional[dict]:
    if mean is None:
        return {"count": len(values), "values": {str(s): v for s, v in values.items()}}
    return {
        "count": mean.count,
        "mean": mean.mean,
        "standard_deviation": mean.standard_deviation,
        "low95": mean.low,
        "high95": mean.high,
        "values": {str(seed): value for seed, value in values.items()},
    }


def _comparison_json(comparison: Comparison) -> dict:
    one = comparison.difference
    return {
        "difference": one.difference,
        "low95": one.low,
        "high95": one.high,
        "p_value": one.p_value,
        "p_holm": comparison.p_holm,
        "detectable": comparison.detectable,
        "test": one.test,
    }


def _as_json(results: Results) -> dict:
    experiment = results.experiment
    return {
        "name": experiment.name,
        "title": experiment.title,
        "baseline": experiment.baseline,
        "target": experiment.target,
        "seeds": experiment.seeds,
        "commit": experiment.commit,
        "metrics": [
            {"key": m.key, "label": m.label, "unit": m.unit, "better": m.better} for m in results.metrics
        ],
        "variants": [
            {
                "name": result.variant.name,
                "mode": result.variant.mode,
                "set": result.variant.set,
                "replay": result.variant.replay,
                "axes": result.variant.axes,
                "runs": len(result.variant.runs),
                "finished": result.count(load.FINISHED),
                "failed": result.count(load.FAILED),
                "to_do": result.count(load.TO_DO),
                "damaged": result.count(load.DAMAGED),
                "diverged": result.count(load.DIVERGED),
                "not_tuned": result.count(load.NOT_TUNED),
                # By seed; null: the step is not known.
                "diverged_at_step": {str(r.seed): r.diverged_at_step for r in result.variant.diverged()},
                "reached_target": {kind: result.reached(kind) for kind in experiment.target},
                "staleness": {
                    key: dict(zip(("p50", "p99", "max"), staleness(result, key) or (None, None, None)))
                    for key in STALENESS
                },
                "metrics": {
                    m.key: _mean_json(result.means[m.key], result.values[m.key])
                    for m in results.metrics
                    if not _of_staleness(m)
                },
                "compared_with_baseline": {
                    key: _comparison_json(one) for key, one in result.compared.items()
                },
            }
            for result in results.variants
        ],
        "axes": [
            {
                "field": axis.field,
                "lines": [
                    {
                        "name": line,
                        "points": [
                            {"value": point.label, "variant": point.variant} for point in axis.of_line(line)
                        ],
                        "compared_with_first": {
                            metric.key: {
                                name: _comparison_json(one)
                                for name, one in axis.compared[line, metric.key].items()
                            }
                            for metric in results.metrics
                            if metric.compared
                        },
                    }
                    for line in axis.lines()
                ],
            }
            for axis in results.axes
        ],
        "tune": dataclasses.asdict(experiment.tune) if experiment.tune is not None else None,
        "problems": experiment.problems,
    }


def _result_rows(results: Results) -> list[dict]:
    fields = list(dict.fromkeys(f for v in results.experiment.variants for f in v.axes))
    rows = []
    for result in results.variants:
        row: dict = {"variant": result.variant.name, "mode": result.variant.mode}
        row["replay"] = result.variant.replay
        row.update({field: result.variant.axes.get(field, "") for field in fields})
        row["runs"] = len(result.variant.runs)
        for state in (load.FINISHED, load.FAILED, load.TO_DO, load.DAMAGED, load.NOT_TUNED, load.DIVERGED):
            row[state.replace(" ", "_")] = result.count(state)
        steps = [run.diverged_at_step for run in result.variant.diverged()]
        row["diverged_at_steps"] = " ".join(str(step) for step in steps if step is not None)
        for kind in results.experiment.target:
            row[f"reached_{kind}"] = result.reached(kind)
        for key in STALENESS:
            values = staleness(result, key) or (None, None, None)
            row.update(zip((f"{key}_p50", f"{key}_p99", f"{key}_max"), values))
        for metric in results.metrics:
            if _of_staleness(metric):
                continue
            mean = result.means[metric.key]
            row[f"{metric.key}_mean"] = mean.mean if mean else None
            row[f"{metric.key}_sd"] = mean.standard_deviation if mean else None
            row[f"{metric.key}_low95"] = mean.low if mean else None
            row[f"{metric.key}_high95"] = mean.high if mean else None
            if metric.compared:
                one = result.compared.get(metric.key)
                row[f"{metric.key}_minus_baseline"] = one.difference.difference if one else None
                row[f"{metric.key}_minus_baseline_low95"] = one.difference.low if one else None
                row[f"{metric.key}_minus_baseline_high95"] = one.difference.high if one else None
                row[f"{metric.key}_p_value"] = one.difference.p_value if one else None
                row[f"{metric.key}_p_holm"] = one.p_holm if one else None
                row[f"{metric.key}_detectable"] = one.detectable if one else None
                row[f"{metric.key}_test"] = one.difference.test if one else None
        rows.append(row)
    return rows


def _run_rows(results: Results) -> list[dict]:
    rows = []
    for result in results.variants:
        for run in result.variant.runs:
            row: dict = {"variant": run.variant, "seed": run.seed, "state": run.state}
            row["diverged_at_step"] = run.diverged_at_step
            row.update({"error": run.error, "folder": run.folder, "commit": run.commit})
            for metric in results.metrics:
                row[metric.key] = result.values[metric.key].get(run.seed)
            row["stopped"] = run.summary.get("stopped")
            row["workers_lost"] = " ".join(map(str, run.summary.get("workers_lost") or []))
            row["model_sha256"] = run.summary.get("model_sha256")
            rows.append(row)
    return rows


def _metric_rows(experiment: load.Experiment) -> list[dict]:
    rows = []
    for run in experiment.runs():
        scale = run.examples_per_epoch()
        for record in run.records:
            row = {"variant": run.variant, "seed": run.seed}
            for name, value in dataclasses.asdict(record).items():
                row[name] = None if isinstance(value, float) and not math.isfinite(value) else value
            row["examples"] = record.epoch * scale if math.isfinite(record.epoch * scale) else None
            rows.append(row)
    return rows


def _tune_rows(tune: load.Tune) -> list[dict]:
    rows = []
    for tuned in tune.variants:
        for trial in tuned.tried:
            row: dict = {"variant": tuned.variant}
            row.update({field: trial.values.get(field) for field in tune.fields})
            row.update({tune.measure: trial.result, "runs": len(trial.runs), "diverged": trial.diverged})
            row["chosen"] = int(trial.values == tuned.chosen)
            row["chosen_at_edge"] = int(trial.values == tuned.chosen and tuned.at_edge)
            rows.append(row)
    return rows


def _csv(rows: list[dict]) -> str:
    """None becomes an empty field."""
    text = io.StringIO()
    names = list(rows[0]) if rows else ["variant"]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()

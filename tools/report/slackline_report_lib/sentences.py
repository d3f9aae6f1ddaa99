"""The summary in plain words. Every sentence is made from the numbers: what is
not in them is not said, and what a test does not show is called noise."""

from typing import Optional

from . import load, results, statistics, words

REASON_MAX = 160  # Characters of why a run failed.


def summary(of: results.Results) -> list[str]:
    sentences = [_coverage(of)]
    sentences += _not_comparable(of)
    headline = headline_metric(of)
    if headline is not None:
        against = _against_baseline(of, headline)
        # One line along one axis that starts at the baseline says the rest below.
        sentences += against[:1] if _is_one_line(of) else against
    for axis in of.axes:
        for line in axis.lines():
            if headline is not None:
                sentences += _along(of, axis, line, headline)
    for kind in of.experiment.target:
        sentences += _target(of, kind)
    sentences += _speed(of)
    sentences += _divergence(of)
    sentences += _failures(of)
    return sentences


def _is_one_line(of: results.Results) -> bool:
    if len(of.axes) != 1 or len(of.axes[0].points) != len(of.variants):
        return False
    return len(of.axes[0].lines()) == 1 and of.axes[0].points[0].variant == of.experiment.baseline


def headline_metric(of: results.Results) -> Optional[results.Metric]:
    """Test accuracy; test loss where accuracy is not measured."""
    accuracy = of.metric("test_accuracy")
    if accuracy is not None and any(
        value > 0 for result in of.variants for value in result.values["test_accuracy"].values()
    ):
        return accuracy
    return of.metric("test_loss")


def tests_used(of: results.Results) -> list[str]:
    """How the comparisons with the baseline were made, in words."""
    kinds = sorted({one.difference.test for v in of.variants for one in v.compared.values()})
    named = {
        "paired t": "paired t test over the common seeds",
        "Welch": "Welch's t test, as the two sides have different seeds",
    }
    return [named.get(kind, kind) for kind in kinds]


def _coverage(of: results.Results) -> str:
    runs = of.experiment.runs()
    finished = sum(run.state == load.FINISHED for run in runs)
    text = (
        f"{words.times(len(of.variants), 'variant')}, "
        f"{words.times(len(of.experiment.seeds), 'seed')}: "
        f"{finished} of {words.times(len(runs), 'run')} finished"
    )
    for state, word in (
        (load.FAILED, "failed"),
        (load.DAMAGED, "left damaged files"),
        (load.TO_DO, "still to do"),
    ):
        count = sum(run.state == state for run in runs)
        if count:
            text += f", {count} {word}"
    text += f". The baseline is {of.experiment.baseline}."
    data = sorted({str(run.summary["data"]) for run in runs if run.summary.get("data")})
    return text + (f" Data: {'; '.join(data)}." if data else "")


def _not_comparable(of: results.Results) -> list[str]:
    sentences = []
    counts = [len(result.variant.finished()) for result in of.variants]
    if 0 < max(counts, default=0) < statistics.SEEDS_MIN:
        sentences.append(
            f"No variant has more than {words.times(max(counts), 'finished run')}. Intervals and tests take "
            f"{statistics.SEEDS_MIN}, so there are none: any difference may be chance."
        )
    if of.experiment.parallel > 1:
        sentences.append(
            f"{of.experiment.parallel} runs shared the machine at a time: their wall times and "
            "rates say little about a machine of their own."
        )
    return sentences


def _measured(of: results.Results, key: str) -> list[results.VariantResult]:
    return [result for result in of.variants if result.means.get(key) is not None]


def _with_interval(metric: results.Metric, mean: statistics.Mean) -> str:
    if mean.low is None:
        return words.value(metric, mean.mean)
    low, high = mean.low, mean.high
    if metric.unit == "share":  # An interval of Student's knows no bounds.
        low, high = max(0.0, low), min(1.0, high)
    return (
        f"{words.value(metric, mean.mean)} (95 % interval {words.value(metric, low)} to "
        f"{words.value(metric, high)}, {words.times(mean.count, 'seed')})"
    )


def _against_baseline(of: results.Results, metric: results.Metric) -> list[str]:
    measured = _measured(of, metric.key)
    if not measured:
        return [f"No variant has a final {metric.label}."]
    best = max(measured, key=lambda result: metric.better * result.means[metric.key].mean)
    word = "Highest" if metric.better > 0 else "Lowest"
    baseline = of.baseline()
    sentence = (
        f"{word} mean {metric.label}: {best.variant.name} with "
        f"{_with_interval(metric, best.means[metric.key])}"
    )
    own = baseline.means[metric.key]
    if own is None:
        return [sentence + f"; the baseline {of.experiment.baseline} has none to compare with."]
    if best is baseline:
        sentence += ", the baseline itself."
    else:
        sentence += f"; the baseline {of.experiment.baseline} has {_with_interval(metric, own)}"
        one = best.compared.get(metric.key)
        sentence += f" ({_verdict(metric, one)})." if one is not None else "."
    sentences = [sentence]
    groups: dict[str, list[results.VariantResult]] = {"better": [], "worse": [], "open": [], "noise": []}
    for result in measured:
        one = result.compared.get(metric.key)
        # What diverged has a sentence of its own.
        if one is None or one.p_holm is None or result.diverged:
            continue
        if one.significant_alone():
            groups["open"].append(result)
        elif not one.significant():
            groups["noise"].append(result)
        elif metric.better * one.difference.difference > 0:
            groups["better"].append(result)
        else:
            groups["worse"].append(result)
    for word in ("better", "worse"):
        if groups[word]:
            # The largest differences first: they are named if not all can be.
            groups[word].sort(key=lambda r: -abs(r.compared[metric.key].difference.difference))
            listed = [_difference_text(metric, result) for result in groups[word]]
            sentences.append(
                f"{word.capitalize()} than the baseline in {metric.label}, beyond noise: "
                f"{words.names(listed)}."
            )
    if groups["open"]:
        groups["open"].sort(key=lambda r: -abs(r.compared[metric.key].difference.difference))
        listed = [
            f"{result.variant.name} ({words.points(metric, result.compared[metric.key].difference.difference)})"
            for result in groups["open"]
        ]
        tests = sum(one.p_holm is not None for one in (r.compared.get(metric.key) for r in measured) if one)
        sentences.append(
            f"Undecided: {words.names(listed)}. Each alone would count as different from the baseline in "
            f"{metric.label}; after the correction for {words.times(tests, 'comparison')} it does not. "
            "More seeds would tell."
        )
    if groups["noise"]:
        listed = [
            result.variant.name + _could_find(metric, result.compared[metric.key]) for result in groups["noise"]
        ]
        sentences.append(
            f"No difference from the baseline in {metric.label} was found for {words.names(listed)}. That "
            "does not make them the same: smaller ones are missed more often."
        )
    return sentences


def _difference_text(metric: results.Metric, result: results.VariantResult) -> str:
    one = result.compared[metric.key]
    return (
        f"{result.variant.name} ({words.points(metric, one.difference.difference)}, "
        f"{words.p_value(one.p_holm)})"
    )


def _along(of: results.Results, axis: results.Axis, line: str, metric: results.Metric) -> list[str]:
    points = [point for point in axis.of_line(line) if of.of(point.variant).means.get(metric.key) is not None]
    if len(points) < 2 or points[0] is not axis.of_line(line)[0]:
        return []
    compared = axis.compared[line, metric.key]
    where = f"Along {axis.field}" + (f" ({line})" if len(axis.lines()) > 1 else "")
    first = points[0]
    tested = [p for p in points[1:] if p.variant in compared and compared[p.variant].p_holm is not None]
    if not tested:
        ends = [words.value(metric, of.of(p.variant).means[metric.key].mean) for p in (first, points[-1])]
        return [
            f"{where}, mean {metric.label} goes from {ends[0]} at {first.label} to {ends[1]} at "
            f"{points[-1].label}; there is no test."
        ]
    diverged = [p for p in points[1:] if of.of(p.variant).diverged]
    steady = [p for p in tested if p not in diverged]
    found: dict[str, list[results.AxisPoint]] = {"worse": [], "better": []}
    undecided, rest = [], []
    for point in steady:
        one = compared[point.variant]
        if one.significant():
            found["better" if metric.better * one.difference.difference > 0 else "worse"].append(point)
        else:
            (undecided if one.significant_alone() else rest).append(point)
    parts = []
    for word, there in found.items():
        listed = [
            f"{p.label} ({words.points(metric, compared[p.variant].difference.difference)}, "
            f"{words.p_value(compared[p.variant].p_holm)})"
            for p in there
        ]
        if listed:
            parts.append(f"{word}, beyond noise, than at {first.label}: at {words.names(listed, 12)}")
    if rest:
        sizes = [compared[p.variant].detectable for p in rest if compared[p.variant].detectable is not None]
        would = f" (one of {words.size(metric, max(sizes))} would have been, {statistics.POWER_WORDS})" if sizes else ""
        parts.append(f"no difference from {first.label} was found at {_labels(rest)}{would}")
    text = f"{where}, {metric.label}: " + "; ".join(parts or [f"compared with that at {first.label}"])
    if undecided:
        text += f"; undecided, after the correction for {len(tested)} comparisons, at {_labels(undecided)}"
    if diverged:
        text += f"; runs diverged at {_labels(diverged)}"
    # The mean of those that are left may flatter.
    failed = [p for p in axis.of_line(line) if of.of(p.variant).count(load.FAILED)]
    if failed:
        text += f"; runs failed at {_labels(failed)}"
    return [text + "."]


def _labels(points: list[results.AxisPoint]) -> str:
    return words.names([point.label for point in points], 12)


def _target(of: results.Results, kind: str) -> list[str]:
    target = results.target_texts(of.experiment)[kind]
    timed = of.metric(f"seconds_to_{kind}")
    metric = timed or of.metric(f"epochs_to_{kind}")
    finished = [result for result in of.variants if result.variant.finished()]
    full = [result for result in finished if result.reached(kind) == len(result.variant.finished())]
    part = [result for result in finished if result not in full and result.reached(kind)]
    none = [result for result in finished if not result.reached(kind)]
    sentences = []
    measured = [result for result in full if result.means.get(metric.key) is not None]
    if measured:
        best = min(measured, key=lambda result: result.means[metric.key].mean)
        text = (
            f"A {target} was reached soonest by {best.variant.name}, on average after {_amount(metric, best)}"
        )
        baseline = of.baseline()
        one = best.compared.get(metric.key)
        if best is baseline:
            text += ", the baseline itself"
        elif one is not None:
            text += f"; the baseline needed {_amount(metric, baseline)} " f"({_verdict(metric, one)})"
        elif baseline in none:
            text += "; the baseline did not reach it"
        sentences.append(text + ".")
        sentences += _other_times(of, metric, [result for result in measured if result is not best])
    if part:
        listed = [
            f"{result.variant.name} ({result.reached(kind)} of {len(result.variant.finished())})"
            for result in part
        ]
        sentences.append(f"Only some runs reached a {target}: {words.names(listed)}.")
    if none:
        listed = words.names([result.variant.name for result in none])
        sentences.append(
            f"No variant reached a {target}."
            if len(none) == len(finished)
            else f"A {target} was reached in no run of {listed}."
        )
    return sentences


def _other_times(
    of: results.Results, metric: results.Metric, others: list[results.VariantResult]
) -> list[str]:
    """Who else was faster or slower than the baseline, beyond noise."""
    sentences = []
    own = of.baseline().means[metric.key]
    for word, sign in (("less", -1), ("more", 1)):
        listed = [
            f"{result.variant.name} ({result.means[metric.key].mean / own.mean:.2f} times the baseline's, "
            f"{words.p_value(result.compared[metric.key].p_holm)})"
            for result in others
            if metric.key in result.compared
            and result.compared[metric.key].significant()
            and sign * result.compared[metric.key].difference.difference > 0
        ]
        if listed:
            what = "time" if metric.unit == "s" else "data"
            sentences.append(
                f"Beyond noise, {word} {what} than the baseline until then: {words.names(listed)}."
            )
    return sentences


def _amount(metric: results.Metric, result: results.VariantResult) -> str:
    text = words.value(metric, result.means[metric.key].mean)
    return text + " epochs" if metric.unit == "epochs" else text


def _verdict(metric: results.Metric, one: results.Comparison) -> str:
    if one.p_holm is None:
        return one.difference.test
    if one.significant():
        return words.p_value(one.p_holm)
    if one.significant_alone():
        return f"{words.p_value(one.p_holm)}: undecided after the correction"
    return f"{words.p_value(one.p_holm)}: no difference found{_could_find(metric, one)}"


def _could_find(metric: results.Metric, one: results.Comparison) -> str:
    if one.detectable is None:
        return " (equal in every seed)" if one.difference.difference == 0 else ""
    return f" (one of {words.size(metric, one.detectable)} would have been, {statistics.POWER_WORDS})"


def _speed(of: results.Results) -> list[str]:
    metric = of.metric("examples_per_second")
    measured = _measured(of, "examples_per_second") if metric is not None else []
    baseline = of.baseline()
    if len(measured) < 2 or baseline not in measured:
        return []
    best = max(measured, key=lambda result: result.means[metric.key].mean)
    slowest = min(result.means[metric.key].mean for result in measured)
    if best.means[metric.key].mean < 1.01 * slowest:
        return []  # Nobody is faster in a way worth a sentence.
    own = baseline.means[metric.key].mean
    rate = words.value(metric, best.means[metric.key].mean)
    text = f"Most examples per second: {best.variant.name} with {rate}"
    if best is baseline:
        text += ", the baseline itself"
    elif own > 0:
        ratio = best.means[metric.key].mean / own
        text += f", {ratio:.2f} times the baseline's"
        one = best.compared.get(metric.key)
        text += f" ({_verdict(metric, one)})" if one is not None else ""
    sentences = [text + "."]
    waits = _measured(of, "wait_share") if of.metric("wait_share") is not None else []
    if len(waits) >= 2:
        metric = of.metric("wait_share")
        most = max(waits, key=lambda result: result.means["wait_share"].mean)
        least = min(waits, key=lambda result: result.means["wait_share"].mean)
        if most.means["wait_share"].mean - least.means["wait_share"].mean < 0.01:
            return sentences
        sentences.append(
            f"Workers waited most in {most.variant.name} ({words.value(metric, most.means['wait_share'].mean)} "
            f"of their time) and least in {least.variant.name} "
            f"({words.value(metric, least.means['wait_share'].mean)})."
        )
    return sentences


def _divergence(of: results.Results) -> list[str]:
    diverged = [result for result in of.variants if result.diverged]
    if not diverged:
        return []
    listed = [
        f"{result.variant.name} ({len(result.diverged)} of {len(result.variant.finished())} runs)"
        for result in diverged
    ]
    return [f"Diverged, with a final loss that is no finite number: {words.names(listed)}."]


def _failures(of: results.Results) -> list[str]:
    failed = [run for run in of.experiment.runs() if run.state == load.FAILED]
    sentences = []
    for run in failed[:6]:
        reason = run.error.strip().rstrip(".") or "its run.json gives no reason"
        if len(reason) > REASON_MAX:
            reason = reason[:REASON_MAX].rstrip() + "… (in full under the runs)"
        sentences.append(f"Failed: {run.variant}, seed {run.seed}: {reason}.")
    if len(failed) > 6:
        sentences.append(f"{len(failed) - 6} more runs failed; they are listed under the runs.")
    lost = [run for run in of.experiment.runs() if run.summary.get("workers_lost")]
    if lost:
        listed = words.names([f"{run.variant}, seed {run.seed}" for run in lost])
        sentences.append(f"Finished without some of their workers: {listed}.")
    sentences += [f"Damaged: {problem}." for problem in of.experiment.problems[:6]]
    return sentences

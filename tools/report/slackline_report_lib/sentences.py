"""What came out in plain words. Every sentence is made from the numbers: what is
not in them is not said, and what a test does not show is called noise."""

import math
from typing import Optional

from . import load, results, statistics, words

REASON_MAX = 160  # Characters of why a run failed.


def opening(of: results.Results) -> list[str]:
    """For a reader who knows nothing of this project: what was asked, what was
    compared, what came out, how sure that is, and what it cost. A sentence for each;
    that of which nothing is known is left out."""
    headline = headline_metric(of)
    told = [_asked(of, headline), _compared(of)]
    if headline is not None and _measured(of, headline.key):
        told += [_came_out(of, headline), _how_sure(of, headline)]
    elif any(result.all_diverged() for result in of.variants):
        told.append("All runs that have ended diverged: the loss grew until it was no number any more.")
    else:
        told.append("No run has been finished, so there is nothing to compare yet.")
    told.append(_cost(of))
    return [text for text in told if text]


def _asked(of: results.Results, headline: Optional[results.Metric]) -> str:
    if of.experiment.question:
        return "The question: " + " ".join(of.experiment.question)
    what = (
        "how well the trained model does"
        if headline is None
        else f"the {headline.label} of the trained model"
    )
    fields = list(
        dict.fromkeys(field for v in of.experiment.variants for field in v.axes if field != "variant")
    )
    if not fields:
        return f"The question: which of these ways to train is best for {what}?"
    named = words.names([f"the {words.field_name(field)}" for field in fields])
    return f"The question: what {'does' if len(fields) == 1 else 'do'} {named} change in {what}?"


def _compared(of: results.Results) -> str:
    sizes = {run.examples_per_epoch() for run in of.experiment.runs()}
    known = {round(size) for size in sizes if size > 0}
    examples = f" on {words.count(known.pop())} examples" if len(known) == 1 else ""
    text = f"A model was trained{examples} in {words.times(len(of.variants), 'way')} (variants: "
    text += words.names([result.variant.name for result in of.variants])
    if len(of.variants) > 1:
        text += f"; {of.experiment.baseline} is the baseline that the others are held against"
    seeds = len(of.experiment.seeds)
    text += f"), {'each ' if len(of.variants) > 1 else ''}from {words.times(seeds, 'random start')} (seeds)"
    if of.experiment.tune is not None:
        fields = words.names([f"the {words.field_name(field)}" for field in of.experiment.tune.fields])
        text += f", with {fields} that had done best for the variant in a search with other seeds"
    return text + "."


def _came_out(of: results.Results, metric: results.Metric) -> str:
    what = (
        "share of test examples that the model gets right (test accuracy)"
        if metric.key == "test_accuracy"
        else f"error of the model ({metric.label}; smaller is better)"
    )
    measured = _measured(of, metric.key)
    points = [p for p in of.axes[0].points if of.of(p.variant) in measured] if _is_one_line(of) else []
    if len(measured) == 1:
        own = words.value(metric, measured[0].means[metric.key].mean)
        text = f"The mean {what} of {measured[0].variant.name} was {own}"
    elif points:
        field = of.axes[0].field
        ends = [words.value(metric, of.of(p.variant).means[metric.key].mean) for p in (points[0], points[-1])]
        text = (
            f"With a {words.field_name(field)} of {words.field_value(field, points[0].label)} the mean {what} was {ends[0]}, "
            f"with one of {words.field_value(field, points[-1].label)} it was {ends[1]}"
        )
    else:
        best, baseline = _best(of, metric), of.baseline()
        last = min(measured, key=lambda r: metric.better * r.means[metric.key].mean)
        other = baseline if baseline in measured and baseline is not best else last
        text = (
            f"{_named(of, best)} had the {'largest' if metric.better > 0 else 'smallest'} mean {what}, "
            f"{words.value(metric, best.means[metric.key].mean)}; {_named(of, other)} had "
            f"{words.value(metric, other.means[metric.key].mean)}"
        )
    text = text[0].upper() + text[1:]
    runs = _to_be_made(of)
    diverged = [run for run in runs if run.state == load.DIVERGED]
    if not diverged:
        return text + "."
    lost = [result.variant.name for result in of.variants if result.all_diverged()]
    text += f"; {len(diverged)} of {words.times(len(runs), 'run')} diverged"
    return (
        text
        + (f", all of {words.names(lost)}" if lost else "")
        + ": the loss grew until it was no number any more."
    )


def _to_be_made(of: results.Results) -> list[load.Run]:
    return [run for run in of.experiment.runs() if run.state != load.NOT_TUNED]


def _named(of: results.Results, result: results.VariantResult) -> str:
    return f"{'the baseline' if result is of.baseline() else 'variant'} {result.variant.name}"


def _how_sure(of: results.Results, metric: results.Metric) -> str:
    if max(len(result.variant.finished()) for result in of.variants) < statistics.SEEDS_MIN:
        return (
            f"That is not sure at all: with fewer than {statistics.SEEDS_MIN} runs of each variant nobody can tell a "
            "difference from chance."
        )
    compared = [result for result in of.variants if metric.key in result.compared]
    tested = [result for result in compared if result.compared[metric.key].p_holm is not None]
    if not tested:
        return (
            ""
            if len(of.variants) == 1
            else "How sure that is cannot be told: no variant could be compared by a test."
        )
    beyond = [result for result in tested if result.compared[metric.key].significant()]
    rest = [result.compared[metric.key].detectable for result in tested if result not in beyond]
    sizes = [size for size in rest if size is not None]
    own = "from the baseline" if len(tested) > 1 else f"of {tested[0].variant.name} from the baseline"
    chance = "beyond what chance explains (p at most 0.05)"
    missed = f"below {words.size(metric, max(sizes))} would often have been missed" if sizes else ""
    if not beyond:
        return f"No difference {own} is {chance}" + (
            f"; one {missed}, so they need not be the same." if missed else "."
        )
    if len(tested) == 1:
        return f"The difference {own} is {chance}."
    text = f"{len(beyond)} of {len(tested)} differences {own} {'are' if len(beyond) > 1 else 'is'} {chance}"
    return text + (f"; of the others, one {missed}." if missed else ".")


def _cost(of: results.Results) -> str:
    runs = _to_be_made(of)
    seconds = [run.elapsed_seconds for run in runs if math.isfinite(run.elapsed_seconds)]
    if not seconds:
        return ""
    done = sum(run.state in (load.FINISHED, load.DIVERGED) for run in runs)
    text = "" if done == len(runs) else f"So far {done} of {words.times(len(runs), 'run')} are done; "
    text += f"the {words.times(len(seconds), 'run')} together took {words.duration(sum(seconds))}"
    text = text[0].upper() + text[1:]
    cpus = load.number(of.experiment.machine.get("cpus"))
    if cpus > 0:
        text += f" on one machine with {words.times(int(cpus), 'processor')}"
    if len(seconds) > 1:
        low, high = words.duration(min(seconds)), words.duration(max(seconds))
        text += f", {low if low == high else f'{low} to {high}'} each"
    tune = of.experiment.tune
    if tune is not None and tune.elapsed_seconds > 0:
        text += f"; the search before them took {words.duration(tune.elapsed_seconds)}"
    return text + "."


def findings(of: results.Results) -> list[str]:
    """All that the numbers say, for those who want to know it exactly."""
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
    sentences += of_search(of)
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
    kinds = sorted(
        {one.difference.test for v in of.variants for one in v.compared.values()} - {statistics.EQUAL}
    )
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
        (load.DIVERGED, "diverged"),
        (load.FAILED, "failed"),
        (load.DAMAGED, "left damaged files"),
        (load.TO_DO, "still to do"),
        (load.NOT_TUNED, "not made, as no value of the search was good"),
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


def _best(of: results.Results, metric: results.Metric) -> results.VariantResult:
    """Of those with a mean, and without a run that diverged where there are such."""
    measured = _measured(of, metric.key)
    steady = [result for result in measured if not result.variant.diverged()]
    return max(steady or measured, key=lambda result: metric.better * result.means[metric.key].mean)


def _with_interval(metric: results.Metric, mean: statistics.Mean) -> str:
    if mean.low is None:
        return words.value(metric, mean.mean)
    if mean.equal():
        return f"{words.value(metric, mean.mean)}, {words.EQUAL}"
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
    best = _best(of, metric)
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
        if one is None or one.p_holm is None:
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
            result.variant.name + _could_find(metric, result.compared[metric.key])
            for result in groups["noise"]
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
    if not points or points[0] is not axis.of_line(line)[0]:
        return []
    compared = axis.compared[line, metric.key]
    diverged = [p for p in axis.of_line(line) if words.diverged_of(of.of(p.variant).variant)]
    where = f"Along {words.field_name(axis.field)}" + (f" ({line})" if len(axis.lines()) > 1 else "")
    first = points[0]
    tested = [p for p in points[1:] if p.variant in compared and compared[p.variant].p_holm is not None]
    if not tested and not diverged:
        if len(points) < 2:
            return []
        ends = [words.value(metric, of.of(p.variant).means[metric.key].mean) for p in (first, points[-1])]
        return [
            f"{where}, mean {metric.label} goes from {ends[0]} at {first.label} to {ends[1]} at "
            f"{points[-1].label}; there is no test."
        ]
    found: dict[str, list[results.AxisPoint]] = {"worse": [], "better": []}
    undecided, rest = [], []
    for point in tested:
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
        would = (
            f" (one of {words.size(metric, max(sizes))} would have been, {statistics.POWER_WORDS})"
            if sizes
            else ""
        )
        parts.append(f"no difference from {first.label} was found at {_labels(rest)}{would}")
    own = words.value(metric, of.of(first.variant).means[metric.key].mean)
    text = f"{where}, {metric.label}: " + "; ".join(parts or [f"{own} at {first.label}"])
    if undecided:
        text += f"; undecided, after the correction for {len(tested)} comparisons, at {_labels(undecided)}"
    if diverged:
        listed = [f"{p.label} ({_share_diverged(of.of(p.variant))})" for p in diverged]
        text += f"; runs diverged at {words.names(listed, 12)}"
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
    ended = [result for result in of.variants if result.variant.ended()]
    full = [result for result in ended if result.all_reached(kind)]
    part = [result for result in ended if result not in full and result.reached(kind)]
    none = [result for result in ended if not result.reached(kind)]
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
            f"{result.variant.name} ({result.reached(kind)} of {len(result.variant.ended())})"
            for result in part
        ]
        sentences.append(f"Only some runs reached a {target}: {words.names(listed)}.")
    if none:
        listed = words.names([result.variant.name for result in none])
        sentences.append(
            f"No variant reached a {target}."
            if len(none) == len(ended)
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


def _share_diverged(result: results.VariantResult) -> str:
    if result.variant.all_tries_diverged:
        return "with each value tried"
    return f"{len(result.variant.diverged())} of {len(result.variant.runs)}"


def _divergence(of: results.Results) -> list[str]:
    sentences = []
    for whole, what in (
        (True, "No run came to an end without diverging"),
        (False, "Some runs diverged, and the means are those of the others, which flatters"),
    ):
        listed = [
            f"{result.variant.name} ({words.diverged_of(result.variant)})"
            for result in of.variants
            if words.diverged_of(result.variant) and result.all_diverged() == whole
        ]
        if listed:
            sentences.append(f"{what}: {words.names(listed, 12)}.")
    if sentences:
        sentences.append(
            "A run has diverged when its loss or a gradient is no finite number; it reaches no target."
        )
    return sentences


def of_search(of: results.Results) -> list[str]:
    """What is to be known before the values that were chosen are relied on."""
    tune = of.experiment.tune
    if tune is None:
        return []
    reasons = dict.fromkeys(tuned.left_out for tuned in tune.variants if tuned.left_out)
    told = []
    for reason in reasons:
        left_out = [tuned.variant for tuned in tune.variants if tuned.left_out == reason]
        told.append(f"No run was made of {words.names(left_out, 12)}: {reason.rstrip('.')}.")
    at_edge = [tuned.variant for tuned in tune.variants if tuned.at_edge]
    if at_edge:
        fields = words.names([words.field_name(field) for field in tune.fields])
        told.append(
            f"Warning: the chosen {fields} is the smallest or largest that was tried for {words.names(at_edge, 12)}; "
            "a better one may lie beyond. Try more values there."
        )
    return told


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
    lost = [run for v in of.variants for run in v.variant.finished() if run.summary.get("workers_lost")]
    if lost:
        listed = words.names([f"{run.variant}, seed {run.seed}" for run in lost])
        sentences.append(f"Finished without some of their workers: {listed}.")
    sentences += [f"Damaged: {problem}." for problem in of.experiment.problems[:6]]
    return sentences

"""report.html: one file that needs no other, readable on a phone and in the dark."""

import base64
import html
import json
from typing import Optional

from . import layout, load, plots, results, sentences, statistics, words

STYLE = """
:root { color-scheme: light dark; --text: #1b1b1b; --soft: #5a5a5a; --page: #ffffff; --box: #f4f4f2;
  --line: #d8d8d4; --link: #005a9c; --good: #00664a; --bad: #a33c00; }
@media (prefers-color-scheme: dark) { :root { --text: #e8e8e6; --soft: #adadab; --page: #161616;
  --box: #222221; --line: #3d3d3b; --link: #7fbfff; --good: #5fd3ac; --bad: #ff9d66; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: 1rem; max-width: 80rem; background: var(--page); color: var(--text);
  font: 1.0625rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0.5rem 0; }
h2 { font-size: 1.3rem; margin: 2.2rem 0 0.6rem; padding-top: 0.6rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.08rem; margin: 1.6rem 0 0.4rem; }
p, ul { margin: 0.5rem 0; max-width: 50rem; }
ul { padding-left: 1.3rem; }
li { margin: 0.35rem 0; }
a { color: var(--link); }
.soft { color: var(--soft); }
.summary { background: var(--box); border-left: 4px solid var(--link); border-radius: 4px;
  padding: 0.6rem 1rem; }
/* Says that it scrolls where its content is wider: then, and only then, the room above the
   hint is not taken away again. Percentages of margins are of the content's width. */
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 4px; margin: 0.6rem 0;
  container-type: inline-size; }
.wide { width: min-content; min-width: 100%; }
.hint { position: sticky; left: 0; width: 100cqw; height: 1.8rem; overflow: hidden; padding: 0 0.7rem;
  line-height: 1.8rem; color: var(--soft); background: var(--box);
  margin-bottom: clamp(-1.8rem, calc((100% - 100cqw - 1px) * 999 - 1.8rem), 0rem); }
.table { position: relative; background: var(--page); }
table { border-collapse: separate; border-spacing: 0; font-size: 1rem; width: 100%;
  font-variant-numeric: tabular-nums; }
th, td { padding: 0.4rem 0.55rem; text-align: right; border-bottom: 1px solid var(--line); }
tr:last-child > td, tr:last-child > th { border-bottom: 0; }
thead th { background: var(--box); vertical-align: bottom; }
th:first-child, td.left, th.left { text-align: left; }
tbody th { font-weight: 600; position: sticky; left: 0; background: var(--page);
  white-space: normal; overflow-wrap: anywhere; min-width: min(11rem, 38vw); max-width: 16rem; }
.good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
.plots { columns: 27rem 2; column-gap: 1.6rem; }
figure { margin: 0 0 1.4rem; break-inside: avoid; }
figure h3 { margin-top: 0; padding-top: 0.8rem; }
figure img { display: block; width: 100%; max-width: 38rem; height: auto; border: 1px solid var(--line); border-radius: 4px; }
figcaption { color: var(--soft); font-size: 1rem; margin-top: 0.4rem; max-width: 38rem; }
details { border: 1px solid var(--line); border-radius: 4px; margin: 0.5rem 0; padding: 0 0.8rem; }
summary { cursor: pointer; padding: 0.55rem 0; }
details details { margin-bottom: 0.8rem; }
pre { overflow-x: auto; background: var(--box); border-radius: 4px; padding: 0.7rem; font-size: 1rem;
  line-height: 1.4; margin: 0.4rem 0 0.8rem; }
code { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
dl { display: grid; grid-template-columns: minmax(6rem, max-content) 1fr; gap: 0.25rem 1rem; margin: 0.5rem 0; }
dt { color: var(--soft); } dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
@media print { body { max-width: none; } .scroll { overflow: visible; } }
"""


def html_of(of: results.Results, pictures: list[layout.Picture]) -> str:
    experiment = of.experiment
    parts = [
        f"<h1>{_escaped(experiment.title)}</h1>",
        '<div class="summary">',
        "".join(f"<p>{_escaped(sentence)}</p>" for sentence in sentences.opening(of)),
        "</div>",
        "<h2>What was found</h2>",
        "<ul>" + "".join(f"<li>{_escaped(s)}</li>" for s in sentences.findings(of)) + "</ul>",
        "<h2>Results</h2>",
        *_tune_part(of),
        *_axes_part(of),
    ]
    tables = _variants_part(of) + _comparison_part(of)
    if of.axes and len(of.variants) > plots.CURVES_MAX:
        # The tables along the axes say the most of it in less room.
        parts.append(_folded(f"All {len(of.variants)} variants", "".join(tables)))
    else:
        parts += tables
    parts.append("<h2>Plots</h2>")
    parts.append(f'<div class="plots">{"".join(map(_figure, pictures))}</div>')
    if not pictures:
        parts.append("<p>No run has finished, so there is nothing to draw.</p>")
    parts.append("<h2>How to read the numbers</h2>")
    parts.append("<ul>" + "".join(f"<li>{_escaped(line)}</li>" for line in _method(of)) + "</ul>")
    parts += _details(of)
    return (
        "<!DOCTYPE html>\n"
        f'<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_escaped(experiment.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


# ---- Tables


HINT = '<div class="hint" aria-hidden="true">Wider than the page: scroll sideways →</div>'


def _table(head: list[str], rows: list[list[str]]) -> str:
    """Cells are HTML; the first of each row is its header."""
    text = f'<div class="scroll"><div class="wide">{HINT}<div class="table"><table><thead><tr>'
    text += "".join(f'<th scope="col">{cell}</th>' for cell in head) + "</tr></thead><tbody>"
    for first, *rest in rows:
        text += f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>"
    return text + "</tbody></table></div></div></div>"


def _bad(text: str) -> str:
    return f'<span class="bad">{_escaped(text)}</span>'


OUTCOMES = ("test_accuracy", "test_loss", "train_loss")
COSTS = ("wall_seconds", "examples_per_second", "wait_share", "bytes_per_example", "steps", "dropped")


def _variants_part(of: results.Results) -> list[str]:
    """A table of what came out, of what it took, and of staleness."""
    headline = sentences.headline_metric(of)
    outcomes = [m for m in of.metrics if m.key in OUTCOMES or m.key.startswith(("seconds_to", "epochs_to"))]
    # An accuracy that nobody measures is 0 throughout.
    outcomes = [m for m in outcomes if m.key != "test_accuracy" or m is headline]
    outcomes = [
        m for m in outcomes if not m.key.startswith("seconds_to") or any(r.values[m.key] for r in of.variants)
    ]
    costs = [m for m in of.metrics if m.key in COSTS]
    costs = [
        m for m in costs if m.key != "dropped" or any(any(r.values["dropped"].values()) for r in of.variants)
    ]
    costs = [
        m
        for m in costs
        if m.key != "steps" or len({v for r in of.variants for v in r.values["steps"].values()}) > 1
    ]
    parts = ["<h3>What came out</h3>", _metrics_table(of, outcomes, ended=headline is None)]
    parts.append(
        '<p class="soft">Mean over the seeds ± half of its 95 % interval, which takes '
        f"{statistics.SEEDS_MIN} seeds. More columns, and every value of every run: <code>data/results.csv</code>, "
        "<code>data/results.json</code>, <code>data/runs.csv</code>.</p>"
    )
    if costs:
        parts += ["<h3>What it took</h3>", _metrics_table(of, costs)]
    return parts + _staleness_part(of)


def _metrics_table(of: results.Results, metrics: list[results.Metric], ended: bool = False) -> str:
    """`ended`: with a column for how runs have ended, where no figure says it."""
    head = (
        ["variant", "runs"] + (["ended"] if ended else []) + [_escaped(_head(metric)) for metric in metrics]
    )
    rows = []
    for result in of.variants:
        row = [_variant_cell(of, result), _runs_cell(result)]
        if ended:
            row.append(_bad(words.diverged(result.variant)) if result.all_diverged() else "–")
        rows.append(row + [_metric_cell(of, result, metric) for metric in metrics])
    return _table(head, rows)


def _variant_cell(of: results.Results, result: results.VariantResult) -> str:
    name = _escaped(result.variant.name)
    return name + (' <span class="soft">(baseline)</span>' if result is of.baseline() else "")


def _metric_cell(of: results.Results, result: results.VariantResult, metric: results.Metric) -> str:
    target = results.target_of(metric.key)
    if result.all_diverged():
        if metric.key in COSTS:
            return "–"
        first = metric is sentences.headline_metric(of)
        return _bad("never" if target else words.diverged(result.variant) if first else "diverged")
    cell = _escaped(words.mean(metric, result.means[metric.key]))
    if target and result.variant.ended():
        reached, ended = result.reached(target), len(result.variant.ended())
        # Where nothing is timed there is nothing to explain.
        timed = metric.key.startswith("epochs") or result.values[metric.key] or not reached
        if reached < ended and timed:
            cell += " " + _bad(f"({reached} of {ended} reached it)")
    elif metric is sentences.headline_metric(of) and result.variant.diverged():
        cell += " " + _bad(f"({words.diverged_of(result.variant)})")
    return cell


def _head(metric: results.Metric) -> str:
    """Units stand at the values, but for epochs."""
    return metric.label + (" per example" if metric.unit == "bytes/example" else "")


def _runs_cell(result: results.VariantResult) -> str:
    text = f"{len(result.variant.finished())} of {len(result.variant.runs)}"
    notes = [
        f"{result.count(state)} {state}"
        for state in (load.DIVERGED, load.FAILED, load.DAMAGED, load.NOT_TUNED)
        if result.count(state)
    ]
    return text + (" " + _bad(f"({', '.join(notes)})") if notes else "")


def _staleness_part(of: results.Results) -> list[str]:
    keys = [key for key in results.STALENESS if any(results.staleness(result, key) for result in of.variants)]
    if not keys:
        return []
    rows = []
    for result in of.variants:
        row = [_variant_cell(of, result)]
        for key in keys:
            values = results.staleness(result, key) or ()
            row.append(f"{words.SPACE}/{words.SPACE}".join(f"{value:.0f}" for value in values) or "–")
        rows.append(row)
    parts = ["<h3>How stale gradients were</h3>"]
    parts.append(
        _table(["variant"] + [f"{results.STALENESS[key][0]}: p50 / p99 / max" for key in keys], rows)
    )
    lines = [f"{results.STALENESS[key][0].capitalize()}: {results.STALENESS[key][2]}" for key in keys]
    lines.append("A clock is one step of every worker; a shard is a piece of the model.")
    lines.append(
        "p50, p99 and max: half and 99 % of all have at most so many, and the largest, over all seeds."
    )
    return parts + ['<ul class="soft">' + "".join(f"<li>{_escaped(line)}</li>" for line in lines) + "</ul>"]


# ---- Values that were searched


def _tune_part(of: results.Results) -> list[str]:
    tune = of.experiment.tune
    if tune is None:
        return []
    fields = words.names([words.field_name(field) for field in tune.fields])
    metric = _measure(of, tune)
    columns = _in_order(
        {
            tuple(trial.values.get(field, "") for field in tune.fields)
            for t in tune.variants
            for trial in t.tried
        }
    )
    rows = []
    for tuned in tune.variants:
        by_values = {
            tuple(trial.values.get(field, "") for field in tune.fields): trial for trial in tuned.tried
        }
        row = [_escaped(tuned.variant)]
        for values in columns:
            row.append(_trial_cell(metric, by_values.get(values), tuned))
        rows.append(row)
    parts = [f"<h3>The search for the {_escaped(fields)}</h3>"]
    table = _table(["variant"] + [_escaped(", ".join(values)) for values in columns], rows)
    parts.append(_folded(f"All {len(rows)} variants", table) if len(rows) > plots.CURVES_MAX else table)
    of_each = f" The values of a column: {', '.join(tune.fields)}." if len(tune.fields) > 1 else ""
    seeds = words.names([str(seed) for seed in tune.seeds])
    parts.append(
        f'<p class="soft">Mean {_escaped(metric.label)} of each value that was tried, from '
        f"{words.times(len(tune.seeds), 'seed')} ({_escaped(seeds)}) that {'is' if len(tune.seeds) == 1 else 'are'} "
        f"used for nothing else. The best one, in bold, is that of the variant's runs.{_escaped(of_each)}</p>"
    )
    parts += [f"<p>{_bad(warning)}</p>" for warning in sentences.of_search(of)]
    return parts


def _measure(of: results.Results, tune: load.Tune) -> results.Metric:
    """As the results say it, whether or not a run has it."""
    return next(metric for metric in results.all_metrics({}) if metric.key == tune.measure)


def _in_order(of: set[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """By number where all are numbers, else as text."""

    def key(values: tuple[str, ...]) -> list:
        placed = [results.axis_number(value) for value in values]
        return [
            (0, place[1], "") if place is not None else (1, 0.0, value)
            for place, value in zip(placed, values)
        ]

    return sorted(of, key=key)


def _trial_cell(metric: results.Metric, trial: Optional[load.Trial], tuned: load.TunedVariant) -> str:
    if trial is None:
        return "–"
    if trial.result is not None:
        text = words.value(metric, trial.result)
        text = f"<b>{_escaped(text)}</b>" if trial.values == tuned.chosen else _escaped(text)
    else:
        text = "" if trial.diverged else _bad("no result")
    if trial.diverged:
        every = trial.diverged >= len(trial.runs)
        text += " " + _bad("diverged" if every else f"{trial.diverged} of {len(trial.runs)} diverged")
    if trial.values == tuned.chosen and tuned.at_edge:
        text += " " + _bad("at the edge")
    return text.strip()


# ---- Comparisons


def _comparison_part(of: results.Results) -> list[str]:
    compared = [result for result in of.variants if result.compared]
    if not compared:
        return []
    parts = [f"<h3>Compared with the baseline, {_escaped(of.experiment.baseline)}</h3>"]
    accuracy_measured = sentences.headline_metric(of) is of.metric("test_accuracy")
    metrics = [
        metric
        for metric in of.metrics
        if metric.compared
        and any(metric.key in result.compared for result in compared)
        and (metric.key != "test_accuracy" or accuracy_measured)
    ]
    head = ["variant"] + [_escaped(metric.label) for metric in metrics]
    rows = [
        [_escaped(result.variant.name)] + [_difference_cell(m, result.compared.get(m.key)) for m in metrics]
        for result in compared
    ]
    parts.append(_table(head, rows))
    note = (
        "Difference of the means (variant minus baseline), its 95 % interval in brackets, and p after "
        "Holm's correction over the variants."
    )
    if sentences.tests_used(of):
        note += " Made by: " + "; ".join(sentences.tests_used(of)) + "."
    note += " Coloured where p is at most 0.05: green for better, orange for worse."
    parts.append(f'<p class="soft">{_escaped(note)}</p>')
    return parts


def _difference_cell(metric: results.Metric, one: Optional[results.Comparison]) -> str:
    if one is None:
        return "–"
    text = _escaped(words.difference(metric, one.difference))
    if one.p_holm is not None:
        if one.difference.test != statistics.EQUAL:
            text += _escaped(f", {words.p_value(one.p_holm)}")
    if not one.significant():
        return text
    good = metric.better * one.difference.difference > 0
    return f'<span class="{"good" if good else "bad"}">{text}</span>'


def _axes_part(of: results.Results) -> list[str]:
    headline = sentences.headline_metric(of)
    if headline is None:
        return []
    parts = []
    for axis in of.axes:
        lines = axis.lines()
        order = list(dict.fromkeys((p.number, p.label) for p in sorted(axis.points, key=lambda p: p.number)))
        rows = []
        for line in lines:
            by_place = {(point.number, point.label): point for point in axis.of_line(line)}
            row = [_escaped(line if len(lines) > 1 else headline.label)]
            for place in order:
                point = by_place.get(place)
                one = axis.compared[line, headline.key].get(point.variant) if point else None
                result = of.of(point.variant) if point else None
                mean = result.means[headline.key] if result is not None else None
                cell = _escaped(words.mean(headline, mean))
                if result is not None and result.all_diverged():
                    cell = _bad(words.diverged(result.variant))
                elif result is not None and result.variant.diverged():
                    cell += " " + _bad(f"({words.diverged_of(result.variant)})")
                elif one is not None and one.significant():
                    good = headline.better * one.difference.difference > 0
                    cell = f'<span class="{"good" if good else "bad"}">{cell}</span>'
                elif result is not None and mean is None and result.count(load.FAILED):
                    cell = _bad("failed")
                row.append(cell)
            rows.append(row)
        label = words.field_label(axis.field)
        parts.append(
            f"<h3>{_escaped(headline.label.capitalize())} by {_escaped(words.field_name(axis.field))}</h3>"
        )
        parts.append(_table([_escaped(label)] + [_escaped(place) for _, place in order], rows))
        parts.append(
            f'<p class="soft">Columns: values of <code>{_escaped(axis.field)}</code>. Each row is compared with its first '
            "value; coloured where p, after Holm's correction over the row, is at most 0.05: green for better, orange "
            "for worse. Where runs diverged nothing is compared.</p>"
        )
    return parts


def _figure(picture: layout.Picture) -> str:
    """As an image, because the names inside of several SVG pictures would clash in
    one page. The picture itself follows the colours that the reader prefers."""
    source = f"data:image/svg+xml;base64,{base64.b64encode(picture.svg).decode('ascii')}"
    return (
        f"<figure><h3>{_escaped(picture.title)}</h3>"
        f'<img alt="{_escaped(picture.title)}. {_escaped(picture.caption)}" src="{source}">'
        f"<figcaption>{_escaped(picture.caption)} <code>plots/{_escaped(picture.name)}.svg</code></figcaption>"
        "</figure>"
    )


# ---- Method and details


def _method(of: results.Results) -> list[str]:
    lines = [
        "A 95 % interval of a mean is Student's t interval over the seeds: with few seeds it is wide, "
        "and it speaks of other seeds of this job on this machine, not of other jobs."
    ]
    kinds = {one.difference.test for v in of.variants for one in v.compared.values()}
    if "paired t" in kinds:
        lines.append(
            "A variant with the same seeds as the baseline is compared in pairs (paired t test): the "
            "two runs of a seed share their first model and the order of their data."
        )
    if "Welch" in kinds:
        lines.append(
            "A variant with other seeds than the baseline, because runs failed or are missing, is "
            "compared by Welch's t test."
        )
    if statistics.TOO_FEW in kinds:
        lines.append(
            f"With fewer than {statistics.SEEDS_MIN} seeds on a side there is no interval and no test."
        )
    lines.append(
        "p values are corrected by Holm over the variants. 'No difference found' means p above 0.05. The size beside "
        f"it is that of a difference which runs with this spread find in {100 * statistics.POWER:.0f} of 100 "
        "experiments; a smaller one is missed more often."
    )
    if of.experiment.target:
        distance = results.evaluation_interval(of.experiment)
        text = "Time to target is the time of the first evaluation that reached it, without interpolation"
        if "epochs" in distance:
            text += f"; evaluations are {_span(distance['epochs'])} epochs"
            if "seconds" in distance:
                text += f", or {_span(distance['seconds'])} s,"
            text += " apart, and nothing finer can be told"
        lines.append(text + ". A run that never reached it has no time, and is counted.")
    if of.metric("test_accuracy") is not None:
        lines.append("Final accuracy and losses are those of the final model, over the whole data sets.")
    if any(words.diverged_of(result.variant) for result in of.variants):
        lines.append(
            "A run has diverged when its loss or a gradient is no finite number. It counts as a run, has no final "
            "figures and reaches no target; the means beside it are those of the other runs, which are a selection, "
            "so they are not compared with the baseline."
        )
    if any(result.variant.replay for result in of.variants):
        lines.append(
            "Variants with 'replay' are not jobs of processes but replays of delays in one process: "
            "they have staleness and losses, and no wall time, rate, waiting or traffic."
        )
    lines.append(
        "Waiting is the time at pulls, barriers and all-reduce, as a share of that and the computing "
        "together. Traffic is payload, first sends only."
    )
    return lines


def _span(span: tuple[float, float]) -> str:
    low, high = (words.significant(value, 2) for value in span)
    return low if low == high else f"{low} to {high}"


def _details(of: results.Results) -> list[str]:
    experiment = of.experiment
    parts = ["<h2>Details</h2>", "<h3>Experiment</h3>"]
    entries = [("name", experiment.name), ("commit", experiment.commit), ("seeds", _seeds_text(experiment))]
    parts.append(_definitions(entries))
    if experiment.command:
        parts.append(f"<p>Made by:</p><pre><code>{_escaped(experiment.command)}</code></pre>")
    if experiment.machine:
        parts.append("<h3>Machine</h3>")
        parts.append(
            _definitions(
                [
                    (key.replace("_", " "), value if isinstance(value, str) else json.dumps(value))
                    for key, value in experiment.machine.items()
                ]
            )
        )
    parts.append("<h3>Variants and runs</h3>")
    for result in of.variants:
        variant = result.variant
        changes = [f"mode {variant.mode}"] if variant.mode else []
        changes += variant.set + ([f"replay {variant.replay}"] if variant.replay else [])
        inner = f"<p>{_escaped('; '.join(changes) or 'As the base config.')}</p>"
        if variant.config:
            inner += _folded("Config of the variant", _pre(variant.config))
        inner += "".join(_run_details(run) for run in variant.runs)
        parts.append(
            _folded(f"{variant.name} – {len(variant.finished())} of {len(variant.runs)} runs", inner)
        )
    return parts


def _run_details(run: load.Run) -> str:
    entries = [("folder", run.folder), ("commit", run.commit)]
    if run.error:
        entries.append(("error", run.error))
    entries += [
        (name.replace("_", " "), str(run.summary[name]))
        for name in ("data", "stopped", "model_sha256")
        if run.summary.get(name)
    ]
    lost = run.summary.get("workers_lost")
    if lost:
        entries.append(("workers lost", "; ".join(map(str, lost))))
    inner = _definitions(entries)
    if run.command:
        inner += f"<p>To repeat it:</p>{_pre(run.command)}"
    if run.config:
        inner += _folded("Its exact config", _pre(run.config))
    when = words.at_steps([run]) if run.state == load.DIVERGED else ""
    return _folded(f"seed {run.seed}: {run.state}" + (f" ({when})" if when else ""), inner)


def _seeds_text(experiment: load.Experiment) -> str:
    return ", ".join(map(str, experiment.seeds))


def _definitions(entries: list[tuple[str, str]]) -> str:
    cells = "".join(f"<dt>{_escaped(k)}</dt><dd>{_escaped(v)}</dd>" for k, v in entries if v)
    return f"<dl>{cells}</dl>"


def _folded(title: str, inner: str) -> str:
    return f"<details><summary>{_escaped(title)}</summary>{inner}</details>"


def _pre(text: str) -> str:
    return f"<pre><code>{_escaped(text)}</code></pre>"


def _escaped(text: str) -> str:
    return html.escape(text, quote=True)

"""report.html: one file that needs no other, readable on a phone and in the dark."""

import base64
import html
import json
from typing import Optional

from . import load, plots, results, sentences, statistics, words

STYLE = """
:root { color-scheme: light dark; --text: #1b1b1b; --soft: #5a5a5a; --page: #ffffff; --box: #f4f4f2;
  --line: #d8d8d4; --link: #005a9c; --good: #00664a; --bad: #a33c00; }
@media (prefers-color-scheme: dark) { :root { --text: #e8e8e6; --soft: #adadab; --page: #161616;
  --box: #222221; --line: #3d3d3b; --link: #7fbfff; --good: #5fd3ac; --bad: #ff9d66; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: 1rem; max-width: 62rem; background: var(--page); color: var(--text);
  font: 1.0625rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0.5rem 0; }
h2 { font-size: 1.3rem; margin: 2.2rem 0 0.6rem; padding-top: 0.6rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.08rem; margin: 1.6rem 0 0.4rem; }
p, ul { margin: 0.5rem 0; }
ul { padding-left: 1.3rem; }
li { margin: 0.35rem 0; }
a { color: var(--link); }
.soft { color: var(--soft); }
.summary { background: var(--box); border-left: 4px solid var(--link); border-radius: 4px;
  padding: 0.6rem 1rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 4px; margin: 0.6rem 0; }
table { border-collapse: separate; border-spacing: 0; font-size: 1rem; width: 100%;
  font-variant-numeric: tabular-nums; }
th, td { padding: 0.4rem 0.7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
tr:last-child > td, tr:last-child > th { border-bottom: 0; }
thead th { background: var(--box); vertical-align: bottom; }
th:first-child, td.left, th.left { text-align: left; }
tbody th { font-weight: 600; position: sticky; left: 0; background: var(--page);
  white-space: normal; overflow-wrap: anywhere; min-width: min(11rem, 38vw); max-width: 16rem; }
.good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr));
  gap: 0 1.6rem; align-items: start; }
figure { margin: 0.6rem 0 1.4rem; min-width: 0; }
figure img { display: block; width: 100%; max-width: 38rem; height: auto; background: #ffffff;
  border: 1px solid var(--line); border-radius: 4px; }
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


def html_of(of: results.Results, pictures: list[plots.Picture]) -> str:
    experiment = of.experiment
    parts = [
        f"<h1>{_escaped(experiment.title)}</h1>",
        '<div class="summary">',
        "<ul>" + "".join(f"<li>{_escaped(s)}</li>" for s in sentences.summary(of)) + "</ul>",
        "</div>",
    ]
    if experiment.question:
        parts.append("<h2>The question</h2>")
        parts += [f"<p>{_escaped(line)}</p>" for line in experiment.question]
    parts.append("<h2>Results</h2>")
    parts += _axes_part(of)
    tables = [
        _results_table(of),
        '<p class="soft">Mean over the seeds ± half of its 95 % interval. More columns, and every '
        "value of every run: <code>data/results.csv</code>, <code>data/results.json</code>, "
        "<code>data/runs.csv</code>.</p>",
        *_comparison_part(of),
    ]
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


def _table(head: list[str], rows: list[list[str]]) -> str:
    """Cells are HTML; the first of each row is its header."""
    text = '<div class="scroll"><table><thead><tr>'
    text += "".join(f'<th scope="col">{cell}</th>' for cell in head) + "</tr></thead><tbody>"
    for first, *rest in rows:
        text += f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>"
    return text + "</tbody></table></div>"


def _results_table(of: results.Results) -> str:
    accuracy_measured = sentences.headline_metric(of) is of.metric("test_accuracy")
    metrics = [
        metric
        for metric in of.metrics
        if not metric.key.startswith((*results.STALENESS, "examples_to"))
        and (metric.key != "test_accuracy" or accuracy_measured)
        and (metric.key != "dropped" or any(any(r.values["dropped"].values()) for r in of.variants))
        and (not metric.key.startswith("seconds_to") or any(r.values[metric.key] for r in of.variants))
    ]
    head = ["variant", "runs"] + [_escaped(_head(metric)) for metric in metrics]
    stale = [
        key
        for key in results.STALENESS
        if any(results.staleness(result, key) for result in of.variants)
    ]
    head += [f"{results.STALENESS[key][0]}: p50 / p99 / max" for key in stale]
    rows = []
    for result in of.variants:
        name = _escaped(result.variant.name)
        if result is of.baseline():
            name += ' <span class="soft">(baseline)</span>'
        row = [name, _runs_cell(result)]
        for metric in metrics:
            cell = _escaped(words.mean(metric, result.means[metric.key]))
            reached_of = metric.key.partition("_to_")[2]
            if reached_of and result.variant.finished():
                reached, finished = result.reached(reached_of), len(result.variant.finished())
                # Where nothing is timed there is nothing to explain.
                timed = metric.key.startswith("epochs") or result.values[metric.key] or not reached
                if reached < finished and timed:
                    cell += f' <span class="bad">({reached} of {finished} reached it)</span>'
            row.append(cell)
        for key in stale:
            values = results.staleness(result, key) or ()
            row.append(" / ".join(f"{value:.0f}" for value in values) or "–")
        rows.append(row)
    return _table(head, rows)


def _head(metric: results.Metric) -> str:
    """Units stand at the values, but for epochs."""
    return metric.label + (" per example" if metric.unit == "bytes/example" else "")


def _runs_cell(result: results.VariantResult) -> str:
    text = f"{len(result.variant.finished())} of {len(result.variant.runs)}"
    notes = []
    for state in (load.FAILED, load.DAMAGED):
        if result.count(state):
            notes.append(f"{result.count(state)} {state}")
    if result.diverged:
        notes.append(f"{len(result.diverged)} diverged")
    return text + (f' <span class="bad">({", ".join(notes)})</span>' if notes else "")


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
    note += " Made by: " + "; ".join(sentences.tests_used(of)) + "."
    note += " Coloured where p is at most 0.05: green for better, orange for worse."
    parts.append(f'<p class="soft">{_escaped(note)}</p>')
    return parts


def _difference_cell(metric: results.Metric, one: Optional[results.Comparison]) -> str:
    if one is None:
        return "–"
    text = _escaped(words.difference(metric, one.difference))
    if one.p_holm is not None:
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
            row = [_escaped(line)]
            for place in order:
                point = by_place.get(place)
                mean = of.of(point.variant).means[headline.key] if point else None
                cell = _escaped(words.mean(headline, mean))
                one = axis.compared[line, headline.key].get(point.variant) if point else None
                if one is not None and one.significant():
                    good = headline.better * one.difference.difference > 0
                    cell = f'<span class="{"good" if good else "bad"}">{cell}</span>'
                elif point and mean is None and of.of(point.variant).diverged:
                    cell = '<span class="bad">diverged</span>'
                elif point and mean is None and of.of(point.variant).count(load.FAILED):
                    cell = '<span class="bad">failed</span>'
                row.append(cell)
            rows.append(row)
        parts.append(f"<h3>{_escaped(headline.label.capitalize())} along {_escaped(axis.field)}</h3>")
        parts.append(_table([_escaped(axis.field)] + [_escaped(label) for _, label in order], rows))
        parts.append(
            '<p class="soft">Each row is compared with its first value; coloured where p, after Holm\'s '
            "correction over the row, is at most 0.05: green for better, orange for worse.</p>"
        )
    return parts


def _figure(picture: plots.Picture) -> str:
    """The smaller of the two forms. As an image, because the names inside of
    several SVG pictures would clash in one page."""
    kind, data = min((("svg+xml", picture.svg), ("png", picture.png)), key=lambda form: len(form[1]))
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
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
        lines.append(f"With fewer than {statistics.SEEDS_MIN} seeds on a side there is no interval and no test.")
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
    entries = [("state", run.state), ("folder", run.folder), ("commit", run.commit)]
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
    return _folded(f"seed {run.seed}: {run.state}", inner)


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

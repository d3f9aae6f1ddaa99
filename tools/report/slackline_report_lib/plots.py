"""The pictures of the report, each as PNG and SVG. A fact has one picture, and none
that a table says as well.
"""

import dataclasses
import math
import pathlib
from typing import Optional

import matplotlib
import matplotlib.ticker
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from . import curves, layout, results, sentences, statistics, words

CURVES_MAX = 12  # In one pair of axes.
BARS_MAX = 25  # Of a histogram, one for each number; beyond they hold several.
X_LABELS = {
    "seconds": "wall time (seconds)",
    "examples": "training examples seen by all workers",
    "steps": "steps of each worker",
}
X_WORDS = {"seconds": "wall time", "examples": "examples seen", "steps": "steps"}
UNIT_WORDS = {"share": "%", "s": "seconds", "examples/s": "training examples per second"}
DIVERGED_CAPTION = "A run has diverged when its loss or a gradient is no finite number."
Y_LABELS = {"test_loss": "test loss", "test_accuracy": "test accuracy (%)", "train_loss": "train loss"}


@dataclasses.dataclass(frozen=True)
class Panel:
    title: str  # "" if it is the only one.
    variants: list[results.VariantResult]
    field: str = ""  # The axis that it has one value of.


def draw_all(of: results.Results, folder: pathlib.Path) -> list[layout.Picture]:
    """In the order of the report. Also writes them; removes those that an earlier
    report left in the folder."""
    matplotlib.rcParams.update(
        {
            "font.size": layout.FONT,
            "axes.titlesize": layout.FONT,
            "legend.fontsize": layout.FONT - 1,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": layout.GRID,
            **{f"{part}.color": layout.INK for part in ("text", "xtick", "ytick")},
            "axes.labelcolor": layout.INK,
            "axes.edgecolor": layout.INK,
            "grid.linewidth": 0.6,
            "axes.axisbelow": True,
            # The same data make the same file.
            "svg.hashsalt": "slackline",
        }
    )
    panels = _panels(of)
    styles = _styles(panels)
    drawings: list[Optional[layout.Drawing]] = []
    for axis in of.axes:
        for key in _axis_metrics(of):
            drawings.append(_along_axis(of, axis, key))
    # A plot along an axis that all are on says it already.
    if not any(len(axis.points) == len(of.variants) for axis in of.axes):
        for kind in of.experiment.target:
            drawings.append(_to_target(of, kind, styles))
    headline = sentences.headline_metric(of)
    for key in ([headline.key] if headline is not None else []) + ["train_loss"]:
        drawings.append(
            _curves(of, panels, styles, key, "examples") or _curves(of, panels, styles, key, "steps")
        )
        if key != "train_loss":
            drawings.append(_curves(of, panels, styles, key, "seconds"))
    drawings += [_staleness(of, key, styles) for key in _staleness_drawn(of)]
    drawings.append(_waiting(of))
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("*.png"), *folder.glob("*.svg")]:
        old.unlink()
    pictures = []
    for drawing in drawings:
        if drawing is not None:
            pictures.append(layout.written(drawing, folder))
    return pictures


# ---- Colours and panels


def _panels(of: results.Results) -> list[Panel]:
    """At most CURVES_MAX variants each: split by the axis that takes the fewest
    panels, else in the order of the variants."""
    if len(of.variants) <= CURVES_MAX:
        return [Panel("", of.variants)]
    best: Optional[list[Panel]] = None
    for field in dict.fromkeys(field for v in of.experiment.variants for field in v.axes):
        by_value: dict[str, list[results.VariantResult]] = {}
        for result in of.variants:
            by_value.setdefault(result.variant.axes.get(field, ""), []).append(result)
        fits = all(len(group) <= CURVES_MAX for group in by_value.values())
        if fits and (best is None or len(by_value) < len(best)):
            shown = results.value_names(list(by_value))
            best = [
                Panel(f"{words.field_name(field)} {shown[v]}", group, field) for v, group in by_value.items()
            ]
    if best is not None:
        return best
    chunks = [of.variants[i : i + CURVES_MAX] for i in range(0, len(of.variants), CURVES_MAX)]
    return [Panel(f"part {i + 1} of {len(chunks)}", chunk) for i, chunk in enumerate(chunks)]


def _style(index: int) -> layout.Style:
    turn = index // len(layout.COLORS)
    return layout.Style(
        layout.COLORS[index % len(layout.COLORS)],
        layout.LINE_STYLES[turn % len(layout.LINE_STYLES)],
        layout.MARKERS[(index + turn) % len(layout.MARKERS)],
    )


def _styles(panels: list[Panel]) -> dict[str, layout.Style]:
    """By variant, the same in every picture."""
    return {
        result.variant.name: _style(index) for panel in panels for index, result in enumerate(panel.variants)
    }


def _labels(panel: Panel, of: results.Results) -> dict[str, str]:
    """By variant, for the legend of its panel. What the panel's title says is
    left out where the values on the other axes tell the variants apart."""
    labels = {result.variant.name: result.variant.name for result in panel.variants}
    if not panel.field:
        return labels
    fields = dict.fromkeys(field for v in of.experiment.variants for field in v.axes if field != panel.field)
    shown = {
        field: results.value_names([v.axes.get(field, "") for v in of.experiment.variants])
        for field in fields
    }
    short = {
        result.variant.name: ", ".join(
            f"{field.split('.')[-1]} {shown[field][result.variant.axes.get(field, '')]}" for field in fields
        )
        for result in panel.variants
    }
    return short if len(set(short.values())) == len(labels) else labels


# ---- Curves


def _curves(
    of: results.Results, panels: list[Panel], styles: dict[str, layout.Style], metric: str, x_name: str
) -> Optional[layout.Drawing]:
    found: list[tuple[Panel, dict[str, Optional[curves.Curve]]]] = []
    for panel in panels:
        by_name = {}
        for result in panel.variants:
            curve = curves.curve_of(result.variant.finished(), metric, x_name)
            if curve is not None or result.all_diverged():
                by_name[result.variant.name] = curve
        if by_name:
            found.append((panel, by_name))
    every = [curve for _, by_name in found for curve in by_name.values() if curve is not None]
    # Single points are in the tables.
    if not any(len(curve.x) > 1 for curve in every):
        return None
    if metric == "test_accuracy" and not any((curve.mean > 0).any() for curve in every):
        return None  # Not measured.
    sizes = [run.examples_per_epoch() for run in of.experiment.runs()]
    per_epoch = max((size for size in sizes if math.isfinite(size)), default=0.0)
    places = {
        result.variant.name: curves.places_of_divergence(result.variant.diverged(), x_name, per_epoch)
        for panel, by_name in found
        for result in panel.variants
        if result.variant.name in by_name
    }
    last = max([curve.x[-1] for curve in every] + [place for of_one in places.values() for place in of_one])
    stack = layout.Stack(
        3.1 if len(found) == 1 else 2.6,
        [panel.title for panel, _ in found],
        [
            [(_labels(panel, of)[name] + _diverged_note(of, name), styles[name]) for name in by_name]
            for panel, by_name in found
        ],
    )
    scale = layout.scale(metric, [curve.mean for curve in every], Y_LABELS[metric])
    draw_style = "steps-post" if x_name == "seconds" else "default"
    for axes, (_, by_name) in zip(stack.axes, found):
        for name, curve in by_name.items():
            style = styles[name]
            if curve is None:
                continue
            axes.plot(
                curve.x,
                scale.place(curve.mean),
                color=style.color,
                linestyle=style.line,
                marker=style.marker,
                markersize=4,
                markevery=max(1, len(curve.x) // 8),
                linewidth=1.6,
                drawstyle=draw_style,
            )
            if curve.low is not None:
                axes.fill_between(
                    curve.x,
                    scale.place(curve.low),
                    scale.place(curve.high),
                    step="post" if x_name == "seconds" else None,
                    color=style.color,
                    alpha=0.13,
                    linewidth=0,
                )
        axes.set_xlabel(X_LABELS[x_name])
        scale.apply(axes, "y")
        axes.set_xlim(0, (last or 1.0) * 1.02)
        if x_name != "seconds":
            axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(_big_number))
    # The same range in all panels, so that they can be compared.
    if len(stack.axes) > 1:
        limits = [axes.get_ylim() for axes in stack.axes]
        inverted = limits[0][0] > limits[0][1]
        low, high = min(map(min, limits)), max(map(max, limits))
        for axes in stack.axes:
            axes.set_ylim((high, low) if inverted else (low, high))
    if any(places.values()):
        for axes, (_, by_name) in zip(stack.axes, found):
            height = layout.edge(axes, metric != "test_accuracy", "diverged")
            for name in by_name:
                layout.crosses(axes, places[name], height, styles[name].color)
    name = metric.replace("_", " ")
    return layout.Drawing(
        f"{metric}_by_{x_name}",
        f"{name[0].upper()}{name[1:]} against {X_WORDS[x_name]}",
        _curve_caption(every, metric, x_name, any(places.values())),
        stack.figure,
    )


def _diverged_note(of: results.Results, name: str) -> str:
    note = words.diverged_of(of.of(name).variant)
    return f" – {note}" if note else ""


def _curve_caption(every: list[curves.Curve], metric: str, x_name: str, diverged: bool) -> str:
    seeds = sorted({curve.seeds for curve in every})
    parts = []
    if metric == "train_loss":
        parts.append("Means over the workers of the losses of their minibatches since their last record.")
    else:
        parts.append("Evaluations on the test data.")
    if seeds == [1]:
        parts.append("One seed each, so there is no band.")
    else:
        parts.append("Lines are means over the seeds.")
        if max(seeds) >= 3:
            parts.append("Bands are 95 % intervals of the mean (Student's t).")
        if 2 in seeds:
            parts.append("With two seeds the band goes from the smaller value to the larger.")
        if 1 in seeds:
            parts.append("Variants with one seed have no band.")
    if max(seeds) > 1 and x_name == "seconds":
        parts.append(
            "Seeds reach a point at different times: each keeps its last value until the next one, and "
            "to the end once it has ended."
        )
    if diverged:
        parts.append(
            f"Crosses at the edge: where runs diverged. {DIVERGED_CAPTION} The lines are those of the other runs."
        )
    if x_name == "seconds":
        parts.append("An evaluation stands at the time when its result was known.")
    return " ".join(parts)


def _big_number(value: float, _) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:g} M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:g} k"
    return f"{value:g}"


# ---- Along an axis with numbers


def _axis_metrics(of: results.Results) -> list[str]:
    headline = sentences.headline_metric(of)
    keys = ([headline.key] if headline is not None else []) + ["examples_per_second"]
    keys += [_key_to(of, kind) for kind in of.experiment.target]
    return [key for key in keys if of.metric(key) is not None]


def _key_to(of: results.Results, kind: str) -> str:
    """Time where there is one, else epochs."""
    return f"seconds_to_{kind}" if of.metric(f"seconds_to_{kind}") is not None else f"epochs_to_{kind}"


def _label(metric: results.Metric) -> str:
    unit = UNIT_WORDS.get(metric.unit, metric.unit)
    return metric.label + (f" ({unit})" if unit and unit != metric.label.split()[0] else "")


def _along_axis(of: results.Results, axis: results.Axis, key: str) -> Optional[layout.Drawing]:
    metric = of.metric(key)
    target = results.target_of(key)
    means = {
        # The mean over those that reached it would flatter.
        result.variant.name: result.means[key] if not target or result.all_reached(target) else None
        for result in of.variants
    }
    present = [means[p.variant] for p in axis.points if means[p.variant] is not None]
    if not present or (key == "test_accuracy" and not any(mean.mean > 0 for mean in present)):
        return None
    at_edge = {  # Without a place on the scale.
        result.variant.name
        for result in of.variants
        if means[result.variant.name] is None
        and (result.all_diverged() or (target and result.variant.ended()))
    }
    lines = [
        line
        for line in axis.lines()
        if any(means[p.variant] is not None or p.variant in at_edge for p in axis.of_line(line))
    ]
    chunks = [lines[i : i + CURVES_MAX] for i in range(0, len(lines), CURVES_MAX)]
    order = sorted({(point.number, point.label) for point in axis.points})
    places = {place: i for i, place in enumerate(order)}
    style_of = {line: _style(i % CURVES_MAX) for i, line in enumerate(lines)}
    stack = layout.Stack(
        3.1,
        [""] * len(chunks),
        [[(line, style_of[line]) for line in chunk] if len(lines) > 1 else [] for chunk in chunks],
    )
    scale = layout.scale(key, [[mean.mean for mean in present]], _label(metric))
    partly = False
    for axes, chunk in zip(stack.axes, chunks):
        crosses: list[tuple[float, str]] = []
        for index, line in enumerate(chunk):
            style = style_of[line]
            shift = (index - (len(chunk) - 1) / 2) * min(0.16, 0.6 / len(chunk))
            points = axis.of_line(line)
            shown = [p for p in points if means[p.variant] is not None]
            x = np.array([places[p.number, p.label] + shift for p in shown])
            y = np.array([means[p.variant].mean for p in shown])
            spans = [_span(of.of(p.variant), key) or (means[p.variant].mean,) * 2 for p in shown]
            low, high = np.array(spans).T if spans else (x, x)
            axes.plot(
                x,
                scale.place(y),
                color=style.color,
                linestyle=style.line,
                marker=style.marker,
                markersize=5,
                linewidth=1.6,
                zorder=3,
            )
            axes.vlines(x, scale.place(low), scale.place(high), color=style.color, linewidth=1.4, alpha=0.75)
            some = [i for i, p in enumerate(shown) if of.of(p.variant).variant.diverged()]
            partly = partly or bool(some)
            axes.plot(
                x[some],
                scale.place(y[some]),
                linestyle="",
                marker=style.marker,
                markersize=6,
                markerfacecolor=layout.PAPER,
                markeredgecolor=style.color,
                zorder=4,
            )
            crosses += [
                (places[p.number, p.label] + shift, style.color) for p in points if p.variant in at_edge
            ]
        scale.apply(axes, "y")
        if crosses:
            height = layout.edge(axes, metric.better < 0, "not\nreached" if target else "diverged")
            for x_place, color in crosses:
                layout.crosses(axes, [x_place], height, color)
        axes.set_xlim(-0.5, len(order) - 0.5)
        axes.set_xticks(range(len(order)))
        axes.set_xticklabels([label for _, label in order])
        axes.set_xlabel(words.field_label(axis.field))
        axes.grid(False, axis="x")
    drawn = [of.of(p.variant) for p in axis.points if means[p.variant] is not None]
    caption = "Means over the seeds." + _span_words(drawn, key)
    caption += " The values of the axis stand at equal distances."
    if any(p.variant in at_edge for p in axis.points):
        caption += " A cross at the edge: "
        caption += (
            "not every run reached the target." if target else "all of its runs diverged. " + DIVERGED_CAPTION
        )
    if partly:
        caption += " Hollow: some of its runs diverged, and the mean is that of the others, which flatters."
    notes = {p.variant: words.diverged_of(of.of(p.variant).variant) for p in axis.points}
    listed = [f"{name} ({note})" for name, note in notes.items() if note]
    if listed:
        caption += f" Diverged: {words.names(listed, 12)}."
    title = f"{metric.label[0].upper()}{metric.label[1:]} by {words.field_name(axis.field)}"
    if target:
        title += f" ({results.target_texts(of.experiment)[target]})"
    return layout.Drawing(f"{key}_along_{_file_name(axis.field)}", title, caption, stack.figure)


def _span(result: results.VariantResult, key: str) -> Optional[tuple[float, float]]:
    """What the plots show around a mean: its interval; with two seeds, which have
    none, their values; None with one."""
    mean = result.means[key]
    if mean is None:
        return None
    if mean.count == 2:
        values = result.values[key].values()
        return min(values), max(values)
    return None if mean.low is None else (mean.low, mean.high)


def _span_words(shown: list[results.VariantResult], key: str) -> str:
    """What the lines around the means are, for a caption."""
    counts = {result.means[key].count for result in shown if result.means[key] is not None}
    text = (
        " Lines are 95 % intervals of the mean (Student's t); one may go on beyond the edge."
        if max(counts, default=0) > 2
        else ""
    )
    if 2 in counts:
        text += " With two seeds the line goes from one value to the other."
    if 1 in counts:
        text += " With one seed there is no line."
    return text


def _file_name(text: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in text)


# ---- One row for each variant


def _to_target(of: results.Results, kind: str, styles: dict[str, layout.Style]) -> Optional[layout.Drawing]:
    metric = of.metric(_key_to(of, kind))
    timed = metric is not None and metric.unit == "s"
    shown = [result for result in of.variants if result.variant.ended() or result.all_diverged()]
    if timed:
        shown = [
            r for r in shown if r.all_diverged() or any(run.has_wall_time() for run in r.variant.ended())
        ]
    if metric is None or not any(result.values[metric.key] for result in shown):
        return None
    rows = layout.Rows([result.variant.name for result in shown], 0.34)
    axes = rows.axes
    longest = max(value for result in shown for value in result.values[metric.key].values())
    for row, result in enumerate(shown):
        style, mean = styles[result.variant.name], result.means[metric.key]
        span = _span(result, metric.key)
        reached, of_runs = len(result.values[metric.key]), len(result.variant.ended())
        end = 0.0
        if mean is not None:
            complete = reached == of_runs
            axes.barh(
                row,
                mean.mean,
                height=0.62,
                color=style.color,
                alpha=0.85 if complete else 0.35,
                hatch=None if complete else "///",
                edgecolor=layout.PAPER,
            )
            end = mean.mean
            if span is not None:
                end = max(end, min(span[1], longest * 1.3))
                axes.plot([max(0.0, span[0]), end], [row, row], color=layout.INK, linewidth=1.4)
        if reached < of_runs:
            text = f"reached by {reached} of {of_runs}" if reached else f"not reached (0 of {of_runs})"
            if result.all_diverged():
                text = words.diverged(result.variant)
            elif result.variant.diverged():
                text += f", {len(result.variant.diverged())} diverged"
            axes.annotate(
                text,
                (end, row),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                color=layout.GREY,
                fontsize=layout.FONT - 1,
            )
    # Room for the words beside a bar.
    partly = any(0 < result.reached(kind) < len(result.variant.ended()) for result in shown)
    axes.set_xlim(0, (longest or 1.0) * (1.8 if partly else 1.3))
    target = results.target_texts(of.experiment)[kind]
    word = "wall time in seconds" if timed else "epochs"
    axes.set_xlabel(f"{word} until a {target}")
    caption = (
        f"First evaluation with a {target}, or better; nothing is interpolated between evaluations, "
        "so a bar is up to one interval between evaluations too long."
    )
    caption += _span_words(shown, metric.key)
    if partly:
        caption += " Pale and hatched: the mean of the runs that reached it, which flatters."
    name = "Wall time" if timed else "Epochs"
    return layout.Drawing(f"{metric.key}", f"{name} until a {target}", caption, rows.figure)


def _waiting(of: results.Results) -> Optional[layout.Drawing]:
    shares: list[tuple[str, dict[int, float]]] = []
    for result in of.variants:
        by_rank: dict[int, list[float]] = {}
        for run in result.variant.finished():
            for rank, share in results.waiting_shares(run).items():
                by_rank.setdefault(rank, []).append(share)
        if by_rank:
            shares.append(
                (
                    result.variant.name,
                    {rank: sum(by_rank[rank]) / len(by_rank[rank]) for rank in sorted(by_rank)},
                )
            )
    if not shares:
        return None
    ranks = sorted({rank for _, by_rank in shares for rank in by_rank})
    bars = len(ranks) <= len(layout.COLORS)
    rows = layout.Rows([name for name, _ in shares], max(0.34, 0.13 * len(ranks)) if bars else 0.34, legend=bars)
    axes = rows.axes
    for row, (_, by_rank) in enumerate(shares):
        if bars:
            height = 0.8 / len(ranks)
            for index, rank in enumerate(ranks):
                if rank in by_rank:
                    axes.barh(
                        row - 0.4 + (index + 0.5) * height,
                        100 * by_rank[rank],
                        height=height * 0.9,
                        color=layout.COLORS[index],
                    )
        else:
            values = [100 * share for share in by_rank.values()]
            axes.plot([min(values), max(values)], [row, row], color=layout.GREY, linewidth=1)
            axes.plot(values, [row] * len(values), "|", markersize=11, markeredgewidth=1.5, color=layout.COLORS[0])
    if bars:
        handles = [Patch(color=layout.COLORS[i]) for i in range(len(ranks))]
        rows.figure.legend(
            handles,
            [f"{'worker ' if i == 0 else ''}{rank}" for i, rank in enumerate(ranks)],
            loc="upper center",
            ncol=len(ranks),
            frameon=False,
            handlelength=1,
            columnspacing=1.0,
            handletextpad=0.4,
        )
    axes.set_xlabel("share of the time spent waiting (%)")
    axes.set_xlim(left=0)
    caption = (
        "Time at pulls (a parked one waits at the gate), barriers and all-reduce, of that and the "
        "computing together; means over the seeds. "
    )
    caption += "One bar for each worker." if bars else "One tick for each worker."
    return layout.Drawing("waiting", "Waiting of each worker", caption, rows.figure)


# ---- Staleness


def _staleness_drawn(of: results.Results) -> list[str]:
    """Of missed updates and missed clocks, which are the same in two units, the finer
    one as long as each number has a bar of its own."""
    updates = [len(results.histogram(result.variant.finished(), "missed_updates")) for result in of.variants]
    return ["missed_updates" if max(updates, default=0) <= BARS_MAX else "missed_clocks", "lead"]


def _staleness(of: results.Results, key: str, styles: dict[str, layout.Style]) -> Optional[layout.Drawing]:
    shown = [(r.variant.name, results.histogram(r.variant.finished(), key)) for r in of.variants]
    shown = [(name, bins) for name, bins in shown if sum(bins) > 0]
    if not shown:
        return None
    largest = max(max(i for i, count in enumerate(bins) if count) for _, bins in shown)
    if largest == 0:
        return None  # The table says it.
    groups = _groups(largest)
    columns = 1 if len(shown) == 1 else 2 if len(shown) <= 6 else 3
    rows = math.ceil(len(shown) / columns)
    titles = [layout.wrapped(name, {1: 52, 2: 30, 3: 19}[columns]) for name, _ in shown]
    lines = max(title.count("\n") + 1 for title in titles) + 1
    above, height, below, left, gap = lines * 0.19 + 0.12, 1.2, 0.33, 0.75, 0.5
    total = rows * (above + height + below) + 0.32
    width = (layout.WIDTH - left - 0.15 - (columns - 1) * gap) / columns
    figure = Figure(figsize=(layout.WIDTH, total))
    labels = [str(high) for _, high in groups]
    every = max(1, math.ceil(len(groups) * max(map(len, labels)) * 0.11 / width))
    for i, ((name, bins), title) in enumerate(zip(shown, titles)):
        row, column = divmod(i, columns)
        bottom = total - (row + 1) * (above + height) - row * below
        axes = figure.add_axes(
            ((left + column * (width + gap)) / layout.WIDTH, bottom / total, width / layout.WIDTH, height / total)
        )
        counts = np.array([sum(bins[low : high + 1]) for low, high in groups])
        axes.bar(range(len(groups)), 100 * counts / counts.sum(), width=0.85, color=styles[name].color)
        p50, p99 = (statistics.histogram_percentile(bins, fraction) for fraction in (0.5, 0.99))
        axes.set_title(f"{title}\np50 {p50}, p99 {p99}", loc="left", fontsize=layout.FONT - 1.5)
        axes.set_xlim(-0.7, len(groups) - 0.3)
        axes.set_xticks(range(0, len(groups), every))
        axes.set_xticklabels(labels[::every], fontsize=layout.FONT - 2)
        axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(3))
        axes.tick_params(axis="y", labelsize=layout.FONT - 2)
        axes.set_ylim(bottom=0)
        axes.grid(False, axis="x")
    name, unit, meaning = results.STALENESS[key]
    axis = f"{name} of a {'step' if key == 'lead' else 'gradient'} ({unit})"
    counted = "reads" if key == "lead" else "gradients"
    figure.text(0.5, 0.08 / total, axis, ha="center", va="bottom")
    figure.text(0.02, 0.5, f"share of the {counted} (%)", rotation=90, va="center", ha="left")
    caption = (
        f"{name.capitalize()}: {meaning} Over all shards and seeds; p50 and p99 are percentiles. The heights have scales "
        "of their own."
    )
    if any(low != high for low, high in groups):
        caption += " A bar counts the values above the bar to its left, up to its number."
    if largest >= 1023:
        caption += " The last bar holds everything beyond as well."
    return layout.Drawing(key, f"Staleness: {name}", caption, figure)


def _groups(largest: int) -> list[tuple[int, int]]:
    """Bars: first and last value of each. Single values as long as that can be read."""
    if largest < BARS_MAX:
        return [(value, value) for value in range(max(largest, 3) + 1)]
    groups = [(0, 0), (1, 1), (2, 2)]
    while groups[-1][1] < largest:
        low = groups[-1][1] + 1
        groups.append((low, 2 * (low - 1)))
    return groups

"""How the pictures of the report are laid out: colours, axes below each other or
in rows, legends, scales, and the files that they become.

An SVG follows the colours of whoever looks at it: where dark ones are preferred,
rules in it replace each colour by one that reads well on a dark page. A viewer that
knows no such rules shows the light ones.

Sizes are laid out in inches by hand: legends stand below their axes with a
height that follows from their labels, so nothing overlaps whatever the names
are. The width fits a page and, with this font, a phone.
"""

import dataclasses
import io
import math
import pathlib
from typing import Callable

import matplotlib
import matplotlib.ticker
import numpy as np
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import text_to_path

from . import files

INK, PAPER, GREY, GRID = "#1b1b1b", "#ffffff", "#666666", "#dddddd"
# Okabe and Ito, for all eyes; grey in place of their yellow, which is too faint
# for a line on white.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK, "#777777")
# Of each colour the one for dark pages.
DARK = {
    INK: "#e8e8e6",
    PAPER: "#161616",
    GREY: "#b0b0ae",
    GRID: "#3a3a39",
    "#0072b2": "#4f9fe0",
    "#d55e00": "#ff8b45",
    "#009e73": "#35c795",
    "#cc79a7": "#e69fc6",
    "#e69f00": "#f5c451",
    "#56b4e9": "#a3dcff",
    "#777777": "#9c9c9a",
}
LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
WIDTH = 5.5  # Inches, of every picture.
FONT = 11  # Points.


@dataclasses.dataclass(frozen=True)
class Picture:
    name: str  # Of the files, without ending.
    title: str
    caption: str
    png: bytes
    svg: bytes


@dataclasses.dataclass(frozen=True)
class Style:
    color: str
    line: str
    marker: str


@dataclasses.dataclass
class Drawing:
    name: str
    title: str
    caption: str
    figure: Figure


def written(drawing: Drawing, folder: pathlib.Path) -> Picture:
    data = {}
    for ending in ("png", "svg"):
        out = io.BytesIO()
        metadata = {"Date": None} if ending == "svg" else {"Software": None}
        drawing.figure.savefig(out, format=ending, dpi=160, metadata=metadata, facecolor=PAPER)
        data[ending] = out.getvalue() if ending == "png" else _with_dark_colors(out.getvalue())
        files.write_bytes(folder / f"{drawing.name}.{ending}", data[ending])
    return Picture(drawing.name, drawing.title, drawing.caption, data["png"], data["svg"])


def _with_dark_colors(svg: bytes) -> bytes:
    """Each element keeps its own light colours, which such a rule overrides."""
    rules = "".join(
        f'[style*="{what}: {light}"]{{{what}:{dark} !important}}'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
    )
    style = f'<style type="text/css">@media (prefers-color-scheme: dark){{{rules}}}</style></defs>'
    return svg.replace(b"</defs>", style.encode("ascii"), 1)


def _text_width(text: str, size: float = FONT) -> float:
    """Inches, of the longest line."""
    font = FontProperties(family=matplotlib.rcParams["font.family"], size=size)
    # Not as mathematics, in which a dollar sign starts a formula.
    widths = [text_to_path.get_text_width_height_descent(line, font, False)[0] for line in text.split("\n")]
    return max(widths) / 72


def wrapped(text: str, columns: int) -> str:
    """Names often have no spaces to break at, so commas and such do as well."""
    spaced = text
    for mark in (",", "/", ":", "=", "_", "-"):
        spaced = spaced.replace(mark, mark + "\u200b")
    words_of = spaced.replace(" ", " \u200b").split("\u200b")
    lines, line = [], ""
    for word in words_of:
        if line and len(line + word.rstrip()) > columns:
            lines.append(line.rstrip())
            line = ""
        while len(word) > columns:
            lines.append(word[:columns])
            word = word[columns:]
        line += word
    lines.append(line.rstrip())
    return "\n".join(lines).replace("$", r"\$")


class Stack:
    """A figure of axes one below the other, each with a title and a legend of
    its own below it."""

    LEFT, RIGHT = 0.95, 0.2

    def __init__(self, axes_height: float, titles: list[str], legends: list[list[tuple]]):
        """`legends`: for each pair of axes (label, Style) of its curves."""
        self._columns, heights = [], []
        for title, entries in zip(titles, legends):
            labels = [wrapped(label, 52) for label, _ in entries]
            size = matplotlib.rcParams["legend.fontsize"]
            widest = max((_text_width(label, size) for label in labels), default=0)
            columns = max(1, min(len(labels), int((WIDTH - 0.4) / (widest + 0.62))))
            # Filled column by column; the tallest of them counts.
            rows = math.ceil(len(labels) / columns) if labels else 0
            lines = [1.5 + 1.2 * label.count("\n") for label in labels]
            tallest = max((sum(lines[i : i + rows]) for i in range(0, len(labels), rows or 1)), default=0)
            legend = tallest * size / 72 + 0.15 if labels else 0.0
            self._columns.append(columns)
            heights.append((0.42 if title else 0.15, axes_height, 0.62, legend))
        total = sum(map(sum, heights))
        self.figure = Figure(figsize=(WIDTH, total))
        self.axes = []
        top = total
        for (above, height, below, legend), title, entries, columns in zip(
            heights, titles, legends, self._columns
        ):
            bottom = top - above - height
            axes = self.figure.add_axes(
                (
                    self.LEFT / WIDTH,
                    bottom / total,
                    (WIDTH - self.LEFT - self.RIGHT) / WIDTH,
                    height / total,
                )
            )
            if title:
                axes.set_title(wrapped(title, 52), loc="left", fontweight="bold")
            if entries:
                handles = [
                    Line2D(
                        [],
                        [],
                        color=style.color,
                        linestyle=style.line,
                        marker=style.marker,
                        markersize=4.5,
                        linewidth=1.8,
                    )
                    for _, style in entries
                ]
                self.figure.legend(
                    handles,
                    [wrapped(label, 52) for label, _ in entries],
                    loc="upper center",
                    bbox_to_anchor=(0.5, (bottom - below + 0.06) / total),
                    ncol=columns,
                    frameon=False,
                    handlelength=2.2,
                    columnspacing=1.4,
                )
            self.axes.append(axes)
            top = bottom - below - legend


class Rows:
    """A figure with one row for each name, the first on top, and room for a legend
    of a few short entries above."""

    def __init__(self, names: list[str], row_height: float, legend: bool = False):
        labels = [wrapped(name, 22) for name in names]
        lines = max(label.count("\n") + 1 for label in labels)
        row_height = max(row_height, lines * FONT * 1.25 / 72 + 0.06)
        left = max(_text_width(label) for label in labels) + 0.25
        above, below = (0.45 if legend else 0.15), 0.62
        height = row_height * len(names) + 0.1
        total = above + height + below
        self.figure = Figure(figsize=(WIDTH, total))
        self.axes = self.figure.add_axes(
            (left / WIDTH, below / total, (WIDTH - left - 0.25) / WIDTH, height / total)
        )
        self.axes.set_yticks(range(len(names)))
        self.axes.set_yticklabels(labels)
        self.axes.set_ylim(len(names) - 0.5, -0.5)
        self.axes.tick_params(axis="y", length=0)
        self.axes.grid(False, axis="y")


def edge(axes, at_top: bool, label: str) -> float:
    """Makes room at the worse edge for what has no place on the scale; returns the
    height of its middle, as a share of that of the axes."""
    ends = axes.get_ylim()
    ticks = [tick for tick in axes.get_yticks() if min(ends) <= tick <= max(ends)]
    transform = axes.yaxis.get_transform()
    low, high = transform.transform(ends)
    room = 0.14 * (high - low)
    placed = (low, high + room) if at_top else (low - room, high)
    outer, inner = transform.inverted().transform((placed[1], high) if at_top else (placed[0], low))
    # Covers what goes beyond the scale.
    axes.axhspan(outer, inner, facecolor=PAPER, edgecolor="none", zorder=2.5)
    axes.axhline(inner, color=GREY, linewidth=0.8, linestyle=":", zorder=2.6)
    axes.set_ylim(transform.inverted().transform(placed))
    axes.set_yticks(ticks)
    middle = 1 - 0.07 / 1.14 if at_top else 0.07 / 1.14
    axes.text(
        -0.02, middle, label, transform=axes.transAxes, ha="right", va="center", fontsize=FONT - 1, color=GREY
    )
    return middle


def crosses(axes, x: list[float], height: float, color: str) -> None:
    """At that share of the height of the axes."""
    axes.plot(
        x,
        [height] * len(x),
        transform=axes.get_xaxis_transform(),
        linestyle="",
        marker="x",
        markersize=7,
        markeredgewidth=2,
        color=color,
        clip_on=False,
        zorder=4,
    )


def _plain_log_ticks(axis, low: float, high: float, shown: Callable[[float], str]) -> None:
    """Ticks at 1, 2, 5 of each decade, fewer or more as the range asks, written
    out in full."""
    decades = math.log10(high / low) if high > low > 0 else 0
    if decades < 1:
        # Beside each other labels take more room than one above the other.
        subs = (
            (1.0, 2.0, 3.0, 5.0)
            if axis.axis_name == "x" and decades > 0.5
            else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
        )
    else:
        subs = (1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)
    axis.set_major_locator(matplotlib.ticker.LogLocator(subs=subs, numticks=12))
    axis.set_minor_locator(matplotlib.ticker.NullLocator())
    axis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: shown(value)))


class _LossScale:
    """As it is, or logarithmic when the values have very different sizes."""

    def __init__(self, values: np.ndarray, label: str):
        values = values[np.isfinite(values)]
        positive = values[values > 0]
        self.log = len(positive) > 0 and positive.max() / positive.min() > 8
        self._range = (positive.min(), positive.max()) if self.log else (0.0, 1.0)
        self._label = label

    def place(self, values):
        return np.maximum(values, self._range[0] / 2)

    def apply(self, axes, direction: str) -> None:
        axes.set(**{direction + "label": self._label + (" (log scale)" if self.log else "")})
        if self.log:
            limits = (self._range[0] / 1.15, self._range[1] * 1.15)
            axes.set(**{direction + "scale": "log", direction + "lim": limits})
            _plain_log_ticks(getattr(axes, direction + "axis"), *self._range, lambda value: f"{value:g}")


class _AccuracyScale:
    """In percent; logarithmic in the error when that spans more than a factor of
    four, as 98 and 99 % then are as far apart as 80 and 90 %."""

    def __init__(self, values: np.ndarray, label: str):
        errors = 100 * (1 - values[np.isfinite(values)])
        positive = errors[errors > 0]
        self.log = len(positive) > 0 and positive.max() / positive.min() > 4
        self._range = (positive.min(), positive.max()) if self.log else (0.0, 100.0)
        self._label = label

    def place(self, values):
        errors = 100 * (1 - np.asarray(values, dtype=float))
        return np.clip(errors, self._range[0] / 1.5, 100.0) if self.log else 100 - np.clip(errors, 0.0, 100.0)

    def apply(self, axes, direction: str) -> None:
        note = ("\n" if direction == "y" else ", ") + "log scale of the error" if self.log else ""
        axes.set(**{direction + "label": self._label + note})
        if self.log:
            limits = (self._range[1] * 1.15, self._range[0] / 1.15)
            axes.set(**{direction + "scale": "log", direction + "lim": limits})
            axis = getattr(axes, direction + "axis")
            _plain_log_ticks(axis, *self._range, lambda error: f"{100 - error:g}")


class _PlainScale:
    log = False

    def __init__(self, _: np.ndarray, label: str):
        self._label = label

    def place(self, values):
        return np.maximum(values, 0.0)

    def apply(self, axes, direction: str) -> None:
        axes.set(**{direction + "label": self._label})
        axes.set_ylim(bottom=0) if direction == "y" else axes.set_xlim(left=0)


def scale(metric: str, values: list, label: str):
    flat = np.concatenate([np.asarray(one, dtype=float).ravel() for one in values])
    kind = (
        _AccuracyScale
        if metric == "test_accuracy"
        else _LossScale if metric.endswith("loss") else _PlainScale
    )
    return kind(flat, label)

"""Numbers as people read them."""

import math
from typing import Optional

from . import results, statistics

# Spaces at which no line is broken.
SPACE = "\u00a0"
THIN_SPACE = "\u202f"


def value(metric: results.Metric, number: Optional[float]) -> str:
    if number is None or not math.isfinite(number):
        return "–"
    if metric.unit == "share":
        return f"{100 * number:.{_decimals(metric)}f}{SPACE}%"
    if metric.unit == "bytes/example":
        return byte_text(number)
    if metric.unit in ("examples", "examples/s") or (metric.unit == "" and metric.better == 0):
        text = f"{number:,.0f}".replace(",", THIN_SPACE)
        return text + SPACE + "/s" if metric.unit == "examples/s" else text
    if metric.unit == "s":
        return significant(number, 3) + SPACE + "s"
    return significant(number, 4 if metric.unit == "" else 3)


def byte_text(number: float, digits: int = 3) -> str:
    """With 0 digits: as few as the number needs."""
    scale, unit = _byte_scale(number)
    text = significant(number / scale, digits) if digits else f"{number / scale:g}"
    return text + SPACE + unit


def _byte_scale(number: float) -> tuple[float, str]:
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(number) >= scale:
            return scale, unit
    return 1.0, "B"


def _scale(metric: results.Metric, number: float) -> tuple[float, str]:
    """What to divide by, and the unit to name."""
    if metric.unit == "share":
        return 0.01, "%"
    if metric.unit == "bytes/example":
        return _byte_scale(number)
    return 1.0, {"examples/s": "/s", "s": "s"}.get(metric.unit, "")


def _decimals_of(half: float) -> int:
    """For two digits that count."""
    return min(9, max(0, 1 - math.floor(math.log10(half))))


def mean(metric: results.Metric, of: Optional[statistics.Mean]) -> str:
    """With the half width of its interval, where there is one: that has two digits,
    and the mean as many decimals, as more would mean nothing; shares have always the
    same."""
    if of is None:
        return "–"
    if of.low is None:
        return value(metric, of.mean)
    half = (of.high - of.low) / 2
    scale, unit = _scale(metric, of.mean)
    if half == 0:
        return f"{value(metric, of.mean)}{SPACE}±{SPACE}0"
    decimals = _decimals(metric) if metric.unit == "share" else _decimals_of(half / scale)
    text = f"{of.mean / scale:,.{decimals}f}{SPACE}±{SPACE}{half / scale:,.{decimals}f}"
    return text.replace(",", THIN_SPACE) + (SPACE + unit if unit else "")


def difference(metric: results.Metric, of: statistics.Difference) -> str:
    """With its interval, where there is one."""
    scale, unit = _scale(metric, of.difference)
    if unit == "%":
        unit = "points"
    if metric.unit == "share":
        decimals = _decimals(metric)
    else:
        half = abs(of.difference) / 5 if of.low is None else (of.high - of.low) / 2
        decimals = _decimals_of(half / scale) if half > 0 else 0

    def signed(number: float) -> str:
        text = f"{number / scale:+,.{decimals}f}"
        return text.replace(",", THIN_SPACE).replace("-", "−")

    text = signed(of.difference) + (SPACE + unit if unit else "")
    return text if of.low is None else f"{text} [{signed(of.low)}, {signed(of.high)}]"


def points(metric: results.Metric, number: float) -> str:
    """A difference alone."""
    return difference(metric, statistics.Difference(number, None, None, None, ""))


def size(metric: results.Metric, number: float) -> str:
    """Of a difference, whichever sign it has."""
    return points(metric, abs(number)).lstrip("+")


def p_value(number: Optional[float]) -> str:
    if number is None:
        return "–"
    return f"p{SPACE}<{SPACE}0.001" if number < 0.001 else f"p{SPACE}={SPACE}{number:.2g}"


def significant(number: float, digits: int) -> str:
    """So many digits that count, and none of the exponents that "%g" falls into
    for numbers of usual size."""
    if number == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(number)))
    if magnitude < -4 or magnitude >= 6:
        return f"{number:.{digits - 1}e}"
    return f"{number:.{max(0, digits - 1 - magnitude)}f}"


def _decimals(metric: results.Metric) -> int:
    return 2 if metric.key == "test_accuracy" else 1


def names(of: list[str], most: int = 5) -> str:
    """'a', 'a and b', 'a, b and c'; the rest is counted."""
    if len(of) > most:
        return ", ".join(of[: most - 1]) + f" and {len(of) - most + 1} others"
    if len(of) < 2:
        return "".join(of)
    return ", ".join(of[:-1]) + " and " + of[-1]


def times(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"

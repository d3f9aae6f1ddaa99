"""Numbers as people read them."""

import math
from typing import Optional

from . import results, statistics


def value(metric: results.Metric, number: Optional[float]) -> str:
    if number is None or not math.isfinite(number):
        return "–"
    if metric.unit == "share":
        return f"{100 * number:.2f} %"
    if metric.unit == "bytes/example":
        return byte_text(number)
    if metric.unit in ("examples", "examples/s") or (metric.unit == "" and metric.better == 0):
        text = f"{number:,.0f}".replace(",", "\u202f")
        return text + " /s" if metric.unit == "examples/s" else text
    if metric.unit == "s":
        return significant(number, 3) + " s"
    return significant(number, 4 if metric.unit == "" else 3)


def byte_text(number: float, digits: int = 3) -> str:
    """With 0 digits: as few as the number needs."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number) < 1000 or unit == "GB":
            return f"{significant(number, digits) if digits else f'{number:g}'} {unit}"
        number /= 1000
    raise AssertionError("GB ends the loop")


def mean(metric: results.Metric, of: Optional[statistics.Mean]) -> str:
    """With the half width of its interval, where there is one."""
    if of is None:
        return "–"
    text = value(metric, of.mean)
    if of.low is None:
        return text
    half = (of.high - of.low) / 2
    if metric.unit == "share":
        return f"{100 * of.mean:.2f} ± {100 * half:.2f} %"
    return f"{text} ± {value(metric, half)}"


def difference(metric: results.Metric, number: Optional[float], unit: bool = True) -> str:
    if number is None:
        return "–"
    sign = "+" if number > 0 else "−" if number < 0 else "±"
    if metric.unit == "share":
        return f"{sign}{100 * abs(number):.2f}" + (" points" if unit else "")
    return sign + value(metric, abs(number))


def p_value(number: Optional[float]) -> str:
    if number is None:
        return "–"
    return "p < 0.001" if number < 0.001 else f"p = {number:.2g}"


def significant(number: float, digits: int) -> str:
    """So many digits that count, and none of the exponents that "%g" falls into
    for numbers of usual size."""
    if number == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(number)))
    if magnitude < -4 or magnitude >= 6:
        return f"{number:.{digits - 1}e}"
    return f"{number:.{max(0, digits - 1 - magnitude)}f}"


def names(of: list[str], most: int = 8) -> str:
    """'a', 'a and b', 'a, b and c'; the rest is counted."""
    if len(of) > most:
        return ", ".join(of[: most - 1]) + f" and {len(of) - most + 1} others"
    if len(of) < 2:
        return "".join(of)
    return ", ".join(of[:-1]) + " and " + of[-1]


def times(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"

"""Numbers as people read them."""

import math
from typing import Optional

from . import load, results, statistics

# Spaces at which no line is broken.
SPACE = "\u00a0"
THIN_SPACE = "\u202f"
# Of a number with an uncertainty: more of them are not read, however small it is.
DIGITS_MAX = 5
EQUAL = "equal in all seeds"
# Of fields that experiments vary often: what they are, and their unit.
FIELDS = {
    "mode": ("mode of keeping the workers in step", ""),
    "replay": ("largest delay of a gradient", "clocks"),
    "delays": ("largest delay of a gradient", "clocks"),
    "workers": ("number of workers", ""),
    "rate_factor": ("factor on the learning rate", ""),
    "sync.ssp.staleness": ("bound of staleness", "clocks"),
    "data.batch_size": ("batch size", "examples of a worker and step"),
    "train.epochs": ("length of the training", "epochs"),
}
UNITS = {
    "ms": "milliseconds",
    "kib": "KiB",
    "mib": "MiB",
    "seconds": "seconds",
    "epochs": "epochs",
    "steps": "steps",
}


def value(metric: results.Metric, number: Optional[float]) -> str:
    if number is None or not math.isfinite(number):
        return "–"
    if metric.unit == "share":
        return f"{100 * number:.{_share_decimals(metric)}f}{SPACE}%"
    if metric.unit == "bytes/example":
        return byte_text(number)
    if metric.unit in ("examples", "examples/s") or (metric.unit == "" and metric.better == 0):
        return count(number) + (SPACE + "/s" if metric.unit == "examples/s" else "")
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


def _decimals(metric: results.Metric, number: float, half: float) -> int:
    """How many are known, of a number with this uncertainty: that has two digits.
    Shares have always the same. Below zero: tens, hundreds and so on."""
    if metric.unit == "share":
        return _share_decimals(metric)
    decimals = 1 - math.floor(math.log10(half))
    return min(decimals, DIGITS_MAX - 1 - math.floor(math.log10(max(abs(number), half))))


def _rounded(number: float, decimals: int, sign: str = "") -> str:
    text = f"{round(number, decimals) + 0.0:{sign},.{max(0, decimals)}f}"  # + 0.0: no -0.0.
    return text.replace(",", THIN_SPACE).replace("-", "−")


def mean(metric: results.Metric, of: Optional[statistics.Mean]) -> str:
    """With the half width of its interval, where there is one, or that there is no
    spread; both rounded to what is known."""
    if of is None:
        return "–"
    if of.equal():
        return f"{value(metric, of.mean)} ({EQUAL})"
    if of.low is None:
        return value(metric, of.mean)
    scale, unit = _scale(metric, of.mean)
    number, half = of.mean / scale, (of.high - of.low) / 2 / scale
    if metric.unit == "" and abs(number) >= 1e6:
        return f"{significant(number, 2)}{SPACE}±{SPACE}{significant(half, 2)}"
    decimals = _decimals(metric, number, half)
    beside = _rounded(half, decimals)
    if round(half, decimals) == 0:
        beside = f"<{SPACE}{_rounded(10.0**-decimals, decimals)}"
    return f"{_rounded(number, decimals)}{SPACE}±{SPACE}{beside}" + (SPACE + unit if unit else "")


def difference(metric: results.Metric, of: statistics.Difference) -> str:
    """With its interval, where there is one. Lines may be broken between the two."""
    if of.test == statistics.EQUAL:
        return EQUAL
    scale, unit = _scale(metric, of.difference)
    unit = "points" if unit == "%" else unit
    half = (abs(of.difference) / 5 if of.low is None else (of.high - of.low) / 2) / scale
    decimals = _decimals(metric, of.difference / scale, half) if half > 0 else 0
    text = _rounded(of.difference / scale, decimals, "+") + (SPACE + unit if unit else "")
    if of.low is None:
        return text
    low, high = (_rounded(end / scale, decimals, "+") for end in (of.low, of.high))
    return f"{text} [{low},{SPACE}{high}]"


def points(metric: results.Metric, number: float) -> str:
    """A difference alone."""
    return difference(metric, statistics.Difference(number, None, None, None, ""))


def size(metric: results.Metric, number: float) -> str:
    """Of a difference, whichever sign it has, with the two digits that are known."""
    scale, unit = _scale(metric, number)
    unit = "points" if unit == "%" else unit
    return significant(abs(number) / scale, 2) + (SPACE + unit if unit else "")


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


def _share_decimals(metric: results.Metric) -> int:
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


def count(number: float) -> str:
    return f"{number:,.0f}".replace(",", THIN_SPACE)


def field_name(field: str) -> str:
    """Of the config, in words: "learning rate"."""
    return _field(field)[0]


def field_label(field: str) -> str:
    """With its unit, for an axis: "largest delay of a gradient (clocks)"."""
    name, unit = _field(field)
    return f"{name} ({unit})" if unit else name


def field_value(field: str, shown: str) -> str:
    """ "8 clocks"."""
    unit = _field(field)[1]
    return f"{shown} {unit}" if unit and " " not in unit else shown


def _field(field: str) -> tuple[str, str]:
    if field in FIELDS:
        return FIELDS[field]
    name, _, last = field.rpartition(".")[2].rpartition("_")
    if name and last in UNITS:
        return name.replace("_", " "), UNITS[last]
    return field.rpartition(".")[2].replace("_", " "), "clocks" if "staleness" in last else ""


def at_steps(runs: list[load.Run]) -> str:
    """When runs diverged: "at steps 12 to 40"; empty if that is not known."""
    steps = [run.diverged_at_step for run in runs if run.diverged_at_step is not None]
    if not steps:
        return ""
    low, high = count(min(steps)), count(max(steps))
    return f"at step{SPACE}{low}" if low == high else f"at steps {low} to {high}"


def diverged(variant: load.Variant) -> str:
    """Of one without any other runs: "diverged (at steps 12 to 40)"."""
    when = "with each value tried" if variant.all_tries_diverged else at_steps(variant.diverged())
    return f"diverged ({when})" if when else "diverged"


def diverged_of(variant: load.Variant) -> str:
    """ "2 of 5 diverged, at steps 12 to 40"; empty if none did."""
    if variant.all_tries_diverged:
        return "diverged with each value tried"
    if not variant.diverged():
        return ""
    when = at_steps(variant.diverged())
    return f"{len(variant.diverged())} of {len(variant.runs)} diverged" + (f", {when}" if when else "")


def duration(seconds: float) -> str:
    """ "40 seconds", "12 minutes", "3.5 hours"."""
    if seconds < 90:
        return times(max(1, round(seconds)), "second")
    if seconds < 5400:
        return times(round(seconds / 60), "minute")
    return f"{seconds / 3600:.1f} hours"

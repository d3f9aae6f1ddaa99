"""Intervals, tests and corrections. Numbers in, numbers out.

Formulas: Student's t interval of a mean; Welch (1947), "The generalization of
'Student's' problem when several different population variances are involved",
with the degrees of freedom of Welch and Satterthwaite; the paired t test; Holm
(1979), "A simple sequentially rejective multiple test procedure".
"""

import dataclasses
import functools
import math
from typing import Optional, Sequence

import numpy as np
import scipy.stats

CONFIDENCE = 0.95
SIGNIFICANCE = 0.05
POWER = 0.8
POWER_WORDS = "four times in five"
# Of two seeds the spread is hardly known: their intervals are huge or, by chance,
# tiny, and both mislead.
SEEDS_MIN = 3
EQUAL = "equal in every seed"
TOO_FEW = f"fewer than {SEEDS_MIN} seeds: no test"


@dataclasses.dataclass(frozen=True)
class Mean:
    """Of `count` values, at least one. The spread of one value is not known."""

    count: int
    mean: float
    standard_deviation: Optional[float]  # With count - 1 in the denominator.
    low: Optional[float]  # Ends of the interval; of fewer than SEEDS_MIN none.
    high: Optional[float]

    def equal(self) -> bool:
        """All values, up to rounding. Of one value that says nothing."""
        return self.standard_deviation is not None and _is_zero(self.standard_deviation, [self.mean])


@dataclasses.dataclass(frozen=True)
class Difference:
    """Of two means: the variant's minus the baseline's."""

    difference: float
    low: Optional[float]
    high: Optional[float]
    p_value: Optional[float]
    # "paired t" over common seeds, "Welch", or why there is no test.
    test: str
    # Standard error of the difference and its degrees of freedom, where tested.
    error: Optional[float] = None
    degrees: Optional[float] = None


def mean_with_interval(values: Sequence[float]) -> Optional[Mean]:
    """None without values."""
    if not len(values):
        return None
    count, mean = len(values), float(np.mean(values))
    if count == 1:
        return Mean(1, mean, None, None, None)
    deviation = float(np.std(values, ddof=1))
    if count < SEEDS_MIN:
        return Mean(count, mean, deviation, None, None)
    half = _quantile(count - 1) * deviation / math.sqrt(count)
    return Mean(count, mean, deviation, mean - half, mean + half)


def compare(variant: dict[int, float], baseline: dict[int, float]) -> Optional[Difference]:
    """The values are by seed. The same seeds on both sides are compared in pairs:
    they share their data order and first model. None if a side is empty."""
    if not variant or not baseline:
        return None
    if variant.keys() == baseline.keys():
        return _paired([variant[seed] - baseline[seed] for seed in sorted(variant)])
    return _welch(list(variant.values()), list(baseline.values()))


def detectable(of: Difference, tests: int) -> Optional[float]:
    """The difference, up to its sign, that is found POWER of the times where the
    spread is the one that was found, whatever the other tests of so many say (Holm's
    first step, which is Bonferroni's correction). None without a test.

    Formula: Bloom (1995), "Minimum detectable effects": the sum of the quantiles of
    the test and of the power, times the standard error."""
    if of.error is None or of.degrees is None:
        return None
    return (_quantile(of.degrees, 1 - SIGNIFICANCE / tests) + _quantile(of.degrees, 2 * POWER - 1)) * of.error


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrected for having made all these tests, in the order given."""
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        corrected[index] = largest
    return corrected


def histogram_percentile(bins: Sequence[float], fraction: float) -> Optional[int]:
    """As common/metrics/histogram.h; None when nothing was counted."""
    total, seen = sum(bins), 0.0
    if total <= 0:
        return None
    for value, count in enumerate(bins):
        seen += count
        if seen >= fraction * total:
            return value
    return len(bins) - 1


def _paired(differences: list[float]) -> Difference:
    mean = mean_with_interval(differences)
    if mean.count < SEEDS_MIN:
        return Difference(mean.mean, None, None, None, TOO_FEW)
    if _is_zero(mean.standard_deviation, differences):
        if _is_zero(mean.mean, differences):
            return Difference(0.0, 0.0, 0.0, 1.0, EQUAL)
        return Difference(mean.mean, None, None, None, "no spread over seeds: no test")
    error, degrees = mean.standard_deviation / math.sqrt(mean.count), mean.count - 1
    p_value = float(2 * scipy.stats.t.sf(abs(mean.mean / error), degrees))
    return Difference(mean.mean, mean.low, mean.high, p_value, "paired t", error, degrees)


def _welch(a: list[float], b: list[float]) -> Difference:
    difference = float(np.mean(a) - np.mean(b))
    if min(len(a), len(b)) < SEEDS_MIN:
        return Difference(difference, None, None, None, TOO_FEW)
    error_a = float(np.var(a, ddof=1)) / len(a)
    error_b = float(np.var(b, ddof=1)) / len(b)
    error = error_a + error_b
    if _is_zero(math.sqrt(error), a + b):
        return Difference(difference, None, None, None, "no spread over seeds: no test")
    degrees = error**2 / (error_a**2 / (len(a) - 1) + error_b**2 / (len(b) - 1))
    half = _quantile(degrees) * math.sqrt(error)
    p_value = float(2 * scipy.stats.t.sf(abs(difference) / math.sqrt(error), degrees))
    low, high = difference - half, difference + half
    return Difference(difference, low, high, p_value, "Welch", math.sqrt(error), degrees)


@functools.lru_cache(maxsize=None)  # SciPy takes long, and curves ask often.
def _quantile(degrees: float, confidence: float = CONFIDENCE) -> float:
    return float(scipy.stats.t.ppf(0.5 + confidence / 2, degrees))


def _is_zero(value: float, of: Sequence[float]) -> bool:
    """Up to rounding in numbers of this size."""
    return abs(value) <= 1e-9 * max(1e-300, max(abs(one) for one in of))

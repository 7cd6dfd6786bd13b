"""Intervals by the paired bootstrap over queries.

A difference between two systems is measured on the same queries; queries are drawn with
replacement, and the 2.5th and 97.5th percentile of the resampled means bound the 95 % interval
(percentile method, Efron and Tibshirani 1993, chapter 13).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

RESAMPLES = 10_000
LEVEL = 95.0


@dataclass(frozen=True)
class Difference:
    """A mean with its interval; ``queries`` is how many it was taken over."""

    mean: float
    low: float
    high: float
    queries: int

    @property
    def interval(self) -> list[float]:
        return [self.low, self.high]


def paired_difference(
    ours: np.ndarray, theirs: np.ndarray, seed: int = 0, resamples: int = RESAMPLES
) -> Difference:
    """Mean of ``ours - theirs`` over queries, with its interval.

    Args:
        ours, theirs: one value per query, in the same order.
    """
    return mean_difference([ours - theirs], seed, resamples)


def mean_difference(
    differences: Sequence[np.ndarray], seed: int = 0, resamples: int = RESAMPLES
) -> Difference:
    """Mean over datasets of the mean difference in each, every dataset with the same weight.

    Queries are drawn within their dataset, so that the interval speaks of these datasets and not
    of others.
    """
    drawn = np.zeros(resamples)
    for place, difference in enumerate(differences):
        drawn += resampled_means(difference, seed + place, resamples)
    drawn /= len(differences)
    mean = sum(float(each.mean()) for each in differences) / len(differences)
    return Difference(mean, *interval(drawn), sum(map(len, differences)))


def interval(drawn: np.ndarray) -> tuple[float, float]:
    """The bounds of the 95 % interval of resampled figures."""
    tail = (100.0 - LEVEL) / 2
    low, high = np.percentile(drawn, [tail, 100.0 - tail])
    return float(low), float(high)


def resampled_means(values: np.ndarray, seed: int, resamples: int = RESAMPLES) -> np.ndarray:
    """The mean of every resample, ``[resamples]``."""
    return draws(len(values), seed, resamples) @ values.astype(np.float64) / len(values)


@lru_cache(maxsize=8)
def draws(count: int, seed: int, resamples: int = RESAMPLES) -> np.ndarray:
    """How often each of ``count`` queries is drawn in each resample, ``[resamples count]``.

    Kept, because all comparisons over the same queries use the same draws.
    """
    generator = np.random.default_rng(seed)
    counts = generator.multinomial(count, np.full(count, 1.0 / count), size=resamples)
    return counts.astype(np.float32)

"""Mean, standard deviation and paired differences over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, the standard deviation, the 95 % confidence interval of the mean (Student's t), the median."""

    mean: float
    std: float
    low: float
    high: float
    seeds: int
    median: float


def estimate(values: Sequence[float]) -> Estimate | None:
    """The mean of at least one value; a single one has no spread (NaN)."""
    if not values:
        return None
    mean, n = float(np.mean(values)), len(values)
    if n == 1:
        return Estimate(mean, math.nan, math.nan, math.nan, 1, mean)
    std = float(np.std(values, ddof=1))
    half = float(stats.t.ppf(0.975, n - 1)) * std / math.sqrt(n)
    return Estimate(mean, std, mean - half, mean + half, n, float(np.median(values)))


def differences(ours: Mapping[int, float], base: Mapping[int, float]) -> list[float]:
    """Ours minus the base, for each seed that both have."""
    return [ours[seed] - base[seed] for seed in sorted(ours.keys() & base.keys())]


def paired(ours: Mapping[int, float], base: Mapping[int, float]) -> Estimate | None:
    """The mean of the differences on the same seeds."""
    return estimate(differences(ours, base))

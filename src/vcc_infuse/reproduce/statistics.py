"""Mean, spread and paired differences over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, its standard deviation, and the 95 % confidence interval of the mean (Student's t)."""

    mean: float
    std: float
    low: float
    high: float
    seeds: int


def estimate(values: list[float]) -> Estimate | None:
    """Of at least one value; with a single one nothing is known of the spread."""
    if not values:
        return None
    mean, n = float(np.mean(values)), len(values)
    if n == 1:
        return Estimate(mean, math.nan, math.nan, math.nan, 1)
    std = float(np.std(values, ddof=1))
    half = float(stats.t.ppf(0.975, n - 1)) * std / math.sqrt(n)
    return Estimate(mean, std, mean - half, mean + half, n)


def paired(ours: Mapping[int, float], base: Mapping[int, float]) -> Estimate | None:
    """Of the differences on the seeds both have."""
    return estimate([ours[seed] - base[seed] for seed in sorted(ours.keys() & base.keys())])

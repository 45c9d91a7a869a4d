"""Mean, spread and paired differences over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from .collect import Entry


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


Grid = list[list[str]]


HEAD = ["method", "compared with", "columns", "mean Δ error", "runs better", "equal", "worse"]


WORTH = 3
"""With fewer columns a reader sees it at a glance."""


def overall(entries: Sequence[Entry]) -> Grid:
    """A line for each row with a base that both have in several columns; empty if there is none."""
    lines = [summary(name, entries) for name in dict.fromkeys(entry.row.name for entry in entries if entry.row.base)]
    found = [line for line in lines if line]
    return [HEAD, *found] if found else []


def summary(name: str, entries: Sequence[Entry]) -> list[str]:
    """One row's line; every column weighs the same, however many seeds it has."""
    mine = [entry for entry in entries if entry.row.name == name and entry.gap is not None]
    if len(mine) < WORTH:
        return []
    means = [entry.gap.mean for entry in mine if entry.gap]
    gaps = [gap for entry in mine for gap in differences(entry, entries)]
    signs = [sum(gap < 0 for gap in gaps), sum(gap == 0 for gap in gaps), sum(gap > 0 for gap in gaps)]
    average = f"{sum(means) / len(means):+.2f}"
    return [name, mine[0].row.base or "–", str(len(mine)), average, *map(str, signs)]


def differences(entry: Entry, entries: Sequence[Entry]) -> list[float]:
    """To the base in the same column, seed by seed."""
    base = next(e for e in entries if e.column is entry.column and e.row.name == entry.row.base)
    return [value - base.by_seed[seed] for seed, value in entry.by_seed.items() if seed in base.by_seed]

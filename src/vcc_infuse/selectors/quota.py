"""Class quotas: how a budget is shared among pseudo classes, so that a ranking cannot drop a class."""

from __future__ import annotations

from typing import Literal

import numpy as np

from .ranking import Scored, order

Quota = Literal["none", "proportional", "equal"]
QUOTAS = ("none", "proportional", "equal")


def proportional(counts: np.ndarray, budget: int) -> np.ndarray:
    """Places in proportion to `counts`, never more than there are; what is left goes to the largest remainders."""
    counts = np.asarray(counts, dtype=np.int64)
    budget = min(budget, int(counts.sum()))
    exact = counts * (budget / max(int(counts.sum()), 1))
    places = np.minimum(np.floor(exact + 1e-9).astype(np.int64), counts)
    first = np.argsort(-(exact - places), kind="stable")[: budget - int(places.sum())]
    places[first] += 1
    return places


def equal(counts: np.ndarray, budget: int) -> np.ndarray:
    """The same number of places for every class, except that a small class gives what it cannot use to the others."""
    counts = np.asarray(counts, dtype=np.int64)
    budget = min(budget, int(counts.sum()))
    places = np.zeros_like(counts)
    while (left := budget - int(places.sum())) > 0:
        room = np.flatnonzero(places < counts)
        each = max(left // len(room), 1)
        room = room[: max(left // each, 1)]
        places[room] += np.minimum(each, counts[room] - places[room])
    return places


def shared(quota: Quota, counts: np.ndarray, budget: int) -> np.ndarray:
    """The places of each class by one of the two rules."""
    return (proportional if quota == "proportional" else equal)(counts, budget)


def best(rows: Scored, budget: int, quota: Quota, classes: int) -> np.ndarray:
    """Row numbers of the `budget` best, each pseudo class within its quota of the selected examples."""
    ranked = order(rows)
    if quota == "none":
        return ranked[:budget]
    labels, selected = rows.labels[ranked], rows.selected[ranked]
    counts = np.bincount(labels[selected], minlength=classes)
    places = shared(quota, counts, budget)
    keep = selected & (_rank_in_class(labels) < places[labels])
    return np.concatenate([ranked[keep], ranked[~keep]])[:budget]


def _rank_in_class(labels: np.ndarray) -> np.ndarray:
    """How many earlier rows have the same label (selected rows come first, so they are counted among themselves)."""
    by_class = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[by_class], labels[by_class])
    rank = np.empty(len(labels), dtype=np.int64)
    rank[by_class] = np.arange(len(labels)) - starts
    return rank

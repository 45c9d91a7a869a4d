"""The order in which examples are kept: selected ones by score, then the rest by confidence; and class quotas."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

Quota = Literal["none", "proportional", "equal"]
QUOTAS = ("none", "proportional", "equal")


class Scored(NamedTuple):
    """Rows of examples. A higher score is kept first; `selected` are those whose pseudo label has weight."""

    ids: np.ndarray
    scores: np.ndarray
    selected: np.ndarray
    confidence: np.ndarray
    labels: np.ndarray

    def take(self, rows: np.ndarray) -> Scored:
        """The rows with these indices."""
        return Scored(*(column[rows] for column in self))


def merge(tables: list[Scored]) -> Scored:
    """Several tables as one, best first."""
    rows = Scored(*(np.concatenate(columns) for columns in zip(*tables, strict=True)))
    return rows.take(order(rows))


def rows_to_state(rows: Scored) -> dict[str, Tensor]:
    """Rows as named tensors, for a checkpoint."""
    return {f"rows_{name}": torch.from_numpy(np.array(column)) for name, column in rows._asdict().items()}


def rows_from_state(state: dict[str, Tensor]) -> Scored | None:
    """The rows of a checkpoint, if there are any."""
    names = [f"rows_{name}" for name in Scored._fields]
    return Scored(*(state[name].cpu().numpy() for name in names)) if names[0] in state else None


def order(rows: Scored) -> np.ndarray:
    """Row indices, best first: selected examples before the others; ties by confidence, then by id."""
    score = np.where(rows.selected, nan_to_worst(rows.scores), 0)
    return np.lexsort((rows.ids, -rows.confidence, -score, ~rows.selected))


def nan_to_worst(scores: np.ndarray) -> np.ndarray:
    """Scores in which NaN is the lowest."""
    return np.where(np.isnan(scores), -np.inf, scores)


def proportional(counts: np.ndarray, budget: int) -> np.ndarray:
    """Places in proportion to `counts`, at most `counts`; the rest goes to the largest remainders."""
    counts = np.asarray(counts, dtype=np.int64)
    budget = min(budget, int(counts.sum()))
    exact = counts * (budget / max(int(counts.sum()), 1))
    places: np.ndarray = np.minimum(np.floor(exact + 1e-9).astype(np.int64), counts)
    first = np.argsort(-(exact - places), kind="stable")[: budget - int(places.sum())]
    places[first] += 1
    return places


def equal(counts: np.ndarray, budget: int) -> np.ndarray:
    """The same number of places for every class; the places that a small class cannot use go to the others."""
    counts = np.asarray(counts, dtype=np.int64)
    budget = min(budget, int(counts.sum()))
    places = np.zeros_like(counts)
    while (left := budget - int(places.sum())) > 0:
        room = np.flatnonzero(places < counts)
        each = max(left // len(room), 1)
        room = room[: max(left // each, 1)]
        places[room] += np.minimum(each, counts[room] - places[room])
    return places


def places_per_class(quota: Quota, counts: np.ndarray, budget: int) -> np.ndarray:
    """The number of places of each class, by one of the two rules."""
    return (proportional if quota == "proportional" else equal)(counts, budget)


def best(rows: Scored, budget: int, quota: Quota, classes: int) -> np.ndarray:
    """Row indices of the `budget` best, each pseudo class within its quota of selected examples."""
    ranked = order(rows)
    if quota == "none":
        return ranked[:budget]
    labels, selected = rows.labels[ranked], rows.selected[ranked]
    counts = np.bincount(labels[selected], minlength=classes)
    places = places_per_class(quota, counts, budget)
    keep = selected & (_rank_in_class(labels) < places[labels])
    return np.concatenate([ranked[keep], ranked[~keep]])[:budget]


def _rank_in_class(labels: np.ndarray) -> np.ndarray:
    """The number of earlier rows with the same label. Selected rows come first, so their rank counts no others."""
    by_class = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[by_class], labels[by_class])
    rank = np.empty(len(labels), dtype=np.int64)
    rank[by_class] = np.arange(len(labels)) - starts
    return rank

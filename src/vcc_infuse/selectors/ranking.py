"""The order in which examples are kept: those the algorithm learns from by score, then the rest by confidence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor


class Scored(NamedTuple):
    """Rows of examples: `scores` (higher is kept first), whether the algorithm selects them, confidence, label."""

    ids: np.ndarray
    scores: np.ndarray
    selected: np.ndarray
    confidence: np.ndarray
    labels: np.ndarray

    def take(self, rows: np.ndarray) -> Scored:
        """Some rows."""
        return Scored(*(column[rows] for column in self))


def joined(tables: list[Scored]) -> Scored:
    """Several tables as one, best first."""
    rows = Scored(*(np.concatenate(columns) for columns in zip(*tables, strict=True)))
    return rows.take(order(rows))


def rows_state(rows: Scored) -> dict[str, Tensor]:
    """Rows as named tensors, for a checkpoint."""
    return {f"rows_{name}": torch.from_numpy(np.array(column)) for name, column in rows._asdict().items()}


def restored_rows(state: dict[str, Tensor]) -> Scored | None:
    """The rows in a checkpoint, if there are any."""
    names = [f"rows_{name}" for name in Scored._fields]
    return Scored(*(state[name].cpu().numpy() for name in names)) if names[0] in state else None


def order(rows: Scored) -> np.ndarray:
    """Row numbers, best first: an example without weight never before one with weight; ties by confidence, then id."""
    score = np.where(rows.selected, known(rows.scores), 0)
    return np.lexsort((rows.ids, -rows.confidence, -score, ~rows.selected))


def known(scores: np.ndarray) -> np.ndarray:
    """A score that is not a number is the worst."""
    return np.where(np.isnan(scores), -np.inf, scores)


def pieces(rows: Scored, size: int) -> Iterator[Scored]:
    """A table as a stream."""
    for start in range(0, len(rows.ids), size):
        yield Scored(*(column[start : start + size] for column in rows))


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

"""The order in which examples are kept: selected ones by score, then the rest by confidence; and class quotas."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from ..types import Coreset

Quota = Literal["none", "proportional", "equal"]
QUOTAS = ("none", "proportional", "equal")


class Scored(NamedTuple):
    """Columns of scored examples; a higher score is kept first; `selected` are those whose pseudo label has weight."""

    ids: np.ndarray
    scores: np.ndarray
    selected: np.ndarray
    confidence: np.ndarray
    labels: np.ndarray

    @classmethod
    def concat(cls, tables: Sequence[Self]) -> Self:
        """Several tables one after the other."""
        return cls(*(np.concatenate(columns) for columns in zip(*tables, strict=True)))

    def take(self, rows: np.ndarray) -> Self:
        """The rows with these indices."""
        return type(self)(*(column[rows] for column in self))


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
        share = max(left // len(room), 1)
        room = room[: max(left // share, 1)]
        places[room] += np.minimum(share, counts[room] - places[room])
    return places


def best(rows: Scored, budget: int, quota: Quota, classes: int) -> np.ndarray:
    """Row indices of the `budget` best, each pseudo class within its quota of selected examples."""
    ranked = order(rows)
    if quota == "none":
        return ranked[:budget]
    labels = rows.labels[ranked]
    selected = rows.selected[ranked]
    counts = np.bincount(labels[selected], minlength=classes)
    places = (proportional if quota == "proportional" else equal)(counts, budget)
    by_class = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[by_class], labels[by_class])
    rank = np.empty(len(labels), dtype=np.int64)  # within the class; selected rows come first, so it counts no others
    rank[by_class] = np.arange(len(labels)) - starts
    keep = selected & (rank < places[labels])
    return np.concatenate([ranked[keep], ranked[~keep]])[:budget]


@dataclass(frozen=True)
class Selection:
    """A core set and, if the selector scored the pool, one row per pool id in order."""

    coreset: Coreset
    rows: Scored | None = None

    def columns(self) -> dict[str, np.ndarray]:
        """Ids and weights, and the scores of the whole pool if there are any, as arrays to store."""
        columns = {"ids": self.coreset.ids.cpu().numpy(), "weights": self.coreset.weights.cpu().numpy()}
        if self.rows is not None:
            columns["scores"] = self.rows.scores.astype(np.float32)
            columns["selected"] = self.rows.selected
            columns["confidence"] = self.rows.confidence.astype(np.float32)
            columns["labels"] = self.rows.labels.astype(np.int32)
        return columns


def describe_selection(
    selection: Selection,
    *,
    classes: int,
    pool_size: int,
    previous: Coreset | None = None,
    truth: np.ndarray | None = None,
    bins: int = 20,
) -> dict[str, Any]:
    """Statistics of one refresh, as numbers and lists; `truth` are hidden labels of the pool, −1 where unknown."""
    kept = selection.coreset.ids.cpu().numpy()
    statistics: dict[str, Any] = {
        "kept": len(kept),
        "kept_share": len(kept) / pool_size,
        "weight_largest": float(selection.coreset.weights.cpu().double().max()),
        "overlap": None if previous is None else len(np.intersect1d(kept, previous.ids.cpu().numpy())) / len(kept),
    }
    if truth is not None:
        statistics["kept_share_per_true_class"] = _shares(truth[kept][truth[kept] >= 0], classes)
    if selection.rows is None:
        return statistics
    rows = selection.rows
    kept_rows = rows.take(kept)
    statistics |= {
        "selected_share_of_kept": float(kept_rows.selected.mean()),
        "selected_share_of_pool": float(rows.selected.mean()),
        "kept_share_per_class": _shares(kept_rows.labels, classes),
        "pool_share_per_class": _shares(rows.labels, classes),
        "score_histogram": _histogram(rows, kept, bins),
    }
    if truth is not None:
        statistics["precision_of_kept"] = _precision(kept_rows, truth[kept])
        statistics["precision_of_pool"] = _precision(rows, truth)
    return statistics


def _shares(labels: np.ndarray, classes: int) -> list[float]:
    shares: list[float] = (np.bincount(labels, minlength=classes) / max(len(labels), 1)).tolist()
    return shares


def _precision(rows: Scored, truth: np.ndarray) -> float | None:
    known = rows.selected & (truth >= 0)
    return float((rows.labels == truth)[known].mean()) if known.any() else None


def _histogram(rows: Scored, kept: np.ndarray, bins: int) -> dict[str, list[float]]:
    """Histogram of the scores of selected examples, all and kept; scores beyond 1 % and 99 % go to the end bins."""
    usable = rows.selected & np.isfinite(rows.scores)
    if not usable.any():
        return {"edges": [], "all": [], "kept": []}
    low, high = np.quantile(rows.scores[usable], [0.01, 0.99])
    edges = np.linspace(low, high if high > low else low + 1e-12, bins + 1)
    clipped = np.clip(rows.scores, edges[0], edges[-1])
    in_coreset = np.zeros(len(usable), dtype=bool)
    in_coreset[kept] = True
    counts = {"all": clipped[usable], "kept": clipped[usable & in_coreset]}
    return {"edges": edges.tolist()} | {name: np.histogram(part, edges)[0].tolist() for name, part in counts.items()}

"""Selection: a core set with the scores behind it, as statistics for the log and as arrays for the run folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..types import Coreset
from .ranking import Scored


@dataclass(frozen=True)
class Selection:
    """A core set and, if the selector scored the pool, one row per pool id in order."""

    coreset: Coreset
    rows: Scored | None = None

    def columns(self) -> dict[str, np.ndarray]:
        """Ids and weights, and the scores of the whole pool if there are any, as arrays to store."""
        columns = {"ids": self.coreset.ids.cpu().numpy(), "weights": self.coreset.weights.cpu().numpy()}
        if self.rows is not None:
            columns |= {"scores": self.rows.scores.astype(np.float32), "selected": self.rows.selected}
            columns |= {"confidence": self.rows.confidence.astype(np.float32)}
            columns |= {"labels": self.rows.labels.astype(np.int32)}
        return columns


def describe_selection(
    selection: Selection,
    classes: int,
    pool: int,
    previous: Coreset | None = None,
    truth: np.ndarray | None = None,
    bins: int = 20,
) -> dict[str, Any]:
    """Statistics of one refresh; `truth` are the pool's hidden labels, −1 where unknown."""
    kept = selection.coreset.ids.cpu().numpy()
    weights = selection.coreset.weights.cpu().double()
    statistics: dict[str, Any] = {
        "kept": len(kept), "kept_share": len(kept) / pool, "weight_largest": float(weights.max()),
        "overlap": None if previous is None else _overlap(kept, previous.ids.cpu().numpy()),
    }  # fmt: skip
    if truth is not None:
        statistics["kept_share_per_true_class"] = _shares(truth[kept][truth[kept] >= 0], classes)
    if selection.rows is None:
        return statistics
    rows = selection.rows
    mine = rows.take(kept)
    statistics |= {
        "selected_share_of_kept": float(mine.selected.mean()),
        "selected_share_of_pool": float(rows.selected.mean()),
        "kept_share_per_class": _shares(mine.labels, classes),
        "pool_share_per_class": _shares(rows.labels, classes),
        "score_histogram": _histogram(rows, kept, bins),
    }
    if truth is not None:
        statistics["precision_of_kept"] = _precision(mine, truth[kept])
        statistics["precision_of_pool"] = _precision(rows, truth)
    return statistics


def _overlap(kept: np.ndarray, before: np.ndarray) -> float:
    return len(np.intersect1d(kept, before)) / len(kept)


def _shares(labels: np.ndarray, classes: int) -> list[float]:
    return [float(n) for n in np.bincount(labels, minlength=classes) / max(len(labels), 1)]


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
    clipped, inside = np.clip(rows.scores, edges[0], edges[-1]), np.zeros(len(usable), dtype=bool)
    inside[kept] = True
    counts = [np.histogram(clipped[usable & part], edges)[0].tolist() for part in (inside | True, inside)]
    return {"edges": edges.tolist(), "all": counts[0], "kept": counts[1]}

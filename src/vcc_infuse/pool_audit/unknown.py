"""Images of no class: far from every labeled image, with a p-value, and what they might have in common.

Density within the pool would point the wrong way: a foreign class forms a dense cluster of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import UserError, check_integer, check_range
from .arrays import BLOCK, blocks, check_features, distances, unit

NEIGHBORS = 3
ALPHA = 0.05
MOST = 2000  # foreign rows that are clustered: the most foreign ones


@dataclass(frozen=True)
class Unknown:
    """How foreign each row is.

    Attributes:
        score: mean distance to the nearest labeled rows, of shape (rows,); 0 is a copy, √2 is unrelated.
        p: how often a row of a known class is at least that far, of shape (rows,). It is never below
            1 / (labels + 1), so fewer than 19 labels cannot reach 0.05.
    """

    score: np.ndarray
    p: np.ndarray


@dataclass(frozen=True)
class ForeignCluster:
    """Foreign rows that resemble each other: a new class?

    Attributes:
        rows: their numbers, the most typical first.
        representative: the most typical row.
        similarity: mean cosine between its rows.
    """

    rows: np.ndarray
    representative: int
    similarity: float

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self.rows)


def find_unknown(features: Any, labeled: Any, *, neighbors: int = NEIGHBORS) -> Unknown:
    """How far each row is from its nearest labeled rows, and how unusual that is for a known class.

    The p-value is conformal: the row joins the labels, each of them gets its distance to its nearest others, and p
    is the share of labels and row that are at least as far as the row. If labels are drawn at random from the known
    classes, a row of a known class has p ≤ a with probability at most a, for any number of labels per class.

    Args:
        features: of shape (rows, width), as `unit_rows` makes them. Leave out the labeled rows themselves: they are
            their own nearest neighbors.
        labeled: features of the labeled images, of shape (labels, width), made with the same reference.
        neighbors: how many of the nearest labeled rows count.

    >>> labeled = [[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [1.0, 0.3]]
    >>> find_unknown([[1.0, 0.15], [-1.0, 1.0]], labeled).p.tolist()
    [1.0, 0.2]
    """
    rows = check_features("features", features)
    base = _check_labeled(labeled, rows.shape[1])
    count = min(check_integer("neighbors", neighbors), len(base))
    reach, total = _nearest_others(base, count)
    score = np.empty(len(rows), np.float32)
    p = np.empty(len(rows))
    for part in blocks(len(rows), block_for(len(base))):
        far = distances(unit(rows[part]), base)
        score[part] = np.partition(far, count - 1, axis=1)[:, :count].mean(1)
        # With the row among the others, a label's farthest neighbor may be replaced by it.
        joined = (total + np.minimum(far, reach)) / count
        p[part] = (1 + (joined >= score[part, None] - 1e-6).sum(1)) / (len(base) + 1)
    return Unknown(score, p)


def leave_one_out_distances(labeled: Any, *, neighbors: int = NEIGHBORS) -> np.ndarray:
    """The mean distance of each labeled row to the nearest other labeled rows, of shape (labels,)."""
    array = check_features("labeled", labeled)
    base = _check_labeled(array, array.shape[1])
    if len(base) < 2:
        raise UserError("labeled must hold at least two rows to have distances to others, got 1")
    count = min(check_integer("neighbors", neighbors), len(base) - 1)
    reach, total = _nearest_others(base, count)
    mean: np.ndarray = (total + reach) / count
    return mean


def conformal_p(scores: Any, calibration: Any) -> np.ndarray:
    """The share of calibration scores, and the score itself, that are at least as large: (1 + #{c ≥ s}) / (n + 1).

    >>> conformal_p([0.0, 2.5, 9.0], [1.0, 2.0, 3.0]).tolist()
    [1.0, 0.5, 0.25]
    """
    ordered = np.sort(np.asarray(calibration, np.float64))
    below = np.searchsorted(ordered, np.asarray(scores, np.float64), side="left")
    p: np.ndarray = (1 + len(ordered) - below) / (len(ordered) + 1)
    return p


def foreign_clusters(
    features: Any, unknown: Unknown, *, alpha: float = ALPHA, most_clusters: int = 8, least_size: int = 3, seed: int = 0
) -> list[ForeignCluster]:
    """Groups among the foreign rows, the tightest first; empty if there are none.

    Args:
        features: of shape (rows, width), those that `unknown` was computed on.
        unknown: what `find_unknown` returned.
        alpha: rows with a p-value of at most this are foreign; of more than 2,000 the most foreign count.
        most_clusters: the silhouette decides how many, up to this number.
        least_size: smaller groups are left out.
        seed: of k-means.
    """
    rows = check_features("features", features)
    check_range("alpha", alpha, 0, 1)
    foreign = np.flatnonzero(unknown.p <= alpha)
    foreign = foreign[np.argsort(-unknown.score[foreign], kind="stable")][:MOST]
    if len(foreign) < max(least_size, 2):
        return []
    vectors = unit(rows[foreign])
    assigned = _cluster(vectors, check_integer("most_clusters", most_clusters), seed)
    groups = [np.flatnonzero(assigned == number) for number in np.unique(assigned)]
    clusters = [_describe(vectors[group], foreign[group]) for group in groups if len(group) >= least_size]
    return sorted(clusters, key=lambda cluster: -cluster.similarity)


def block_for(columns: int) -> int:
    """Rows per block so that a block against `columns` columns stays near 64 MB."""
    return max(16, min(BLOCK, 2**24 // max(columns, 1)))


def _check_labeled(labeled: Any, width: int) -> np.ndarray:
    if np.asarray(labeled).shape[:1] == (0,):
        raise UserError("labeled is empty; label at least one image (what to label first: suggest_labels)")
    base = check_features("labeled", labeled)
    if base.shape[1] != width:
        raise UserError(f"labeled must have the width of features, {width}, got {base.shape[1]}")
    return unit(base)


def _nearest_others(base: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """For each label the distance to its count-th nearest other (inf if there is none), and the sum of the nearer."""
    reach = np.empty(len(base), np.float32)
    total = np.empty(len(base), np.float32)
    for part in blocks(len(base), block_for(len(base))):
        far = distances(base[part], base)
        far[np.arange(len(far)), np.arange(part.start, part.stop)] = np.inf
        nearest = np.sort(np.partition(far, count - 1, axis=1)[:, :count], axis=1)
        reach[part] = nearest[:, -1]
        total[part] = nearest[:, :-1].sum(1)
    return reach, total


def _cluster(vectors: np.ndarray, most: int, seed: int) -> np.ndarray:
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    best = np.zeros(len(vectors), int)
    highest = 0.0
    distinct = len(np.unique(vectors.round(5), axis=0))
    for number in range(2, min(most, distinct - 1) + 1):
        assigned = KMeans(number, n_init=4, random_state=seed).fit_predict(vectors)
        score = float(silhouette_score(vectors, assigned))
        if score > highest:
            highest = score
            best = assigned
    return best


def _describe(vectors: np.ndarray, rows: np.ndarray) -> ForeignCluster:
    toward = vectors @ vectors.mean(0)  # the mean cosine to all members
    order = np.argsort(-toward, kind="stable")
    return ForeignCluster(rows[order], int(rows[order[0]]), float(toward.mean()))

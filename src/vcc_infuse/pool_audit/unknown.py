"""Images of no class: far from every labeled image, with a p-value, and what they might have in common.

Density within the pool would point the wrong way: a foreign class forms a dense cluster of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import UserError, check_integer, check_range
from .arrays import BLOCK, LEAST, blocks, check_features, check_labels, distances, unit

NEIGHBORS = 3
ALPHA = 0.05
TIE = 1e-6  # a difference between distances that rounding may make
MOST = 2000  # foreign rows that are clustered: the most foreign ones
HALF = 0.5  # p-value above which rows of known classes lie half of the time, and foreign ones hardly ever
SIGN = 1.64  # standard errors that the known part must lie below all: few labels let any pool seem partly foreign


@dataclass(frozen=True)
class Unknown:
    """How foreign each row is.

    Attributes:
        score: distance to the labeled rows, of shape (rows,); 0 is a copy, √2 is unrelated.
        p: how often a labeled row is at least that far from the others, of shape (rows,). It is never below
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


@dataclass(frozen=True)
class KnownRows:
    """Labeled rows and how far each is from the others: all that is needed to judge further rows.

    Attributes:
        rows: of unit length, of shape (labels, width).
        means: of the classes, of unit length and of shape (classes, width); no rows if classes are not told apart.
        own: score of each label by the others, of shape (labels,); infinite if there are none.
        neighbors: how many of the nearest rows count.
    """

    rows: np.ndarray
    means: np.ndarray
    own: np.ndarray
    neighbors: int

    @classmethod
    def of(cls, labeled: np.ndarray, labels: np.ndarray | None = None, *, neighbors: int = NEIGHBORS) -> KnownRows:
        """From features of the labeled images, of unit length and of shape (labels, width), float32, and classes."""
        count = min(check_integer("neighbors", neighbors), len(labeled))
        sums = _class_sums(labeled, labels)
        return cls(labeled, unit(sums), _scores_left_out(labeled, sums, labels, count), count)

    @property
    def least_p(self) -> float:
        """The smallest p-value that a row can get."""
        return 1 / (len(self.rows) + 1)

    def judge(self, rows: np.ndarray) -> Unknown:
        """How foreign other rows are, of shape (rows, width); see `find_unknown`."""
        score = np.empty(len(rows), np.float32)
        for part in blocks(len(rows), block_for(len(self.rows))):
            some = unit(rows[part])
            nearest = np.partition(distances(some, self.rows), self.neighbors - 1, axis=1)[:, : self.neighbors].mean(1)
            score[part] = nearest if not len(self.means) else (nearest + distances(some, self.means).min(1)) / 2
        return Unknown(score, conformal_p(score - TIE, self.own))


def find_unknown(features: Any, labeled: Any, labels: Any = None, *, neighbors: int = NEIGHBORS) -> Unknown:
    """How far each row is from the labeled rows, and how unusual that is for a known class.

    The score is the mean distance to the nearest labeled rows; with `labels`, half of that and half of the distance to
    the nearest mean of a class, which tells foreign rows better. The p-value is the share of labels, and the row
    itself, that are at least as far, each label judged by the others. If labels are drawn at random from the known
    classes, about a fraction a of the rows of known classes has p ≤ a; with few labels per class it is fewer, because
    a label that is left out has one neighbor less.

    Args:
        features: of shape (rows, width), as `unit_rows` makes them. Leave out the labeled rows themselves: they are
            their own nearest neighbors.
        labeled: features of the labeled images, of shape (labels, width), made with the same reference.
        labels: classes of the labeled images, of shape (labels,).
        neighbors: how many of the nearest labeled rows count.

    >>> labeled = [[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [1.0, 0.3]]
    >>> find_unknown([[1.0, 0.15], [-1.0, 1.0]], labeled, [0, 0, 0, 0]).p.tolist()
    [1.0, 0.2]
    """
    rows = check_features("features", features)
    base = _check_labeled(labeled, rows.shape[1])
    given = None if labels is None else check_labels("labels", labels, len(base))
    return KnownRows.of(base, given, neighbors=neighbors).judge(rows)


def known_share(score: np.ndarray, predicted: np.ndarray, own: np.ndarray, labels: np.ndarray) -> float:
    """The part of rows that is of known classes, by how unusual their scores are; 1 if less could be chance.

    Among rows of known classes about half have a p-value above a half, among foreign ones hardly any (Storey, 2002).
    Rows are compared with labels of their own predicted class: classes that are spread out have higher scores, and the
    pool may have many of them.

    Args:
        score: of the rows, (rows,); see `Unknown`.
        predicted: their predicted classes, (rows,).
        own: scores of the labels by the others, (labels,); see `KnownRows`.
        labels: their classes, (labels,).

    >>> score = np.array([9.0] * 6 + [0.1, 0.2, 0.6, 0.8])
    >>> known_share(score, np.zeros(10, int), np.linspace(0.05, 0.95, 19), np.zeros(19, int))
    0.4
    """
    above = 0.0
    expected = 0.0
    variance = 0.0
    for label in np.unique(labels):
        calibration = own[labels == label]
        members = score[predicted == label]
        possible = np.arange(1, len(calibration) + 2) / (len(calibration) + 1)  # p-values, equally likely
        above += float((conformal_p(members - TIE, calibration) > HALF).sum())
        expected += float((possible > HALF).mean()) * len(members)
        variance += len(members) ** 2 / (4 * (len(calibration) + 2))  # of a median of so few labels
    below = expected - above
    return 1.0 if below <= SIGN * variance**0.5 else above / expected


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


def _class_sums(labeled: np.ndarray, labels: np.ndarray | None) -> np.ndarray:
    """The sum of the rows of each class that has any, of shape (classes, width); empty without classes."""
    if labels is None:
        return np.empty((0, labeled.shape[1]), np.float32)
    return np.stack([labeled[labels == label].sum(0) for label in np.unique(labels)])


def _scores_left_out(labeled: np.ndarray, sums: np.ndarray, labels: np.ndarray | None, neighbors: int) -> np.ndarray:
    """The score of each label by the other labels; infinite where there is no other."""
    count = min(neighbors, len(labeled) - 1)
    if not count:
        return np.full(len(labeled), np.inf, np.float32)
    scores = np.empty(len(labeled), np.float32)
    for part in blocks(len(labeled), block_for(len(labeled))):
        far = distances(labeled[part], labeled)
        far[np.arange(len(far)), np.arange(part.start, part.stop)] = np.inf
        scores[part] = np.partition(far, count - 1, axis=1)[:, :count].mean(1)
    return scores if labels is None else (scores + _to_means_left_out(labeled, sums, labels)) / 2


def _to_means_left_out(labeled: np.ndarray, sums: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The distance of each label to the nearest mean of a class, its own without it; infinite where none is left."""
    numbers = np.unique(labels, return_inverse=True)[1]
    nearest = np.empty(len(labeled), np.float32)
    for part in blocks(len(labeled)):
        rows = labeled[part]
        own = numbers[part]
        far = distances(rows, unit(sums))
        others = sums[own] - rows
        alone = np.linalg.norm(others, axis=1) < LEAST
        to_own = np.sqrt(np.maximum(2 - 2 * np.einsum("ij,ij->i", unit(others), rows), 0))
        far[np.arange(len(rows)), own] = np.where(alone, np.inf, to_own)
        nearest[part] = far.min(1)
    return nearest


def _cluster(vectors: np.ndarray, most: int, seed: int) -> np.ndarray:
    from sklearn.cluster import KMeans
    from sklearn.metrics import pairwise_distances, silhouette_score

    best = np.zeros(len(vectors), int)
    highest = 0.0
    distinct = len(np.unique(vectors.round(5), axis=0))
    between = pairwise_distances(vectors)
    for number in range(2, min(most, distinct - 1) + 1):
        assigned = KMeans(number, n_init=4, random_state=seed).fit_predict(vectors)
        score = float(silhouette_score(between, assigned, metric="precomputed"))
        if score > highest:
            highest = score
            best = assigned
    return best


def _describe(vectors: np.ndarray, rows: np.ndarray) -> ForeignCluster:
    toward = vectors @ vectors.mean(0)  # the mean cosine to all members
    order = np.argsort(-toward, kind="stable")
    return ForeignCluster(rows[order], int(rows[order[0]]), float(toward.mean()))

"""The head between two full trainings: labels spread to near images, then ridge regression to both, in a second.

With a few labels per class the nearest images tell more than a classifier fitted to the labels alone: labels are spread
over the graph of nearest neighbors (Zhou et al., 2004), every class with the same weight, and a linear head learns from
the labels and, with less weight, from what was spread. With many labels the labels decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import log_softmax, softmax

from ..pool_audit.arrays import blocks, check_features, check_labels, main_directions

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

DIRECTIONS = 256  # of most variance: the others change nothing and cost time
NEIGHBORS = 15
SPREAD = 0.7  # what a row takes from its neighbors at each of the steps
STEPS = 20
SPREAD_WEIGHT = 0.3  # of a row whose label was spread, times its confidence
PENALTY = 2.0
TEMPERATURE = 0.12  # of scores where there are too few labels to fit it
FOLDS = 3


class PoolGraph(NamedTuple):
    """What the head needs of the images of a pool; labels do not change it.

    Attributes:
        basis: main directions, of shape (width, directions).
        rows: the pool in these directions, of shape (rows, directions).
        affinity: normalized similarity to the nearest neighbors, sparse, of shape (rows, rows).
    """

    basis: np.ndarray
    rows: np.ndarray
    affinity: csr_matrix


class QuickHead(NamedTuple):
    """A linear head: weight of shape (directions, classes), bias of shape (classes,), temperature of its scores."""

    basis: np.ndarray
    weight: np.ndarray
    bias: np.ndarray
    temperature: float

    def probs(self, features: np.ndarray) -> np.ndarray:
        """Probabilities of shape (rows, classes) for rows as `unit_rows` makes them with the pool as reference."""
        return self.probs_of(features @ self.basis)

    def probs_of(self, rows: np.ndarray) -> np.ndarray:
        """The same for rows in the main directions, such as those of the graph."""
        return np.asarray(softmax((rows @ self.weight + self.bias) / self.temperature, axis=1))


def pool_graph(features: np.ndarray) -> PoolGraph:
    """Main directions and nearest neighbors of a pool: two seconds for 10,000 images, once.

    Args:
        features: of shape (rows, width), as `unit_rows` makes them.
    """
    given = check_features("features", features)
    basis = main_directions(given, min(DIRECTIONS, given.shape[1])).astype(np.float32)
    rows = np.asarray(given @ basis, np.float32)
    return PoolGraph(basis, rows, _affinity(rows))


def fit_head(graph: PoolGraph, labels: np.ndarray, classes: int, *, calibrate: bool = True) -> QuickHead | None:
    """A head on the labels so far, or None before two classes have one.

    Args:
        graph: of the pool.
        labels: of shape (rows,), −1 where there is none.
        classes: their number, those without a label included.
        calibrate: fit the temperature to labels left out in folds; it costs three more fits.
    """
    given = check_labels("labels", labels, len(graph.rows), low=-1, classes=classes)
    if len(np.unique(given[given >= 0])) < 2:
        return None
    temperature = _temperature(graph, given, classes) if calibrate else TEMPERATURE
    weight, bias = _fit(graph, given, classes)
    return QuickHead(graph.basis, weight, bias, temperature)


def spread_labels(affinity: csr_matrix, labels: np.ndarray, classes: int) -> np.ndarray:
    """Class scores of every row, of shape (rows, classes), summing to 1 where any label reaches the row."""
    labeled = np.flatnonzero(labels >= 0)
    start = np.zeros((len(labels), classes), np.float32)
    start[labeled, labels[labeled]] = (
        1 / np.maximum(np.bincount(labels[labeled], minlength=classes), 1)[labels[labeled]]
    )
    scores = start
    for _ in range(STEPS):
        scores = SPREAD * (affinity @ scores) + (1 - SPREAD) * start
    total = scores.sum(1, keepdims=True)
    return np.asarray(np.divide(scores, total, out=np.zeros_like(scores), where=total > 0))


def _fit(graph: PoolGraph, labels: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Ridge regression to the labels and, with less weight, to the likeliest spread class of the other rows."""
    spread = spread_labels(graph.affinity, labels, classes)
    labeled = labels >= 0
    weights = np.where(labeled, 1.0, SPREAD_WEIGHT * spread.max(1)).astype(np.float32)
    targets = np.eye(classes, dtype=np.float32)[np.where(labeled, labels, spread.argmax(1))]
    total = weights.sum()
    mean = weights @ graph.rows / total
    share = weights @ targets / total
    centered = graph.rows - mean
    weighted = centered * weights[:, None]
    square = weighted.T @ centered + PENALTY * np.eye(centered.shape[1], dtype=np.float32)
    weight = np.linalg.solve(square, weighted.T @ (targets - share)).astype(np.float32)
    return weight, share - mean @ weight


def _temperature(graph: PoolGraph, labels: np.ndarray, classes: int) -> float:
    """The temperature under which labels that a head did not see are most likely."""
    from scipy.optimize import minimize_scalar

    labeled = np.flatnonzero(labels >= 0)
    if len(labeled) < 2 * classes:
        return TEMPERATURE
    fold = np.random.default_rng(0).permutation(len(labeled)) % FOLDS
    scores = np.empty((len(labeled), classes))
    for number in range(FOLDS):
        seen = labels.copy()
        hidden = labeled[fold == number]
        seen[hidden] = -1
        weight, bias = _fit(graph, seen, classes)
        scores[fold == number] = graph.rows[hidden] @ weight + bias
    answers = labels[labeled]

    def loss(log_temperature: float) -> float:
        return -float(log_softmax(scores / np.exp(log_temperature), axis=1)[np.arange(len(answers)), answers].mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-5.0, 1.0), method="bounded", options={"xatol": 0.02}).x))


def _affinity(rows: np.ndarray) -> csr_matrix:
    """Cubed cosines to the nearest neighbors, in both directions, normalized by the degrees of both ends."""
    from scipy.sparse import csr_matrix, diags

    count = min(NEIGHBORS, len(rows) - 1)
    near = np.empty((len(rows), count), np.int64)
    cosine = np.empty((len(rows), count), np.float32)
    for part in blocks(len(rows), 1024):
        similar = rows[part] @ rows.T
        similar[np.arange(len(similar)), np.arange(part.start, part.stop)] = -np.inf
        near[part] = np.argpartition(-similar, count - 1, axis=1)[:, :count] if count else near[part]
        cosine[part] = np.take_along_axis(similar, near[part], axis=1)
    from_rows = np.repeat(np.arange(len(rows)), count)
    links = csr_matrix((np.maximum(cosine, 0).ravel() ** 3, (from_rows, near.ravel())), shape=(len(rows), len(rows)))
    links = links + links.T
    scale = diags(1 / np.sqrt(np.maximum(np.asarray(links.sum(1)).ravel(), 1e-12)))
    return csr_matrix(scale @ links @ scale)

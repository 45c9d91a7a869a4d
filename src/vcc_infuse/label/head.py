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

DIRECTIONS = 512  # of most variance: the others change nothing and cost time
NEIGHBORS = 15
SPREAD = 0.7  # what a row takes from its neighbors at each of the steps
STEPS = 20
SPREAD_WEIGHT = 0.3  # of a row whose label was spread, times its confidence
PENALTY = 1.0
TEMPERATURE = 0.12  # of scores where there are too few labels to fit it
FOLDS = 3
LEAST = 1e-12


class PoolGraph(NamedTuple):
    """What the head needs of the images of a pool; labels do not change it.

    Attributes:
        basis: main directions, of shape (width, directions).
        rows: the pool in these directions, of shape (rows, directions).
        affinity: normalized similarity to the nearest neighbors, sparse, of shape (rows, rows).
        degree: what the similarities of each row sum up to before that, of shape (rows,).
    """

    basis: np.ndarray
    rows: np.ndarray
    affinity: csr_matrix
    degree: np.ndarray


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
    return PoolGraph(basis, rows, *_affinity(rows))


def joined(graph: PoolGraph, rows: np.ndarray) -> PoolGraph:
    """The graph with more rows at its end, linked to their nearest neighbors among those that it has.

    Args:
        graph: of some images.
        rows: others in its main directions, of shape (more, directions).
    """
    from scipy.sparse import bmat, csr_matrix

    near, weight = _nearest(rows, graph.rows)
    degree = np.maximum(weight.sum(1), LEAST)
    values = weight / np.sqrt(degree[:, None] * graph.degree[near])
    places = (np.repeat(np.arange(len(rows)), near.shape[1]), near.ravel())
    links = csr_matrix((values.ravel(), places), shape=(len(rows), len(graph.rows)))
    affinity = csr_matrix(bmat([[graph.affinity, links.T], [links, None]]))
    return PoolGraph(graph.basis, np.concatenate([graph.rows, rows]), affinity, np.append(graph.degree, degree))


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


def hidden_scores(graph: PoolGraph, labels: np.ndarray, classes: int, fold: np.ndarray) -> np.ndarray:
    """Scores of the labeled rows by heads that did not see their labels, of shape (labels, classes).

    Args:
        graph: of the pool.
        labels: of shape (rows,), −1 where there is none.
        classes: their number.
        fold: in which each label is hidden, of shape (labels,); −1 for those always shown, whose scores are 0.
    """
    labeled = np.flatnonzero(labels >= 0)
    scores = np.zeros((len(labeled), classes))
    for number in range(int(fold.max()) + 1):
        seen = labels.copy()
        hidden = labeled[fold == number]
        seen[hidden] = -1
        weight, bias = _fit(graph, seen, classes)
        scores[fold == number] = graph.rows[hidden] @ weight + bias
    return scores


def _temperature(graph: PoolGraph, labels: np.ndarray, classes: int) -> float:
    """The temperature under which labels that a head did not see are most likely."""
    from scipy.optimize import minimize_scalar

    answers = labels[labels >= 0]
    if len(answers) < 2 * classes:
        return TEMPERATURE
    fold = np.random.default_rng(0).permutation(len(answers)) % FOLDS
    scores = hidden_scores(graph, labels, classes, fold)

    def loss(log_temperature: float) -> float:
        return -float(log_softmax(scores / np.exp(log_temperature), axis=1)[np.arange(len(answers)), answers].mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-5.0, 1.0), method="bounded", options={"xatol": 0.02}).x))


def _affinity(rows: np.ndarray) -> tuple[csr_matrix, np.ndarray]:
    """Cubed cosines to the nearest neighbors, in both directions, normalized by the degrees; and these degrees."""
    from scipy.sparse import csr_matrix, diags

    near, weight = _nearest(rows)
    from_rows = np.repeat(np.arange(len(rows)), near.shape[1])
    links = csr_matrix((weight.ravel(), (from_rows, near.ravel())), shape=(len(rows), len(rows)))
    links = links + links.T
    degree = np.maximum(np.asarray(links.sum(1)).ravel(), LEAST)
    scale = diags(1 / np.sqrt(degree))
    return csr_matrix(scale @ links @ scale), degree


def _nearest(rows: np.ndarray, others: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The nearest of the other rows, by default of the same rows but for each itself, and cubed cosines to them."""
    among = rows if others is None else others
    count = min(NEIGHBORS, len(among) - (others is None))
    near = np.empty((len(rows), count), np.int64)
    cosine = np.empty((len(rows), count), np.float32)
    for part in blocks(len(rows), 1024):
        similar = rows[part] @ among.T
        if others is None:
            similar[np.arange(len(similar)), np.arange(part.start, part.stop)] = -np.inf
        near[part] = np.argpartition(-similar, count - 1, axis=1)[:, :count] if count else near[part]
        cosine[part] = np.take_along_axis(similar, near[part], axis=1)
    return near, np.maximum(cosine, 0) ** 3

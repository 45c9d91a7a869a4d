"""A linear head in closed form: ridge regression to one-hot targets, and what it says of each label without that label.

With few labels its error is that of logistic regression, and one decomposition answers for every penalty and every
left-out row at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import blocks, unit

PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # for rows of unit length
FALLBACK = 0.1  # where hardly any label has another of its class, nothing says which penalty is right
NOISE_RATES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
MOST = 5000  # rows that temperature and noise are fitted on: more change nothing


class LeaveOneOut(NamedTuple):
    """Scores for each labeled row by a head that was fitted to all others.

    Attributes:
        scores: of shape (rows, classes).
        penalty: of the head, chosen by the likelihood of the labels left out.
        temperature: `softmax(scores / temperature)` are calibrated probabilities.
        noise: the share of labels drawn at random that makes the given labels most likely.
    """

    scores: np.ndarray
    penalty: float
    temperature: float
    noise: float

    def probs(self) -> np.ndarray:
        """Calibrated probabilities of shape (rows, classes)."""
        return _softmax(self.scores / self.temperature)


class RidgeHead(NamedTuple):
    """A fitted head: weight of shape (classes, width), bias of shape (classes,) and the temperature of its scores."""

    weight: np.ndarray
    bias: np.ndarray
    temperature: float

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Scores of shape (rows, classes) for features of shape (rows, width)."""
        result = np.empty((len(features), len(self.bias)), np.float32)
        for part in blocks(len(features)):
            result[part] = unit(features[part]) @ self.weight.T + self.bias
        return result

    def probs(self, features: np.ndarray) -> np.ndarray:
        """Calibrated probabilities of shape (rows, classes)."""
        return _softmax(self.scores(features) / self.temperature)


class _Decomposed(NamedTuple):
    """Centered rows as left · diag(sizes) · right, and centered one-hot targets."""

    left: np.ndarray
    sizes: np.ndarray
    right: np.ndarray
    targets: np.ndarray
    mean: np.ndarray
    shares: np.ndarray

    def shrinkage(self, penalty: float) -> np.ndarray:
        return self.sizes**2 / (self.sizes**2 + penalty)


def leave_one_out(features: np.ndarray, labels: np.ndarray, classes: int, penalty: float | None = None) -> LeaveOneOut:
    """What a ridge head says of each label without that label; no head is fitted twice.

    Args:
        features: of shape (rows, width), scaled to unit length here.
        labels: of shape (rows,).
        classes: their number.
        penalty: by default the one of `PENALTIES` under which the left-out labels are most likely.
    """
    decomposed = _decompose(features, labels, classes)
    judged = np.bincount(labels, minlength=classes)[labels] > 1
    if penalty is None and judged.sum() < classes:  # two labels that are judged wrongly would choose a useless head
        penalty = FALLBACK
    if not judged.any():  # nothing can be calibrated where every class has a single label
        return LeaveOneOut(_left_out(decomposed, penalty or FALLBACK), penalty or FALLBACK, 0.2, 0.0)
    rows = np.flatnonzero(judged)
    rows = rows[:: -(-len(rows) // MOST)]
    best: tuple[float, LeaveOneOut] | None = None
    for candidate in PENALTIES if penalty is None else (penalty,):
        scores = _left_out(decomposed, candidate)
        loss, temperature, noise = _calibrate(scores[rows], labels[rows])
        if best is None or loss < best[0]:
            best = (loss, LeaveOneOut(scores, candidate, temperature, noise))
    assert best is not None
    return best[1]


def fit_ridge(features: np.ndarray, labels: np.ndarray, classes: int, penalty: float | None = None) -> RidgeHead:
    """The head on all labels, with the penalty and the temperature of its left-out predictions."""
    chosen = leave_one_out(features, labels, classes, penalty)
    decomposed = _decompose(features, labels, classes)
    return _head(decomposed, chosen.penalty)._replace(temperature=chosen.temperature)


def ridge_scores(train: np.ndarray, labels: np.ndarray, test: np.ndarray, classes: int, penalty: float) -> np.ndarray:
    """Scores of test rows by a head of a given penalty, of shape (rows, classes)."""
    return _head(_decompose(train, labels, classes), penalty).scores(test)


def _head(decomposed: _Decomposed, penalty: float) -> RidgeHead:
    inverse = decomposed.sizes / (decomposed.sizes**2 + penalty)
    weight = (decomposed.right.T * inverse) @ (decomposed.left.T @ decomposed.targets)
    bias = decomposed.shares - decomposed.mean @ weight
    return RidgeHead(weight.T.astype(np.float32), bias.astype(np.float32), 1.0)


def _decompose(features: np.ndarray, labels: np.ndarray, classes: int) -> _Decomposed:
    rows = unit(features).astype(np.float64)
    mean = rows.mean(0)
    rows -= mean
    targets = np.eye(classes)[labels]
    shares = targets.mean(0)
    wide = len(rows) <= rows.shape[1]
    squares, basis = np.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    kept = squares > 1e-10 * max(float(squares[-1]), 1e-12)
    sizes = np.sqrt(squares[kept])
    basis = basis[:, kept]
    left = basis if wide else rows @ basis / sizes
    right = (rows.T @ basis / sizes).T if wide else basis.T
    return _Decomposed(left, sizes, right, targets - shares, mean, shares)


def _left_out(decomposed: _Decomposed, penalty: float) -> np.ndarray:
    """Predictions without the row itself, from its leverage; the mean, too, is that of the other rows."""
    shrunk = decomposed.left * decomposed.shrinkage(penalty)
    fitted = shrunk @ (decomposed.left.T @ decomposed.targets)
    rows = len(fitted)
    leverage = 1 / rows + np.einsum("ij,ij->i", shrunk, decomposed.left)
    residual = (decomposed.targets - fitted) / np.maximum(1 - leverage, 1e-9)[:, None]
    scores: np.ndarray = decomposed.targets - residual + decomposed.shares
    return scores


def _calibrate(scores: np.ndarray, labels: np.ndarray) -> tuple[float, float, float]:
    """The loss, temperature and share of random labels that make the labels most likely.

    A temperature alone would explain a few wrong labels by doubting all of them.
    """
    from scipy.optimize import minimize_scalar  # here, because it takes a while to import

    best = (np.inf, 1.0, 0.0)
    for noise in NOISE_RATES:
        fitted = minimize_scalar(
            lambda log_t, noise=noise: _loss(scores, labels, float(np.exp(log_t)), noise),
            bounds=(-5.0, 1.0), method="bounded", options={"xatol": 0.02},
        )  # fmt: skip
        if fitted.fun < best[0] - 1e-4:  # a simpler explanation of the same likelihood is preferred
            best = (float(fitted.fun), float(np.exp(fitted.x)), noise)
        elif fitted.fun > best[0] + 0.05:
            break
    return best


def _softmax(scores: np.ndarray) -> np.ndarray:
    from scipy.special import softmax

    return np.asarray(softmax(scores, axis=1))


def _loss(scores: np.ndarray, labels: np.ndarray, temperature: float, noise: float) -> float:
    from scipy.special import log_softmax

    own = np.exp(log_softmax(scores / temperature, axis=1)[np.arange(len(labels)), labels])
    return -float(np.log((1 - noise) * own + noise / scores.shape[1] + 1e-12).mean())

"""Class shares of a pool, which may differ from those of the labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..errors import UserError, check_choice, check_integer, check_range
from .arrays import check_labels, check_probs

Method = Literal["em", "confusion"]
ROUNDS = 1000
TOLERANCE = 1e-5
DRAW_ROWS = 5000  # rows of the pool in each draw for the intervals
BIAS_ROUNDS = 30
SUM_WEIGHT = 1e3  # of the equation that shares sum to 1, against those of the confusion


@dataclass(frozen=True)
class ClassShares:
    """Estimated shares.

    Attributes:
        shares: of each class in the pool, of shape (classes,), summing to 1.
        low, high: an interval for each, of shape (classes,).
        labeled: the shares among the labels, of shape (classes,).
        method: `em` or `confusion`.
    """

    shares: np.ndarray
    low: np.ndarray
    high: np.ndarray
    labeled: np.ndarray
    method: str

    def differ(self) -> np.ndarray:
        """Classes whose share among the labels lies outside of the interval."""
        return np.flatnonzero((self.labeled < self.low) | (self.labeled > self.high))


def estimate_shares(
    pool_probs: Any,
    label_probs: Any,
    labels: Any,
    *,
    method: Method = "em",
    level: float = 0.9,
    draws: int = 100,
    seed: int = 0,
) -> ClassShares:
    """Estimate the class shares of a pool from predictions for it and out-of-fold predictions for the labels.

    Args:
        pool_probs: calibrated probabilities for the pool, of shape (rows, classes).
        label_probs: probabilities for the labeled images by heads that were not shown them, of shape (labels, classes).
        labels: of shape (labels,).
        method: `em` finds the shares that make the pool most likely (Saerens et al., 2002) and does with
            few labels; `confusion` explains the mean prediction by those of the
            classes (black-box shift estimation, Lipton et al., 2018) and needs labels of every class.
        level: of the intervals, which are percentiles over draws of labels and pool with replacement.
        draws: their number.
        seed: of the draws.
    """
    pool = check_probs("pool_probs", pool_probs)
    classes = pool.shape[1]
    own = check_probs("label_probs", label_probs, classes)
    given = check_labels("labels", labels, len(own), classes=classes)
    counts = np.bincount(given, minlength=classes)
    check_choice("method", method, ("em", "confusion"))
    if method == "confusion" and counts.min() < 1:
        raise UserError(f"labels must hold every class for method confusion, but none is of class {counts.argmin()}")
    check_range("level", level, 0, 1, open_low=True, open_high=True)
    estimates = _draws(pool, own, given, method, check_integer("draws", draws), seed)
    low, high = np.quantile(estimates, ((1 - level) / 2, (1 + level) / 2), axis=0)
    shares = _estimate(pool, own, given, method)
    return ClassShares(shares, np.minimum(low, shares), np.maximum(high, shares), counts / len(given), method)


def shares_by_em(probs: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """The shares under which a pool is most likely, by expectation maximization.

    Args:
        probs: calibrated where classes have the shares `prior`, of shape (rows, classes).
        prior: of shape (classes,); a class without prior keeps the share 0.

    >>> shares_by_em(np.array([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.1, 0.9]]), np.array([0.5, 0.5])).round(2).tolist()
    [0.81, 0.19]
    """
    ratio = probs / np.maximum(prior, 1e-12)
    shares = prior / prior.sum()
    for _ in range(ROUNDS):
        joint = ratio * shares
        new = (joint / np.maximum(joint.sum(1, keepdims=True), 1e-300)).mean(0)
        moved = np.abs(new - shares).max()
        shares = new
        if moved < TOLERANCE:
            break
    return np.asarray(shares / shares.sum())


def shares_by_confusion(pool_probs: np.ndarray, label_probs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The shares under which classes with their mean out-of-fold predictions give the pool's mean prediction.

    Least squares over shares that are not negative and sum to 1.
    """
    from scipy.optimize import nnls  # here, because it takes a while to import

    classes = pool_probs.shape[1]
    members = np.eye(classes)[labels]
    confusion = (members / np.maximum(members.sum(0), 1)).T @ label_probs
    equations = np.vstack([confusion.T, np.full((1, classes), SUM_WEIGHT)])
    shares, _ = nnls(equations, np.append(pool_probs.mean(0), SUM_WEIGHT))
    return np.asarray(shares / shares.sum())


def _estimate(pool: np.ndarray, own: np.ndarray, labels: np.ndarray, method: str) -> np.ndarray:
    if method == "confusion":
        return shares_by_confusion(pool, own, labels)
    return shares_by_em(pool, np.bincount(labels, minlength=pool.shape[1]) / len(labels))


def _draws(pool: np.ndarray, own: np.ndarray, labels: np.ndarray, method: str, draws: int, seed: int) -> np.ndarray:
    """Estimates on labels and pool drawn with replacement.

    Other labels would have given a head that favors other classes; for EM, which takes the head as given, the draws
    of the labels say by how much.
    """
    rng = np.random.default_rng(seed)
    favored = _bias(own, labels)
    estimates = []
    for _ in range(draws):
        rows = pool[rng.integers(len(pool), size=min(len(pool), DRAW_ROWS))]
        some = _within_classes(labels, rng)
        if method == "em":
            rows = rows * np.exp(_bias(own[some], labels[some]) - favored)
            rows /= rows.sum(1, keepdims=True)
        estimates.append(_estimate(rows, own[some], labels[some], method))
    return np.array(estimates)


def _bias(probs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """What must be added to the log-probabilities so that their mean becomes the shares of the labels."""
    shares = np.maximum(np.bincount(labels, minlength=probs.shape[1]) / len(labels), 1e-6)
    bias = np.zeros(probs.shape[1])
    for _ in range(BIAS_ROUNDS):
        shifted = probs * np.exp(bias)
        shifted /= shifted.sum(1, keepdims=True)
        bias += np.log(shares / np.maximum(shifted.mean(0), 1e-6))
        bias -= bias.mean()
    return np.clip(bias, -3, 3)


def _within_classes(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """As many labels of each class, drawn with replacement."""
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    return np.concatenate([rng.choice(rows, len(rows)) for rows in members])

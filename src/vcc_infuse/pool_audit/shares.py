"""Class shares of a pool, which may differ from those of the labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.optimize import nnls

from ..errors import UserError, check_choice, check_integer, check_range
from .arrays import check_labels, check_probs

Method = Literal["auto", "em", "confusion"]
ROUNDS = 1000
TOLERANCE = 1e-6
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
    method: Method = "auto",
    level: float = 0.9,
    draws: int = 100,
    seed: int = 0,
) -> ClassShares:
    """Estimate the class shares of a pool from predictions for it and out-of-fold predictions for the labels.

    Args:
        pool_probs: calibrated probabilities for the pool, of shape (rows, classes).
        label_probs: probabilities for the labeled images by heads that were not shown them, of shape (labels, classes).
        labels: of shape (labels,).
        method: `em` finds the shares that make the pool most likely (Saerens et al., 2002); `confusion` explains the
            mean prediction by those of the classes (black-box shift estimation, Lipton et al., 2018) and needs two
            labels of every class. `auto` takes `confusion` from ten labels of every class on.
        level: of the intervals, which are percentiles over draws of labels and pool with replacement.
        draws: their number.
        seed: of the draws.
    """
    pool = check_probs("pool_probs", pool_probs)
    classes = pool.shape[1]
    own = check_probs("label_probs", label_probs, classes)
    given = check_labels("labels", labels, len(own), classes=classes)
    counts = np.bincount(given, minlength=classes)
    check_choice("method", method, ("auto", "em", "confusion"))
    if method == "confusion" and counts.min() < 1:
        raise UserError(f"labels must hold every class for method confusion, but none is of class {counts.argmin()}")
    chosen = _choose(counts) if method == "auto" else method
    check_range("level", level, 0, 1, open_low=True, open_high=True)
    estimates = _draws(pool, own, given, chosen, check_integer("draws", draws), seed)
    low, high = np.quantile(estimates, ((1 - level) / 2, (1 + level) / 2), axis=0)
    shares = _estimate(pool, own, given, chosen)
    return ClassShares(shares, np.minimum(low, shares), np.maximum(high, shares), counts / len(given), chosen)


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
    classes = pool_probs.shape[1]
    members = np.eye(classes)[labels]
    confusion = (members / np.maximum(members.sum(0), 1)).T @ label_probs
    equations = np.vstack([confusion.T, np.full((1, classes), SUM_WEIGHT)])
    shares, _ = nnls(equations, np.append(pool_probs.mean(0), SUM_WEIGHT))
    return np.asarray(shares / shares.sum())


def _choose(counts: np.ndarray) -> str:
    return "confusion" if counts.min() >= 10 else "em"


def _estimate(pool: np.ndarray, own: np.ndarray, labels: np.ndarray, method: str) -> np.ndarray:
    if method == "confusion":
        return shares_by_confusion(pool, own, labels)
    return shares_by_em(pool, np.bincount(labels, minlength=pool.shape[1]) / len(labels))


def _draws(pool: np.ndarray, own: np.ndarray, labels: np.ndarray, method: str, draws: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    estimates = []
    for _ in range(draws):
        rows = rng.integers(len(pool), size=len(pool))
        some = _within_classes(labels, rng)
        estimates.append(_estimate(pool[rows], own[some], labels[some], method))
    return np.array(estimates)


def _within_classes(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """As many labels of each class, drawn with replacement."""
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    return np.concatenate([rng.choice(rows, len(rows)) for rows in members])

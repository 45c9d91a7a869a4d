"""Doubtful labels: those that a head which was not shown them contradicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..errors import UserError, check_choice
from .arrays import check_classes, check_features, check_labels, check_probs
from .ridge import leave_one_out


@dataclass(frozen=True)
class DoubtfulLabels:
    """What speaks against each label.

    Attributes:
        self_confidence: probability of the given label, of shape (rows,).
        normalized_margin: half of one plus the probability of the given label minus that of the best other one.
        suggested: the most likely class, of shape (rows,).
        p_wrong: the probability that the label is wrong, of shape (rows,), given how many labels seem to be wrong.
        judged: False for labels that are alone in their class: nothing can be said of them, and they rank last.
        noise: the estimated share of labels that were drawn at random.
    """

    self_confidence: np.ndarray
    normalized_margin: np.ndarray
    suggested: np.ndarray
    p_wrong: np.ndarray
    judged: np.ndarray
    noise: float

    def ranking(self, by: Literal["self_confidence", "normalized_margin"] = "self_confidence") -> np.ndarray:
        """Row numbers, the most doubtful label first."""
        check_choice("by", by, ("self_confidence", "normalized_margin"))
        return np.lexsort((getattr(self, by), ~self.judged))


def find_doubtful_labels(features: Any, labels: Any, *, classes: int | None = None) -> DoubtfulLabels:
    """Judge each label by a ridge head that was fitted to all others.

    Args:
        features: of the labeled images, of shape (rows, width), as `unit_rows` makes them.
        labels: of shape (rows,), from 0.
        classes: by default one more than the largest label.

    >>> features = [[1.0, 0.0], [0.9, 0.1], [1.0, 0.1], [0.0, 1.0], [0.1, 0.9], [0.1, 1.0], [0.0, 0.9]]
    >>> doubts = find_doubtful_labels(features, [0, 0, 0, 1, 1, 1, 0])
    >>> int(doubts.ranking()[0]), int(doubts.suggested[6])
    (6, 1)
    """
    rows = check_features("features", features)
    given = check_labels("labels", labels, len(rows), classes=classes)
    number = check_classes(given, classes)
    _check_two_classes(given)
    left_out = leave_one_out(rows, given, number)
    return judge_labels(given, left_out.probs(), noise=left_out.noise)


def judge_labels(labels: Any, probs: Any, *, noise: float | None = None) -> DoubtfulLabels:
    """Judge labels by probabilities of your own, which must come from models that were not shown them.

    Args:
        labels: of shape (rows,).
        probs: of shape (rows, classes).
        noise: the share of labels drawn at random, by default the most likely one.
    """
    rows = check_probs("probs", probs)
    given = check_labels("labels", labels, len(rows), classes=rows.shape[1])
    every = np.arange(len(rows))
    confidence = rows[every, given]
    others = rows.copy()
    others[every, given] = -1
    judged = np.bincount(given, minlength=rows.shape[1])[given] > 1
    share = _most_likely_noise(confidence[judged], rows.shape[1]) if noise is None else noise
    wrong = np.where(judged, _p_wrong(confidence, share, rows.shape[1]), np.nan)
    margin = (confidence - others.max(1) + 1) / 2
    return DoubtfulLabels(confidence, margin, rows.argmax(1), wrong, judged, share)


def _check_two_classes(labels: np.ndarray) -> None:
    if len(np.unique(labels)) < 2:
        raise UserError("labels must hold at least two classes to doubt any of them, got one; label a second class")


def _p_wrong(confidence: np.ndarray, noise: float, classes: int) -> np.ndarray:
    """Of a label that is random with probability `noise` and else follows the model: that it was random and missed."""
    missed = noise / classes * (1 - confidence)
    right = (1 - noise) * confidence + noise / classes * confidence
    p: np.ndarray = missed / np.maximum(missed + right, 1e-12)
    return p


def _most_likely_noise(confidence: np.ndarray, classes: int) -> float:
    """EM for the share of random labels in a mixture with the model's probabilities."""
    noise = 0.1
    for _ in range(200 if len(confidence) else 0):
        chance = noise / classes
        noise = float((chance / (chance + (1 - noise) * confidence)).mean())
    return noise if len(confidence) else 0.0

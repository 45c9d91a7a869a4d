"""Calibration errors: how much confidence and accuracy differ.

"ACE" has several meanings. `ace` is the mass-weighted error over equal-mass bins of the top label, `ace_classwise` the
one of Nixon et al. (2019), and `average_ce` the unweighted mean over equal-width bins that some libraries call ACE.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..errors import OptionError
from ._inputs import Values, positive, probs_and_truth
from .reliability import Bins, Closed, Reliability, reliability


def ece(confidence: Values, correct: Values, bins: Bins = 15, closed: Closed = "left") -> float:
    """Expected calibration error (Guo et al., 2017): mean gap of equal-width bins, weighted by their examples.

    >>> ece([0.75, 0.75, 1.0, 1.0], [True, False, True, True])  # gaps 0.25 and 0
    0.125
    """
    return _weighted(reliability(confidence, correct, bins, closed=closed))


def mce(confidence: Values, correct: Values, bins: Bins = 15, closed: Closed = "left", min_count: int = 1) -> float:
    """Maximum calibration error: the largest gap among equal-width bins with at least `min_count` examples.

    >>> mce([0.25, 0.75, 0.75], [True, True, False])
    0.75
    >>> mce([0.25, 0.75, 0.75], [True, True, False], min_count=2)
    0.25
    """
    table = reliability(confidence, correct, bins, closed=closed)
    kept = table.count >= positive("min_count", min_count)
    if not kept.any():
        most = int(table.count.max())
        raise OptionError("min_count", min_count, f"must be at most {most}, the number of examples in the fullest bin")
    return float(table.gaps[kept].max())


def ace(confidence: Values, correct: Values, bins: int = 15) -> float:
    """Adaptive calibration error of the top label: mean gap of equal-mass bins, weighted by their examples.

    >>> ace([0.5, 0.75, 0.75, 1.0], [True, True, False, True], bins=2)  # gaps 0.125 in both bins
    0.125
    """
    return _weighted(reliability(confidence, correct, bins, edges="mass"))


def average_ce(confidence: Values, correct: Values, bins: Bins = 15, closed: Closed = "left") -> float:
    """Average calibration error: unweighted mean gap of the equal-width bins that are not empty.

    >>> average_ce([0.25, 0.75, 0.75], [True, True, False])  # gaps 0.75 and 0.25
    0.5
    """
    return float(reliability(confidence, correct, bins, closed=closed).gaps.nanmean())


def ace_classwise(probs: Values, y: Values, bins: int = 15) -> float:
    """Adaptive calibration error of Nixon et al. (2019): mean gap over the equal-mass bins of every class.

    >>> ace_classwise([[0.75, 0.25], [0.25, 0.75]], [0, 1], bins=1)  # one bin per class: mean 0.5, half of them true
    0.0
    >>> ace_classwise([[0.75, 0.25], [0.25, 0.75]], [0, 1], bins=2)
    0.25
    """
    gaps = [reliability(column, is_class, bins, edges="mass").gaps for column, is_class in _one_vs_rest(probs, y)]
    return float(torch.cat(gaps).nanmean())


def classwise_ece(probs: Values, y: Values, bins: Bins = 15, closed: Closed = "left") -> float:
    """Class-wise (static) calibration error: the ECE of each class's probability, averaged over classes.

    >>> classwise_ece([[0.75, 0.25], [0.25, 0.75]], [0, 1])
    0.25
    """
    errors = [ece(column, is_class, bins, closed) for column, is_class in _one_vs_rest(probs, y)]
    return sum(errors) / len(errors)


def paper_preset(confidence: Values, correct: Values) -> dict[str, float]:
    """The convention of the VCC-INFUSE tables: 10 bins (lo, hi], the average calibration error as "ace".

    >>> paper_preset([0.25, 0.75, 0.75, 0.75], [True, True, False, True])
    {'ece': 0.25, 'mce': 0.75, 'ace': 0.4166666666666667}
    """
    return {
        "ece": ece(confidence, correct, 10, "right"),
        "mce": mce(confidence, correct, 10, "right"),
        "ace": average_ce(confidence, correct, 10, "right"),
    }


def _weighted(table: Reliability) -> float:
    return float((table.gaps * table.count).nansum() / table.count.sum())


def _one_vs_rest(probs: Values, y: Values) -> Iterator[tuple[Tensor, Tensor]]:
    probs, y = probs_and_truth("probs", probs, y)
    return ((column, y == number) for number, column in enumerate(probs.unbind(1)))

"""Calibration errors: by how much confidence and accuracy differ.

"ACE" has several meanings. `ace` is the mass-weighted one over equal-mass bins of the top label,
`ace_classwise` that of Nixon et al. (2019), and `average_ce` the unweighted mean over equal-width bins
that some libraries call ACE.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..errors import UserError
from ._inputs import Values, positive, scored
from .reliability import Bins, Reliability, reliability


def ece(confidence: Values, correct: Values, bins: Bins = 15, closed: str = "left") -> float:
    """Expected calibration error (Guo et al., 2017): gap of equal-width bins, weighted by their examples."""
    return _weighted(reliability(confidence, correct, bins, closed=closed))


def mce(confidence: Values, correct: Values, bins: Bins = 15, closed: str = "left", min_count: int = 1) -> float:
    """Maximum calibration error: the widest gap among equal-width bins with at least `min_count` examples."""
    table = reliability(confidence, correct, bins, closed=closed)
    kept = table.count >= positive("min_count", min_count)
    if not kept.any():
        raise UserError(f"min_count={min_count} leaves no bin: the fullest holds {int(table.count.max())}")
    return float(table.gaps[kept].max())


def ace(confidence: Values, correct: Values, bins: int = 15) -> float:
    """Adaptive calibration error of the top label: gap of equal-mass bins, weighted by their examples."""
    return _weighted(reliability(confidence, correct, bins, edges="mass"))


def average_ce(confidence: Values, correct: Values, bins: Bins = 15, closed: str = "left") -> float:
    """Average calibration error: mean gap over equal-width bins that are not empty, all counting the same."""
    return float(reliability(confidence, correct, bins, closed=closed).gaps.nanmean())


def ace_classwise(probs: Values, y: Values, bins: int = 15) -> float:
    """Adaptive calibration error of Nixon et al. (2019): mean gap over the equal-mass bins of every class."""
    gaps = [reliability(p, own, bins, edges="mass").gaps for p, own in _one_against_rest(probs, y)]
    return float(torch.cat(gaps).nanmean())


def classwise_ece(probs: Values, y: Values, bins: Bins = 15, closed: str = "left") -> float:
    """Class-wise (static) calibration error: the ECE of each class's probability, averaged over classes."""
    errors = [ece(p, own, bins, closed) for p, own in _one_against_rest(probs, y)]
    return sum(errors) / len(errors)


def paper_preset(confidence: Values, correct: Values) -> dict[str, float]:
    """The convention of the VCC-INFUSE tables: 10 bins, (lo, hi], the average calibration error as "ace"."""
    return {
        "ece": ece(confidence, correct, 10, "right"),
        "mce": mce(confidence, correct, 10, "right"),
        "ace": average_ce(confidence, correct, 10, "right"),
    }


def _weighted(table: Reliability) -> float:
    return float((table.gaps * table.count).nansum() / table.count.sum())


def _one_against_rest(probs: Values, y: Values) -> Iterator[tuple[Tensor, Tensor]]:
    probs, y = scored("probs", probs, y)
    return ((column, y == number) for number, column in enumerate(probs.unbind(1)))

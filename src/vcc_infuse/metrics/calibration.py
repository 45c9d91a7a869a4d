"""Calibration errors: how far confidence is from accuracy, all computed from one table of confidence bins.

Throughout, `confidence`, `correct` and `y` have shape (examples,), and `probs` has shape (examples, classes).
`bins` is a number of bins of equal width, or their increasing edges.

References:
    Guo et al., On Calibration of Modern Neural Networks, ICML 2017.
    Nixon et al., Measuring Calibration in Deep Learning, CVPR Workshops 2019.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from ..errors import OptionError, UserError, check_choice, check_integer
from .classification import Values, correctness, numbers, scores_and_truth, unit

Bins = int | Tensor | np.ndarray | Sequence[float]
Edges = Literal["width", "mass"]
Closed = Literal["left", "right"]


class Reliability(NamedTuple):
    """A table of confidence bins, in float64.

    Attributes:
        count: examples per bin, of shape (bins,).
        accuracy: fraction of correct predictions, of shape (bins,); NaN in an empty bin.
        confidence: mean confidence, of shape (bins,); NaN in an empty bin.
        edges: bounds of the bins, of shape (bins + 1,).
    """

    count: Tensor  # type: ignore[assignment]  # hides tuple.count, which is not needed here
    accuracy: Tensor
    confidence: Tensor
    edges: Tensor

    @property
    def gaps(self) -> Tensor:
        """|accuracy − confidence| of each bin, of shape (bins,); NaN in an empty bin."""
        return (self.accuracy - self.confidence).abs()


def reliability(
    confidence: Values, correct: Values, bins: Bins = 15, *, edges: Edges = "width", closed: Closed = "left"
) -> Reliability:
    """Group predictions by their confidence.

    Args:
        confidence: numbers in [0, 1], of shape (examples,).
        correct: whether each prediction is correct, of shape (examples,).
        bins: the number of bins, or their increasing edges.
        edges: "width" for bins of equal width, "mass" for bins that hold equally many examples.
        closed: "left" for bins [lo, hi), where the last one includes 1.0; "right" for bins (lo, hi], where the first
            one includes 0.0. Bins of equal mass do not need it.

    Returns:
        One row per bin.

    >>> table = reliability([0.25, 0.5, 1.0], [False, True, True], bins=2)
    >>> table.count.tolist(), table.accuracy.tolist(), table.confidence.tolist()
    ([1.0, 2.0], [0.0, 1.0], [0.25, 0.75])
    """
    confidence = unit("confidence", confidence)
    right = correctness(confidence, correct)
    check_choice("closed", closed, get_args(Closed))
    if check_choice("edges", edges, get_args(Edges)) == "mass":
        return _equal_mass(confidence, right, bins)
    if isinstance(bins, int | np.integer):
        # k/n is the double nearest to the decimal edge; a linspace is not always.
        bounds = torch.arange(check_integer("bins", bins) + 1, dtype=torch.float64) / bins
    else:
        bounds = numbers("bins", bins)
    if len(bounds) < 2 or (bounds.diff() <= 0).any():
        raise UserError("bins as edges must be two or more increasing numbers, such as [0, 0.5, 1]")
    if confidence.min() < bounds[0] or confidence.max() > bounds[-1]:
        raise UserError(f"bins must cover every confidence, got edges [{bounds[0]:.6g}, {bounds[-1]:.6g}]; widen them")
    index = torch.searchsorted(bounds[1:-1].contiguous(), confidence, right=closed == "left")
    return _table(index, confidence, right, bounds)


def _equal_mass(confidence: Tensor, right: Tensor, bins: Bins) -> Reliability:
    if not isinstance(bins, int | np.integer):
        raise UserError("bins must be an integer with edges='mass', which chooses the edges by itself")
    confidence, order = confidence.sort()
    # Equal confidences may straddle a boundary. Each takes its group's accuracy, the mean over all their orders;
    # otherwise the result would depend on the order of the input.
    _, group, size = torch.unique_consecutive(confidence, return_inverse=True, return_counts=True)
    right = (torch.zeros_like(size, dtype=torch.float64).index_add_(0, group, right[order]) / size)[group]
    sizes = torch.tensor([len(part) for part in confidence.tensor_split(check_integer("bins", bins))])
    starts = (sizes.cumsum(0) - sizes).clamp(max=len(confidence) - 1)
    bounds = torch.cat([confidence[starts], confidence[-1:]])
    return _table(torch.arange(len(sizes)).repeat_interleave(sizes), confidence, right, bounds)


def _table(index: Tensor, confidence: Tensor, right: Tensor, bounds: Tensor) -> Reliability:
    count, correct, total = torch.zeros(3, len(bounds) - 1, dtype=torch.float64).unbind()
    count.index_add_(0, index, torch.ones_like(right))
    correct.index_add_(0, index, right)
    total.index_add_(0, index, confidence)
    return Reliability(count, correct / count, total / count, bounds)


def ece(confidence: Values, correct: Values, bins: Bins = 15, *, closed: Closed = "left") -> float:
    """Expected calibration error (Guo et al., 2017): mean gap of equal-width bins, weighted by their examples.

    Args and shapes as in `reliability`.

    >>> ece([0.75, 0.75, 1.0, 1.0], [True, False, True, True])  # gaps 0.25 and 0
    0.125
    """
    return _weighted(reliability(confidence, correct, bins, closed=closed))


def mce(confidence: Values, correct: Values, bins: Bins = 15, *, closed: Closed = "left", min_count: int = 1) -> float:
    """Maximum calibration error: the largest gap among equal-width bins with at least `min_count` examples.

    >>> mce([0.25, 0.75, 0.75], [True, True, False])
    0.75
    >>> mce([0.25, 0.75, 0.75], [True, True, False], min_count=2)
    0.25
    """
    table = reliability(confidence, correct, bins, closed=closed)
    kept = table.count >= check_integer("min_count", min_count)
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


def average_ce(confidence: Values, correct: Values, bins: Bins = 15, *, closed: Closed = "left") -> float:
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


def classwise_ece(probs: Values, y: Values, bins: Bins = 15, *, closed: Closed = "left") -> float:
    """Class-wise (static) calibration error: the ECE of each class's probability, averaged over classes.

    >>> classwise_ece([[0.75, 0.25], [0.25, 0.75]], [0, 1])
    0.25
    """
    errors = [ece(column, is_class, bins, closed=closed) for column, is_class in _one_vs_rest(probs, y)]
    return sum(errors) / len(errors)


def paper_preset(confidence: Values, correct: Values) -> dict[str, float]:
    """The convention of the VCC-INFUSE tables: 10 bins (lo, hi], the average calibration error as "ace".

    >>> paper_preset([0.25, 0.75, 0.75, 0.75], [True, True, False, True])
    {'ece': 0.25, 'mce': 0.75, 'ace': 0.4166666666666667}
    """
    return {
        "ece": ece(confidence, correct, 10, closed="right"),
        "mce": mce(confidence, correct, 10, closed="right"),
        "ace": average_ce(confidence, correct, 10, closed="right"),
    }


def _weighted(table: Reliability) -> float:
    return float((table.gaps * table.count).nansum() / table.count.sum())


def _one_vs_rest(probs: Values, y: Values) -> Iterator[tuple[Tensor, Tensor]]:
    columns, truth = scores_and_truth("probs", probs, y, probs=True)
    return ((column, truth == number) for number, column in enumerate(columns.unbind(1)))

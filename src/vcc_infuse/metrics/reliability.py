"""The reliability table: the accuracy of predictions of similar confidence. Calibration errors reduce it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..validation import check_choice
from ._inputs import Values, correctness, numbers, positive, unit

Bins = int | Tensor | np.ndarray | Sequence[float]
Edges = Literal["width", "mass"]
Closed = Literal["left", "right"]


class Reliability(NamedTuple):
    """One row per bin, in float64: examples, accuracy and mean confidence (NaN if empty); one more edge than bins."""

    count: Tensor  # type: ignore[assignment]  # hides tuple.count, which is not needed here
    accuracy: Tensor
    confidence: Tensor
    edges: Tensor

    @property
    def gaps(self) -> Tensor:
        """|accuracy − confidence| of each bin, NaN if empty."""
        return (self.accuracy - self.confidence).abs()


def reliability(
    confidence: Values, correct: Values, bins: Bins = 15, edges: Edges = "width", closed: Closed = "left"
) -> Reliability:
    """Group predictions into bins of equal width (or between the edges given as `bins`), or of equal mass.

    `closed="left"` means bins [lo, hi), except that the last bin includes 1.0. `closed="right"` means bins (lo, hi],
    except that the first bin includes 0.0.

    >>> table = reliability([0.25, 0.5, 1.0], [False, True, True], bins=2)
    >>> table.count.tolist(), table.accuracy.tolist(), table.confidence.tolist()
    ([1.0, 2.0], [0.0, 1.0], [0.25, 0.75])
    """
    confidence = unit("confidence", confidence)
    right = correctness(confidence, correct)
    check_choice("closed", closed, get_args(Closed))
    if check_choice("edges", edges, get_args(Edges)) == "mass":
        return _equal_mass(confidence, right, bins)
    bounds = _bounds(bins)
    if confidence.min() < bounds[0] or confidence.max() > bounds[-1]:
        raise UserError(f"bins must cover every confidence, got edges [{bounds[0]:.6g}, {bounds[-1]:.6g}]; widen them")
    index = torch.searchsorted(bounds[1:-1].contiguous(), confidence, right=closed == "left")
    return _table(index, confidence, right, bounds)


def _bounds(bins: Bins) -> Tensor:
    if isinstance(bins, int | np.integer):
        positive("bins", bins)
        # k/n is the double nearest to the decimal edge; a linspace is not always.
        return torch.arange(bins + 1, dtype=torch.float64) / bins
    bounds = numbers("bins", bins)
    if len(bounds) < 2 or (bounds.diff() <= 0).any():
        raise UserError("bins as edges must be two or more increasing numbers, such as [0, 0.5, 1]")
    return bounds


def _equal_mass(confidence: Tensor, right: Tensor, bins: Bins) -> Reliability:
    if not isinstance(bins, int | np.integer):
        raise UserError("bins must be an integer with edges='mass', which chooses the edges by itself")
    confidence, order = confidence.sort()
    # Equal confidences may straddle a boundary. Each takes its group's accuracy, the mean over all their orders;
    # otherwise the result would depend on the order of the input.
    _, group, size = torch.unique_consecutive(confidence, return_inverse=True, return_counts=True)
    right = (torch.zeros_like(size, dtype=torch.float64).index_add_(0, group, right[order]) / size)[group]
    parts = [len(part) for part in confidence.tensor_split(positive("bins", bins))]
    sizes = torch.tensor(parts)
    starts = (sizes.cumsum(0) - sizes).clamp(max=len(confidence) - 1)
    bounds = torch.cat([confidence[starts], confidence[-1:]])
    return _table(torch.arange(len(parts)).repeat_interleave(sizes), confidence, right, bounds)


def _table(index: Tensor, confidence: Tensor, right: Tensor, bounds: Tensor) -> Reliability:
    count, correct, total = torch.zeros(3, len(bounds) - 1, dtype=torch.float64).unbind()
    count.index_add_(0, index, torch.ones_like(right))
    correct.index_add_(0, index, right)
    total.index_add_(0, index, confidence)
    return Reliability(count, correct / count, total / count, bounds)

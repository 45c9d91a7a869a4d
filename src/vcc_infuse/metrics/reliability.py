"""The reliability table: how often predictions of like confidence are right. Calibration errors reduce it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ._inputs import Values, judged, numbers, positive, unit

Bins = int | Tensor | np.ndarray | Sequence[float]


class Reliability(NamedTuple):
    """A row a bin, in float64: examples, accuracy and mean confidence (NaN if empty); bounds, one more."""

    count: Tensor  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    accuracy: Tensor
    confidence: Tensor
    edges: Tensor

    @property
    def gaps(self) -> Tensor:
        """|accuracy − confidence| of each bin, NaN if empty."""
        return (self.accuracy - self.confidence).abs()


def reliability(
    confidence: Values, correct: Values, bins: Bins = 15, edges: str = "width", closed: str = "left"
) -> Reliability:
    """Sort predictions into bins of equal width (or between the edges given as `bins`), or of equal mass.

    `closed="left"` puts an edge into the bin above, [lo, hi), save the last one: 1.0 is in the last bin.
    `closed="right"` puts it into the bin below, (lo, hi], save the first one.
    """
    confidence = unit("confidence", confidence)
    right = judged(confidence, correct)
    if closed not in ("left", "right"):
        raise UserError(f"closed={closed!r} is not known; choose 'left' or 'right'")
    if edges == "mass":
        return _equal_mass(confidence, right, bins)
    if edges != "width":
        raise UserError(f"edges={edges!r} is not known; choose 'width' or 'mass'")
    bounds = _bounds(bins)
    if confidence.min() < bounds[0] or confidence.max() > bounds[-1]:
        raise UserError(f"bins span [{bounds[0]:.6g}, {bounds[-1]:.6g}] and miss a confidence; widen them")
    index = torch.searchsorted(bounds[1:-1].contiguous(), confidence, right=closed == "left")
    return _table(index, confidence, right, bounds)


def _bounds(bins: Bins) -> Tensor:
    if isinstance(bins, int | np.integer):
        positive("bins", bins)
        # k/n is the double nearest to the decimal edge; a linspace is not always.
        return torch.arange(bins + 1, dtype=torch.float64) / bins
    bounds = numbers("bins", bins)
    if len(bounds) < 2 or (bounds.diff() <= 0).any():
        raise UserError("bins as edges must be two or more rising numbers, e.g. [0, 0.5, 1]")
    return bounds


def _equal_mass(confidence: Tensor, right: Tensor, bins: Bins) -> Reliability:
    if not isinstance(bins, int | np.integer):
        raise UserError("bins must be a number with edges='mass': equal mass decides the edges")
    confidence, order = confidence.sort()
    # Equals may straddle a boundary. Each takes its group's accuracy, the mean over all orders among them:
    # otherwise the result would depend on the order of the input.
    _, group, size = confidence.unique_consecutive(return_inverse=True, return_counts=True)
    right = (torch.zeros_like(size, dtype=torch.float64).index_add_(0, group, right[order]) / size)[group]
    parts = [len(part) for part in confidence.tensor_split(positive("bins", bins))]
    sizes = torch.tensor(parts)
    starts = (sizes.cumsum(0) - sizes).clamp(max=len(confidence) - 1)
    bounds = torch.cat([confidence[starts], confidence[-1:]])
    return _table(torch.arange(len(parts)).repeat_interleave(sizes), confidence, right, bounds)


def _table(index: Tensor, confidence: Tensor, right: Tensor, bounds: Tensor) -> Reliability:
    count, hits, trust = torch.zeros(3, len(bounds) - 1, dtype=torch.float64).unbind()
    count.index_add_(0, index, torch.ones_like(right))
    hits.index_add_(0, index, right)
    trust.index_add_(0, index, confidence)
    return Reliability(count, hits / count, trust / count, bounds)

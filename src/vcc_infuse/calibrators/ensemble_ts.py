"""The smallest value of a quadratic over three weights that are not negative and sum to one, in closed form.

The minimum lies inside the triangle, on one of its edges or in a corner: each candidate is a formula, the best wins.
"""

from __future__ import annotations

from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..types import Task
from ..utils.numerics import to_float64
from .temperature import TemperatureScaling

EDGES = ((0, 1), (0, 2), (1, 2))


def edge_minimum(matrix: Tensor, vector: Tensor, a: int, b: int) -> Tensor:
    """The best point between corners `a` and `b`, both included."""
    slope = vector[a] - vector[b] - matrix[a, b] + matrix[b, b]
    curvature = matrix[a, a] - 2 * matrix[a, b] + matrix[b, b]
    share = torch.where(curvature > 0, slope / curvature, (slope >= 0).to(slope)).clamp(0, 1)
    weights = torch.zeros_like(vector)
    weights[a], weights[b] = share, 1 - share
    return weights


def inner_minimum(matrix: Tensor, vector: Tensor) -> Tensor:
    """Where the gradient has no component along the plane of weights that sum to one; NaN if that is not one point."""
    along = matrix.new_tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    corner = matrix.new_tensor([0.0, 0.0, 1.0])
    (p, q), (_, r) = along.T @ matrix @ along
    s, t = along.T @ (vector - matrix @ corner)
    first, second = (r * s - q * t) / (p * r - q * q), (p * t - q * s) / (p * r - q * q)
    return torch.stack([first, second, 1 - first - second])


def simplex_minimum(matrix: Tensor, vector: Tensor) -> Tensor:
    """Minimise w·Mw − 2 v·w for a positive semi-definite 3×3 `matrix`; of equals the earlier weight is preferred."""
    candidates = torch.stack([edge_minimum(matrix, vector, a, b) for a, b in EDGES] + [inner_minimum(matrix, vector)])
    values = ((candidates @ matrix) * candidates).sum(1) - 2 * candidates @ vector
    allowed = (candidates >= 0).all(1) & values.isfinite()
    return candidates[torch.where(allowed, values, torch.inf).argmin()]


MOST_UNIFORM = 0.999  # some of the network's own word must remain, or there would be no label


class EnsembleTS(TemperatureScaling):
    """Fits the temperature first, then three weights that sum to one.

    Args:
        labels: "held_out" keeps labeled images out of training; "labeled_strong" takes strongly augmented labeled
            images, "weak_strong" the weak view's pseudo label for the strong view.
        share: part of the labeled images held out, at least one of each class.
        every: steps between two fits; a thousandth of the run, but 10 or more, if not given.
        queue: examples that a fit looks at, the latest.
    """

    weights: Tensor

    def __init__(
        self,
        labels: Literal["held_out", "labeled_strong", "weak_strong"] = "held_out",
        share: float = 0.1,
        every: int | None = None,
        queue: int = 1024,
    ) -> None:
        super().__init__(labels, share, every, queue)
        self.register_buffer("weights", torch.tensor([1.0, 0.0, 0.0]))

    def setup(self, model: nn.Module, task: Task) -> None:
        """Make the queue, and start from the softmax."""
        super().setup(model, task)
        self.weights.copy_(torch.tensor([1.0, 0.0, 0.0]))

    @torch.no_grad()
    def probs(self, logits: Tensor) -> Tensor:
        """Calibrated class probabilities."""
        return (self.weights[:, None, None] * self._parts(logits)).sum(0)

    @torch.no_grad()
    def fit(self, logits: Tensor, labels: Tensor) -> Self:
        """Take the temperature of the best likelihood, then the weights of the best Brier score."""
        super().fit(logits, labels)
        parts = self._parts(logits).flatten(1)
        truth = F.one_hot(labels, logits.shape[1]).flatten().to(parts)
        weights = simplex_minimum(parts @ parts.T / len(labels), parts @ truth / len(labels))
        limit = weights.new_tensor([1 - MOST_UNIFORM, 0, MOST_UNIFORM])
        self.weights.copy_(torch.where(weights[2] > MOST_UNIFORM, limit, weights))
        return self

    def _parts(self, logits: Tensor) -> Tensor:
        """The tempered, the plain and the uniform probabilities."""
        plain = to_float64(logits.float()).softmax(1)
        return torch.stack([super().probs(logits), plain, torch.full_like(plain, 1 / plain.shape[1])])

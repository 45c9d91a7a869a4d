"""Ensemble temperature scaling (Zhang et al., ICML 2020): mix tempered, plain and uniform probabilities.

The mixture keeps the order of the classes. Its weights minimize the Brier score, a quadratic with a closed form.
"""

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..utils.device import to_float64
from .temperature import TemperatureScaling

MAX_UNIFORM_WEIGHT = 0.999  # with uniform probabilities alone there would be no label
EDGES = ((0, 1), (0, 2), (1, 2))


class EnsembleTS(TemperatureScaling):
    """Temperature scaling that fits three weights which sum to one as well; the options are the same.

    References:
        Zhang et al., Mix-n-Match: Ensemble and Compositional Methods for Uncertainty Calibration, ICML 2020.
    """

    def reset(self) -> None:
        """Start from the softmax."""
        super().reset()
        self.weights = nn.Buffer(torch.tensor([1.0, 0.0, 0.0]))

    @torch.no_grad()
    def probs(self, logits: Tensor) -> Tensor:
        """Calibrated class probabilities."""
        return (self.weights[:, None, None] * self._components(logits)).sum(0)

    @torch.no_grad()
    def fit(self, logits: Tensor, labels: Tensor) -> Self:
        """Take the temperature with the best likelihood, then the weights with the best Brier score."""
        super().fit(logits, labels)
        components = self._components(logits).flatten(1)
        truth = F.one_hot(labels, logits.shape[1]).flatten().to(components)
        weights = simplex_minimum(components @ components.T / len(labels), components @ truth / len(labels))
        limit = weights.new_tensor([1 - MAX_UNIFORM_WEIGHT, 0, MAX_UNIFORM_WEIGHT])
        self.weights.copy_(torch.where(weights[2] > MAX_UNIFORM_WEIGHT, limit, weights))
        return self

    def _components(self, logits: Tensor) -> Tensor:
        """The tempered, the plain and the uniform probabilities."""
        plain = to_float64(logits.float()).softmax(1)
        return torch.stack([super().probs(logits), plain, torch.full_like(plain, 1 / plain.shape[1])])


def simplex_minimum(matrix: Tensor, vector: Tensor) -> Tensor:
    """Minimize w·Mw − 2 v·w over weights w ≥ 0 with sum 1, for a positive semi-definite 3×3 `matrix`.

    The minimum lies inside the triangle, on an edge or in a corner. Each candidate has a formula. Of equal candidates
    the one that favors earlier weights wins.
    """
    candidates = torch.stack([_edge_minimum(matrix, vector, a, b) for a, b in EDGES] + [_inner_minimum(matrix, vector)])
    values = ((candidates @ matrix) * candidates).sum(1) - 2 * candidates @ vector
    allowed = (candidates >= 0).all(1) & values.isfinite()
    return candidates[torch.where(allowed, values, torch.inf).argmin()]


def _edge_minimum(matrix: Tensor, vector: Tensor, a: int, b: int) -> Tensor:
    """The best point between corners `a` and `b`, both included."""
    slope = vector[a] - vector[b] - matrix[a, b] + matrix[b, b]
    curvature = matrix[a, a] - 2 * matrix[a, b] + matrix[b, b]
    weight = torch.where(curvature > 0, slope / curvature, (slope >= 0).to(slope)).clamp(0, 1)
    weights = torch.zeros_like(vector)
    weights[a] = weight
    weights[b] = 1 - weight
    return weights


def _inner_minimum(matrix: Tensor, vector: Tensor) -> Tensor:
    """The stationary point in the plane of weights that sum to one; NaN if it is not unique."""
    along = matrix.new_tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    corner = matrix.new_tensor([0.0, 0.0, 1.0])
    (p, q), (_, r) = along.T @ matrix @ along
    s, t = along.T @ (vector - matrix @ corner)
    first = (r * s - q * t) / (p * r - q * q)
    second = (p * t - q * s) / (p * r - q * q)
    return torch.stack([first, second, 1 - first - second])

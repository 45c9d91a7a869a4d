"""The smallest value of a quadratic over three weights that are not negative and sum to one, in closed form.

The minimum lies inside the triangle, on one of its edges or in a corner: each candidate is a formula, the best wins.
"""

from __future__ import annotations

import torch
from torch import Tensor

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

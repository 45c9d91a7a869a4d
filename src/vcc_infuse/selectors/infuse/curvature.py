"""Curvature of the head: the Kronecker-factored Gauss-Newton matrix in place of the identity.

The Gauss-Newton matrix of the cross entropy is E[(diag p − ppᵀ) ⊗ h̃h̃ᵀ]; K-FAC (Martens & Grosse, ICML 2015) takes the
product of the two means, whose damped inverse costs C³ + D³ once per refresh.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..head_gradients import augmented


class GaussNewton:
    """Sums of the two factors over batches of (probabilities, features, weights)."""

    def __init__(self, batches: Iterable[tuple[Tensor, Tensor, Tensor]]) -> None:
        self.count = 0.0
        self.inputs: Tensor | float = 0.0
        self.outputs: Tensor | float = 0.0
        for probs, features, weights in batches:
            rows, p, w = augmented(features).double(), probs.double(), weights.double()
            self.inputs = self.inputs + (rows * w[:, None]).T @ rows
            self.outputs = self.outputs + torch.diag(w @ p) - (p * w[:, None]).T @ p
            self.count += float(w.sum())

    def solve(self, direction: Tensor, damping: float) -> Tensor:
        """(S + λ_S I)⁻¹ · direction · (A + λ_A I)⁻¹; each λ is `damping` times the factor's mean eigenvalue."""
        if self.count == 0:
            return direction
        left, right = (self._damped(factor, damping) for factor in (self.outputs, self.inputs))
        once = torch.linalg.solve(left, direction.double())
        solved: Tensor = torch.linalg.solve(right, once.T)
        return solved.T.to(direction.dtype)

    def _damped(self, total: Tensor | float, damping: float) -> Tensor:
        factor = torch.as_tensor(total) / self.count
        size = len(factor)
        return factor + damping * factor.trace() / size * torch.eye(size, dtype=factor.dtype, device=factor.device)

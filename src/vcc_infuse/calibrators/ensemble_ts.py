"""Ensemble temperature scaling (Zhang et al., ICML 2020): mix tempered, plain and uniform probabilities.

The mixture keeps the order of the classes. Its weights minimise the Brier score, a quadratic with a closed form.
"""

from __future__ import annotations

from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.precision import wide
from ..types import Task
from .simplex import simplex_minimum
from .temperature import TemperatureScaling

MOST_UNIFORM = 0.999  # some of the network's own word must remain, or there would be no label


class EnsembleTS(TemperatureScaling):
    """Fits the temperature first, then three weights that sum to one.

    Args:
        labels: "held_out" keeps labelled images out of training; "labelled_strong" takes strongly augmented labelled
            images, "weak_strong" the weak view's pseudo label for the strong view.
        share: part of the labelled images held out, at least one of each class.
        every: steps between two fits; a thousandth of the run, but 10 or more, if not given.
        queue: examples that a fit looks at, the latest.
    """

    weights: Tensor

    def __init__(
        self,
        labels: Literal["held_out", "labelled_strong", "weak_strong"] = "held_out",
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
        plain = wide(logits.float()).softmax(1)
        return torch.stack([super().probs(logits), plain, torch.full_like(plain, 1 / plain.shape[1])])

"""The moving average of a model's weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

Tensors = tuple[Tensor, ...] | list[Tensor]


def decay_at(step: int, decay: float) -> float:
    """The decay after `step` updates: an average never reaches back further than about a tenth of the run so far.

    Without it, 0.999 would still remember the random initial weights after a thousand steps.
    """
    return min(decay, (1 + step) / (10 + step))


class EMA(AveragedModel):
    """Weights averaged over steps, BatchNorm statistics taken from the live model, always in eval mode."""

    def __init__(self, model: nn.Module, decay: float = 0.999) -> None:
        self.decay = decay
        self.steps = 0
        super().__init__(model, multi_avg_fn=self._average)
        self.requires_grad_(False)
        self.eval()

    def _average(self, averages: Tensors, values: Tensors, count: Tensor | int) -> None:
        with torch.no_grad():
            torch._foreach_lerp_(averages, values, 1 - decay_at(self.steps, self.decay))

    def update(self, model: nn.Module, step: int) -> None:
        """Add the weights after optimizer step `step`."""
        self.steps = step
        self.update_parameters(model)

    def train(self, mode: bool = True) -> EMA:
        """Stay in eval mode: a teacher that normalized by its batch would leak between examples."""
        return super().train(False)

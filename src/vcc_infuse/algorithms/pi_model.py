"""Pi-Model (Laine & Aila, ICLR 2017): two random views of one image should get the same prediction."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..models.batchnorm import frozen_statistics
from ..types import Losses, Step
from .base import Algorithm, checked, labelled_loss, ramp


class PiModel(Algorithm):
    """Squared difference between the predictions for two weak views, of which the first is a fixed target.

    Args:
        weight: factor of the unlabelled loss.
        ramp_share: share of the run over which that factor rises from zero.
    """

    views = ("weak", "weak_2")
    ratio = 1

    def __init__(self, weight: float = 10.0, ramp_share: float = 0.4) -> None:
        super().__init__()
        self.weight = checked("weight", weight, 0, float("inf"))
        self.ramp_share = checked("ramp_share", ramp_share, 0, 1)

    @torch.no_grad()
    def target(self, step: Step) -> Tensor:
        """Probabilities of the first view, from the network itself."""
        with frozen_statistics(step.model):
            return step.model(step.batch.views["weak"]).logits.float().softmax(1)

    def losses(self, step: Step) -> Iterator[Losses]:
        """Labelled cross entropy and consistency; only labelled images move the statistics."""
        batch = step.batch
        (labelled,) = step.forward(batch.x)
        target = self.target(step)
        with frozen_statistics(step.model):
            (outputs,) = step.forward(batch.views["weak_2"])
        weight = self.weight * ramp(step.progress, self.ramp_share)
        yield Losses(
            labelled=labelled_loss(labelled.logits, batch.y),
            unlabelled=weight * squared_error(outputs.logits, target, batch.weights),
        )


def squared_error(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean, over examples and classes, of (probability − target)²."""
    return (weights * (logits.float().softmax(1) - targets).square().mean(1)).mean()

"""Pi-Model (Laine & Aila, ICLR 2017): two random views of an image should get the same prediction."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..models.classifier import frozen_statistics
from ..types import Losses, Outputs, Step
from ..utils.params import number
from .base import Algorithm
from .ops import labeled_loss, ramp


@dataclass(kw_only=True, eq=False, repr=False)
class PiModel(Algorithm):
    """Squared difference between the predictions for two weak views; the first is a fixed target.

    Args:
        weight: factor of the unlabeled loss.
        rampup_fraction: fraction of the run over which that factor rises from zero.

    References:
        Laine and Aila, Temporal Ensembling for Semi-Supervised Learning, ICLR 2017.
    """

    views = ("weak", "weak_2")
    unlabeled_ratio = 1

    weight: float = number(10.0)
    rampup_fraction: float = number(0.4, 0, 1)

    @torch.no_grad()
    def target(self, step: Step) -> Tensor:
        """Probabilities of the model for the first view."""
        with frozen_statistics(step.model):
            outputs: Outputs = step.model(step.batch.views["weak"])
        return outputs.logits.float().softmax(1)

    def losses(self, step: Step) -> Iterator[Losses]:
        """Labeled cross entropy and consistency; only labeled images update the BatchNorm statistics."""
        batch = step.batch
        (labeled,) = step.forward(batch.x)
        target = self.target(step)
        with frozen_statistics(step.model):
            (outputs,) = step.forward(batch.views["weak_2"])
        weight = self.weight * ramp(step.progress, self.rampup_fraction)
        yield Losses(
            labeled=labeled_loss(labeled.logits, batch.y),
            unlabeled=weight * squared_error(outputs.logits, target, batch.weights),
        )


def squared_error(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean, over examples and classes, of (probability − target)²."""
    return (weights * (logits.float().softmax(1) - targets).square().mean(1)).mean()

"""VAT (Miyato et al., TPAMI 2018): predictions should not move under the small change that moves them most."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.classifier import frozen_statistics
from ..types import Losses, Step
from ..validation import check_range
from .base import Algorithm
from .ops import labeled_loss, ramp


class VAT(Algorithm):
    """Virtual adversarial training with entropy minimization.

    Args:
        weight: factor of the adversarial loss.
        rampup_fraction: share of the run over which that factor rises from zero.
        radius: length of the adversarial change, in normalized input.
        probe: length of the trial change by which its direction is found. The paper's 1e-6 drowns in float32's
            rounding: its directions have nearly nothing in common with those of float64, those of 0.01 agree.
        power: trials; each turns the direction towards the worst.
        entropy: factor of the prediction's entropy.
    """

    views = ("weak",)
    unlabeled_ratio = 1

    def __init__(
        self,
        weight: float = 1.0,
        rampup_fraction: float = 0.4,
        radius: float = 6.0,
        probe: float = 0.01,
        power: int = 1,
        entropy: float = 0.06,
    ) -> None:
        super().__init__()
        self.weight = check_range("weight", weight)
        self.rampup_fraction = check_range("rampup_fraction", rampup_fraction, 0, 1)
        self.radius = check_range("radius", radius)
        self.probe = check_range("probe", probe, 1e-12)
        self.power = int(check_range("power", power, 1, 100))
        self.entropy = check_range("entropy", entropy)

    def losses(self, step: Step) -> Iterator[Losses]:
        """Labeled cross entropy, adversarial divergence, entropy; only labeled images move the statistics."""
        batch, images = step.batch, step.batch.views["weak"]
        (labeled,) = step.forward(batch.x)
        # The trial change is far below bf16's resolution.
        with torch.autocast(images.device.type, enabled=False), frozen_statistics(step.model):
            log_probs = log_softmax(step.model, images)
            target = log_probs.detach()
            change = self.worst_change(step.model, images, target)
            moved = divergence(target, log_softmax(step.model, images + change))
        entropy = -(log_probs.exp() * log_probs).sum(1)
        yield Losses(
            labeled=labeled_loss(labeled.logits, batch.y),
            adversarial=self.weight * ramp(step.progress, self.rampup_fraction) * (batch.weights * moved).mean(),
            entropy=self.entropy * (batch.weights * entropy).mean(),
        )

    def worst_change(self, model: nn.Module, images: Tensor, target: Tensor) -> Tensor:
        """Power iteration towards the direction of steepest divergence; parameters get no gradient from it."""
        direction = unit(torch.randn_like(images))
        for _ in range(self.power):
            trial = (self.probe * direction).requires_grad_()
            moved = divergence(target, log_softmax(model, images + trial)).sum()
            (gradient,) = torch.autograd.grad(moved, trial)
            direction = unit(gradient)
        return self.radius * direction


def log_softmax(model: nn.Module, images: Tensor) -> Tensor:
    """Log probabilities in float32."""
    return model(images).logits.float().log_softmax(1)


def divergence(target: Tensor, log_probs: Tensor) -> Tensor:
    """KL(target ‖ prediction) of each example, both as log probabilities."""
    return F.kl_div(log_probs, target, reduction="none", log_target=True).sum(1)


def unit(vectors: Tensor) -> Tensor:
    """Each example scaled to length one; zero stays zero."""
    return vectors / (vectors.flatten(1).norm(dim=1) + 1e-16).view(-1, *[1] * (vectors.ndim - 1))

"""VAT (Miyato et al., TPAMI 2018): predictions should not move under the small change that moves them most."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.batchnorm import frozen_statistics
from ..types import Losses, Step
from .base import Algorithm, checked, labelled_loss, ramp


class VAT(Algorithm):
    """Virtual adversarial training with entropy minimisation.

    Args:
        weight: factor of the adversarial loss.
        ramp_share: share of the run over which that factor rises from zero.
        radius: length of the adversarial change, in normalised input.
        probe: length of the trial change by which its direction is found. The paper's 1e-6 drowns in float32's
            rounding: its directions have nearly nothing in common with those of float64, those of 0.01 agree.
        power: trials; each turns the direction towards the worst.
        entropy: factor of the prediction's entropy.
    """

    views = ("weak",)
    ratio = 1

    def __init__(
        self,
        weight: float = 1.0,
        ramp_share: float = 0.4,
        radius: float = 6.0,
        probe: float = 0.01,
        power: int = 1,
        entropy: float = 0.06,
    ) -> None:
        super().__init__()
        self.weight = checked("weight", weight, 0, float("inf"))
        self.ramp_share = checked("ramp_share", ramp_share, 0, 1)
        self.radius = checked("radius", radius, 0, float("inf"))
        self.probe = checked("probe", probe, 1e-12, float("inf"))
        self.power = int(checked("power", power, 1, 100))
        self.entropy = checked("entropy", entropy, 0, float("inf"))

    def losses(self, step: Step) -> Iterator[Losses]:
        """Labelled cross entropy, adversarial divergence, entropy; only labelled images move the statistics."""
        batch, images = step.batch, step.batch.views["weak"]
        (labelled,) = step.forward(batch.x)
        # The trial change is far below bf16's resolution.
        with torch.autocast(images.device.type, enabled=False), frozen_statistics(step.model):
            log_probs = log_softmax(step.model, images)
            target = log_probs.detach()
            change = self.worst_change(step.model, images, target)
            moved = divergence(target, log_softmax(step.model, images + change))
        entropy = -(log_probs.exp() * log_probs).sum(1)
        yield Losses(
            labelled=labelled_loss(labelled.logits, batch.y),
            adversarial=self.weight * ramp(step.progress, self.ramp_share) * (batch.weights * moved).mean(),
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

"""VAT (Miyato et al., TPAMI 2018): predictions should be stable under the perturbation that changes them most."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.classifier import frozen_statistics
from ..types import Losses, Outputs, Step
from ..utils.params import integer, number
from .base import Algorithm
from .ops import labeled_loss, ramp


@dataclass(kw_only=True, eq=False, repr=False)
class VAT(Algorithm):
    """Virtual adversarial training with entropy minimization.

    Args:
        weight: factor of the adversarial loss.
        rampup_fraction: fraction of the run over which that factor rises from zero.
        epsilon: norm of the adversarial perturbation, in normalized input.
        xi: norm of the perturbation used to find the direction. The paper's 1e-6 is lost in float32 rounding: its
            directions are almost unrelated to those computed in float64, whereas those of 0.01 agree.
        n_power_iterations: refinements of the direction.
        entropy: factor of the entropy of the predictions.

    References:
        Miyato et al., Virtual Adversarial Training: A Regularization Method for Supervised and Semi-Supervised
        Learning, TPAMI 2018.
    """

    views = ("weak",)
    unlabeled_ratio = 1

    weight: float = number(1.0)
    rampup_fraction: float = number(0.4, 0, 1)
    epsilon: float = number(6.0)
    xi: float = number(0.01, open_low=True)
    n_power_iterations: int = integer(1)
    entropy: float = number(0.06)

    def losses(self, step: Step) -> Iterator[Losses]:
        """Labeled loss, adversarial divergence, entropy; only labeled images update the BatchNorm statistics."""
        batch = step.batch
        images = batch.views["weak"]
        (labeled,) = step.forward(batch.x)
        # A perturbation of norm `xi` is far below the resolution of bf16.
        with torch.autocast(images.device.type, enabled=False), frozen_statistics(step.model):
            log_probs = log_softmax(step.model, images)
            target = log_probs.detach()
            perturbation = self.adversarial_perturbation(step.model, images, target)
            distance = divergence(target, log_softmax(step.model, images + perturbation))
        entropy = -(log_probs.exp() * log_probs).sum(1)
        yield Losses(
            labeled=labeled_loss(labeled.logits, batch.y),
            adversarial=self.weight * ramp(step.progress, self.rampup_fraction) * (batch.weights * distance).mean(),
            entropy=self.entropy * (batch.weights * entropy).mean(),
        )

    def adversarial_perturbation(self, model: nn.Module, images: Tensor, target: Tensor) -> Tensor:
        """Power iteration toward the direction of largest divergence; parameters get no gradient from it."""
        direction = normalized(torch.randn_like(images))
        for _ in range(self.n_power_iterations):
            trial = (self.xi * direction).requires_grad_()
            distance = divergence(target, log_softmax(model, images + trial)).sum()
            (gradient,) = torch.autograd.grad(distance, trial)
            direction = normalized(gradient)
        return self.epsilon * direction


def log_softmax(model: nn.Module, images: Tensor) -> Tensor:
    """Log probabilities in float32."""
    outputs: Outputs = model(images)
    return outputs.logits.float().log_softmax(1)


def divergence(target: Tensor, log_probs: Tensor) -> Tensor:
    """KL(target ‖ prediction) per example, both given as log probabilities."""
    return F.kl_div(log_probs, target, reduction="none", log_target=True).sum(1)


def normalized(vectors: Tensor) -> Tensor:
    """Each example divided by its norm; zero stays zero."""
    norms: Tensor = vectors.flatten(1).norm(dim=1)
    return vectors / (norms + 1e-16).view(-1, *[1] * (vectors.ndim - 1))

"""MixMatch (Berthelot et al., NeurIPS 2019): sharpened guesses from several views, and MixUp of all examples."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..models.classifier import frozen_statistics
from ..types import Losses, PseudoLabels, Step
from ..utils.params import number
from .base import Algorithm
from .ops import interleaved_forward, mixup, ramp, sharpen
from .pi_model import squared_error


@dataclass(kw_only=True, eq=False, repr=False)
class MixMatch(Algorithm):
    """Average and sharpen the predictions for two weak views, mix labeled and unlabeled, compare by squared error.

    A mixed example carries the core-set weight of its dominant half.

    Args:
        weight: factor of the unlabeled loss (the paper: 75 for CIFAR-10, 250 for SVHN, 50 for STL-10).
        rampup_fraction: fraction of the run over which that factor rises from zero (the paper: 16k steps of 2^20).
        temperature: of the sharpening.
        alpha: of MixUp's Beta distribution.

    References:
        Berthelot et al., MixMatch: A Holistic Approach to Semi-Supervised Learning, NeurIPS 2019.
    """

    views = ("weak", "weak_2")
    unlabeled_ratio = 1

    weight: float = number(75.0)
    rampup_fraction: float = number(1 / 64, 0, 1)
    temperature: float = number(0.5, 0.01, 100)
    alpha: float = number(0.75)

    @torch.no_grad()
    def guess(self, step: Step) -> Tensor:
        """Sharpened mean prediction for the two views."""
        views = step.batch.views
        with frozen_statistics(step.model):
            probs = [step.model(views[name]).logits.float().softmax(1) for name in self.views]
        return sharpen((probs[0] + probs[1]) / 2, self.temperature)

    def losses(self, step: Step) -> Iterator[Losses]:
        """Cross entropy of the mixed labeled part, squared error of the mixed unlabeled part."""
        batch = step.batch
        guess = self.guess(step)
        labels = F.one_hot(batch.y, guess.shape[1]).to(guess.dtype)
        inputs = torch.cat([batch.x, *(batch.views[name] for name in self.views)])
        inputs, targets = mixup(inputs, torch.cat([labels, guess, guess]), self.alpha)
        size = len(batch.x)
        logits = interleaved_forward(step, inputs, size)
        weight = self.weight * ramp(step.progress, self.rampup_fraction)
        yield Losses(
            PseudoLabels(guess, torch.ones_like(guess[:, 0])),
            labeled=F.cross_entropy(logits[:size].float(), targets[:size]),
            unlabeled=weight * squared_error(logits[size:], targets[size:], batch.weights.repeat(2)),
        )

"""Dash (Xu et al., ICML 2021): keep examples with a loss below a threshold that shrinks during training."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..types import Calibrated, Losses, PseudoLabels, Step, Task
from ..utils.params import integer, number
from .base import PseudoLabeling
from .ops import sharpen

PAPER_STEPS = 2**20  # length of the published run
PAPER_PERIOD = 10 * 1024  # its steps between two reductions; runs of another length scale the period


@dataclass(kw_only=True, eq=False, repr=False)
class Dash(PseudoLabeling):
    """A supervised warm-up, then a threshold that starts at the labeled loss measured at its end.

    Args:
        warmup_steps: length of the supervised warm-up, capped by `warmup_fraction`.
        warmup_fraction: the warm-up is at most this fraction of the run.
        scale: the threshold starts at this multiple of the labeled loss.
        shrink: factor by which the threshold is divided, about a hundred times per run (every 10240 of 2^20 steps).
        min_threshold: lower bound of the threshold; once it is reached, targets are hard instead of sharpened.
        temperature: of the sharpening.

    References:
        Xu et al., Dash: Semi-Supervised Learning with Dynamic Thresholding, ICML 2021.
    """

    warmup_steps: int = integer(2048)
    warmup_fraction: float = number(0.05, 0, 1)
    scale: float = number(1.0001)
    shrink: float = number(1.27, 1)
    min_threshold: float = number(0.05)
    temperature: float = number(0.5, 0.001)

    def setup(self, model: nn.Module, task: Task) -> None:
        """Sum and count of the labeled losses over the last pass of the warm-up."""
        self.loss_sum = nn.Buffer(torch.zeros(()))
        self.loss_count = nn.Buffer(torch.zeros(()))
        self._initial_loss = math.log(task.classes)
        self._pass_steps = math.ceil(task.labeled / task.batch_size)

    def warmup_length(self, step: Step) -> int:
        """Steps of the warm-up, at least one because the threshold is measured there."""
        return max(1, min(self.warmup_steps, int(self.warmup_fraction * step.steps)))

    def threshold(self, step: Step) -> Tensor:
        """The largest loss to keep; before any measurement, the loss of a uniform prediction."""
        measured = (self.loss_sum / self.loss_count.clamp(min=1)).where(self.loss_count > 0, self._initial_loss)
        since = max(0, step.number - self.warmup_length(step))
        periods = since * PAPER_STEPS // (PAPER_PERIOD * step.steps)
        return (self.scale * self.shrink**-periods * measured).clamp(min=self.min_threshold)

    @torch.no_grad()
    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Sharpened targets (hard ones at `min_threshold`), kept where the loss of the weak view is small."""
        probs = calibrated.probs.float()
        threshold = self.threshold(step)
        logs = probs.clamp(min=torch.finfo(torch.float32).tiny).log()
        soft = sharpen(probs, self.temperature)
        hard = F.one_hot(calibrated.labels, probs.shape[1]).float()
        early = threshold > self.min_threshold
        loss = torch.where(early, -(soft * logs).sum(1), -calibrated.confidence.float().log())
        return PseudoLabels(soft.where(early, hard), (loss <= threshold).float())

    def losses(self, step: Step) -> Iterator[Losses]:
        """The labeled loss alone during the warm-up, the terms of `PseudoLabeling` afterwards."""
        if step.number >= self.warmup_length(step):
            yield from super().losses(step)
            return
        (labeled,) = step.forward(step.batch.x)
        losses = F.cross_entropy(labeled.logits.float(), step.batch.y, reduction="none")
        if self.training and step.number >= self.warmup_length(step) - self._pass_steps:
            everyone = step.gather(losses.detach())
            self.loss_sum.add_(everyone.sum())
            self.loss_count.add_(len(everyone))
        yield Losses(labeled=losses.mean())

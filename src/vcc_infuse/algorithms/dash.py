"""Dash (Xu et al., ICML 2021): keep examples whose loss lies below a threshold that shrinks as the model learns."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..types import Calibrated, Losses, PseudoLabels, Step, Task
from ..validation import check_integer, check_range
from .base import PseudoLabeling
from .ops import sharpen

PAPER_STEPS, PAPER_PERIOD = 2**20, 10 * 1024
"""The published run, and the steps (ten epochs) between two shrinkings; other runs keep the proportion."""


class Dash(PseudoLabeling):
    """Labels alone at first; then a threshold that starts from the labeled loss reached by then.

    Args:
        weight: factor of the unlabeled loss.
        warmup: steps with labels alone …
        warmup_share: … but never more than this share of the run (2048 steps of 2^20 are far less).
        scale: the threshold begins at this multiple of the labeled loss after the warm-up.
        shrink: the threshold is divided by this about a hundred times in a run (every 10240 steps of 2^20).
        lowest: the threshold stays here at last, where targets are hard; they are sharpened before.
        temperature: of the sharpening.
    """

    loss_sum: Tensor
    loss_count: Tensor

    def __init__(
        self,
        weight: float = 1.0,
        warmup: int = 2048,
        warmup_share: float = 0.05,
        scale: float = 1.0001,
        shrink: float = 1.27,
        lowest: float = 0.05,
        temperature: float = 0.5,
    ) -> None:
        super().__init__()
        self.weight = check_range("weight", weight)
        self.warmup = check_integer("warmup", warmup, 1)
        self.warmup_share = check_range("warmup_share", warmup_share, 0, 1)
        self.scale, self.shrink = check_range("scale", scale), check_range("shrink", shrink, 1)
        self.lowest = check_range("lowest", lowest)
        self.temperature = check_range("temperature", temperature, 1e-3)

    def setup(self, model: nn.Module, task: Task) -> None:
        """Sum and number of labeled losses in the last pass over the labeled images before the warm-up ends."""
        self.register_buffer("loss_sum", torch.zeros(()))
        self.register_buffer("loss_count", torch.zeros(()))
        self._ignorant, self._pass = math.log(task.classes), math.ceil(task.labeled / task.batch_size)

    def warmup_steps(self, step: Step) -> int:
        """Steps with labels alone, at least one: the threshold has to be measured."""
        return max(1, min(self.warmup, int(self.warmup_share * step.steps)))

    def threshold(self, step: Step) -> Tensor:
        """The largest loss to keep. Before anything is measured, that of a model that knows nothing."""
        measured = (self.loss_sum / self.loss_count.clamp(min=1)).where(self.loss_count > 0, self._ignorant)
        since = max(0, step.number - self.warmup_steps(step))
        periods = since * PAPER_STEPS // (PAPER_PERIOD * step.steps)
        return (self.scale * self.shrink**-periods * measured).clamp(min=self.lowest)

    @torch.no_grad()
    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Sharpened targets (hard ones at the lowest threshold), kept where the weak view's loss is small."""
        probs, threshold = calibrated.probs.float(), self.threshold(step)
        logs = probs.clamp(min=torch.finfo(torch.float32).tiny).log()
        soft, hard = sharpen(probs, self.temperature), F.one_hot(calibrated.labels, probs.shape[1]).float()
        early = threshold > self.lowest
        loss = torch.where(early, -(soft * logs).sum(1), -calibrated.confidence.float().log())
        return PseudoLabels(soft.where(early, hard), (loss <= threshold).float())

    def losses(self, step: Step) -> Iterator[Losses]:
        """The labeled loss alone while warming up, the template's terms afterwards."""
        if step.number >= self.warmup_steps(step):
            yield from super().losses(step)
            return
        (labeled,) = step.forward(step.batch.x)
        each = F.cross_entropy(labeled.logits.float(), step.batch.y, reduction="none")
        if self.training and step.number >= self.warmup_steps(step) - self._pass:
            self._measure(step.gather(each.detach()))
        yield Losses(labeled=each.mean())

    def _measure(self, each: Tensor) -> None:
        self.loss_sum += each.sum()
        self.loss_count += len(each)

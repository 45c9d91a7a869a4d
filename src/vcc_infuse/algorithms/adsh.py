"""Adsh (Guo & Li, ICML 2022): thresholds by which every class keeps the same fraction as the most frequent one."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..types import Calibrated, PseudoLabels, Step, Task
from ..utils.params import integer, number
from .base import PseudoLabeling
from .ops import epoch_steps, last_occurrence


@dataclass(kw_only=True, eq=False, repr=False)
class Adsh(PseudoLabeling):
    """FixMatch with one threshold per class, recomputed at regular intervals.

    The paper evaluates the averaged model on the whole pool for this. Here the latest prediction of each example
    during training is used, at no extra cost.

    Args:
        threshold: of the head class (the one with most labels), and of all classes in the first interval.
        every: steps between two updates of the thresholds; by default 1,024, or one twentieth of a shorter run.

    References:
        Guo and Li, Class-Imbalanced Semi-Supervised Learning with Adaptive Thresholding, ICML 2022.
    """

    threshold: float = number(0.95, 0, 1)
    every: int | None = integer(None)

    def setup(self, model: nn.Module, task: Task) -> None:
        """Latest confidence and label (−1: none yet) of each pool example, and the thresholds."""
        self.confidence = nn.Buffer(torch.zeros(task.pool))
        self.labels = nn.Buffer(torch.full((task.pool,), -1))
        self.thresholds = nn.Buffer(torch.full((task.classes,), self.threshold))
        self.head = nn.Buffer(task.label_counts.argmax())

    def on_coreset_change(self, ids: Tensor) -> None:
        """Forget predictions outside the core set, which would become stale."""
        self.labels.copy_(torch.full_like(self.labels, -1).index_copy(0, ids, self.labels[ids]))

    def class_thresholds(self) -> Tensor:
        """The current threshold of each class."""
        return self.thresholds

    @torch.no_grad()
    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Hard labels that reach the threshold of their class."""
        labels = calibrated.labels
        confidence = calibrated.confidence.float()
        if self.training:
            if step.number > 0 and step.number % (self.every or epoch_steps(step.steps)) == 0:
                self._update_thresholds()
            ids = step.gather(step.batch.pool_ids)
            last = last_occurrence(ids)
            self.labels[ids] = step.gather(labels)[last]
            self.confidence[ids] = step.gather(confidence)[last]
        return PseudoLabels(labels, (confidence >= self.thresholds[labels]).float())

    def _update_thresholds(self) -> None:
        """Keep the same fraction of each class as of the head class; a class that would keep none is skipped."""
        classes = len(self.thresholds)
        seen = self.labels >= 0
        labels = self.labels[seen]
        confidence = self.confidence[seen]
        counts = torch.bincount(labels, minlength=classes)
        above = ((labels == self.head) & (confidence >= self.threshold)).sum()
        kept = above * counts // counts[self.head].clamp(min=1)  # integers: a rounded fraction would lose one
        order = torch.argsort(confidence, descending=True, stable=True)
        ranked = confidence[order[torch.argsort(labels[order], stable=True)]]
        last = counts.cumsum(0) - counts + kept - 1
        lowest = ranked[last.clamp(min=0)] if len(ranked) else self.thresholds
        others = torch.arange(classes, device=self.head.device) != self.head
        self.thresholds.copy_(lowest.where((kept > 0) & others, self.thresholds))

"""Adsh (Guo & Li, ICML 2022): choose each class's threshold so that every class keeps the head class's share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..algorithms.base import PseudoLabeling
from ..algorithms.ops import epoch_steps, last_occurrence
from ..types import Calibrated, PseudoLabels, Step, Task
from ..validation import check_integer, check_range


class Adsh(PseudoLabeling):
    """FixMatch with one threshold per class, chosen anew at regular intervals.

    The paper lets the averaged model judge the whole pool for it; here each example's latest judgment counts, as
    made when training last met it, which costs nothing.

    Args:
        threshold: of the head class (the one with most labels), and of all classes in the first interval.
        weight: factor of the unlabeled loss.
        every: steps between two choices of the thresholds; if not given, 1,024 or a twentieth of a shorter run.
    """

    latest: Tensor
    labels: Tensor
    thresholds: Tensor
    head: Tensor

    def __init__(self, threshold: float = 0.95, weight: float = 1.0, every: int | None = None) -> None:
        super().__init__()
        self.threshold = check_range("threshold", threshold, 0, 1)
        self.weight = check_range("weight", weight)
        self.every = None if every is None else check_integer("every", every)

    def setup(self, model: nn.Module, task: Task) -> None:
        """Latest confidence and label (−1: none) of each pool example, and the thresholds."""
        self.register_buffer("latest", torch.zeros(task.pool))
        self.register_buffer("labels", torch.full((task.pool,), -1))
        self.register_buffer("thresholds", torch.full((task.classes,), self.threshold))
        self.register_buffer("head", task.label_counts.argmax())

    def on_coreset_change(self, ids: Tensor) -> None:
        """Forget judgments outside the core set: they would grow old."""
        self.labels.copy_(torch.full_like(self.labels, -1).index_copy(0, ids, self.labels[ids]))

    def class_thresholds(self) -> Tensor:
        """As they are now."""
        return self.thresholds

    @torch.no_grad()
    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Hard labels that reach the threshold of their class."""
        labels, confidence = calibrated.labels, calibrated.confidence.float()
        if self.training:
            if step.number > 0 and step.number % (self.every or epoch_steps(step.steps)) == 0:
                self._renew()
            self._remember(step.gather(step.batch.pool_ids), step.gather(labels), step.gather(confidence))
        return PseudoLabels(labels, (confidence >= self.thresholds[labels]).float())

    def _remember(self, ids: Tensor, labels: Tensor, confidence: Tensor) -> None:
        last = last_occurrence(ids)
        self.labels[ids], self.latest[ids] = labels[last], confidence[last]

    def _renew(self) -> None:
        """Of each class the share that the head class has above its threshold; a class that keeps none is left."""
        classes = len(self.thresholds)
        seen = self.labels >= 0
        labels, confidence = self.labels[seen], self.latest[seen]
        counts = torch.bincount(labels, minlength=classes)
        above = ((labels == self.head) & (confidence >= self.threshold)).sum()
        kept = above * counts // counts[self.head].clamp(min=1)  # whole numbers: a rounded share would lose one
        order = torch.argsort(confidence, descending=True, stable=True)
        ranked = confidence[order[torch.argsort(labels[order], stable=True)]]
        last = counts.cumsum(0) - counts + kept - 1
        found = ranked[last.clamp(min=0)] if len(ranked) else self.thresholds
        others = torch.arange(classes, device=self.head.device) != self.head
        self.thresholds.copy_(found.where((kept > 0) & others, self.thresholds))

"""FlexMatch (Zhang et al., NeurIPS 2021): a class that is learned slowly gets a lower threshold."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..types import Calibrated, PseudoLabels, Step, Task
from ..validation import check_range
from .base import PseudoLabeling
from .ops import last_occurrence

MAPPINGS = {
    "convex": lambda share: share / (2 - share),
    "linear": lambda share: share,
    "concave": lambda share: (share + 1).log() / math.log(2),
}


class FlexMatch(PseudoLabeling):
    """FixMatch whose threshold follows how many pool examples were ever confident in each class.

    Args:
        threshold: confidence that a pseudo label of the best learned class must reach.
        weight: factor of the unlabeled loss.
        mapping: how the learning status of a class, 0…1, becomes the share of the threshold it has to reach.
        thresh_warmup: while most of the pool was never confident, lower all thresholds.
    """

    selected: Tensor
    counts: Tensor

    def __init__(
        self,
        threshold: float = 0.95,
        weight: float = 1.0,
        mapping: Literal["convex", "linear", "concave"] = "convex",
        thresh_warmup: bool = True,
    ) -> None:
        super().__init__()
        self.threshold = check_range("threshold", threshold, 0, 1)
        self.weight = check_range("weight", weight)
        if mapping not in MAPPINGS:
            raise UserError(f"mapping must be one of {', '.join(MAPPINGS)}, got {mapping!r}")
        self.mapping = mapping
        self.thresh_warmup = thresh_warmup

    def setup(self, model: nn.Module, task: Task) -> None:
        """`selected`: each pool example's last confident class, −1 before; `counts`: their number, never last."""
        self.register_buffer("selected", torch.full((task.pool,), -1))
        self.register_buffer("counts", torch.zeros(task.classes + 1, dtype=torch.long))
        self.counts[-1] = task.pool

    def on_coreset_change(self, ids: Tensor) -> None:
        """Count within `ids` from now on: what a core set leaves out cannot become confident."""
        classes = self.selected[ids] % len(self.counts)
        self.counts.copy_(torch.bincount(classes, minlength=len(self.counts)))

    def thresholds(self) -> Tensor:
        """The threshold of each class."""
        learned, never = self.counts[:-1], self.counts[-1]
        best = torch.maximum(learned.max(), never) if self.thresh_warmup else learned.max()
        return self.threshold * MAPPINGS[self.mapping](learned / best.clamp(min=1))

    def class_thresholds(self) -> Tensor:
        """As they are now."""
        return self.thresholds()

    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Hard labels above the threshold their class had after the previous step."""
        labels, confidence = calibrated.labels, calibrated.confidence
        weights = (confidence >= self.thresholds()[labels]).float()
        if self.training:
            confident = labels.where(confidence >= self.threshold, -1)
            self._record(step.gather(step.batch.pool_ids), step.gather(confident))
        return PseudoLabels(labels, weights)

    def _record(self, ids: Tensor, labels: Tensor) -> None:
        """Note confident labels (not −1). An id that comes twice is counted once, with its last confident label."""
        last = last_occurrence(ids, labels >= 0)
        before = self.selected[ids]
        after = labels[last].where(labels[last] >= 0, before)
        once = (last == torch.arange(len(ids), device=ids.device)).long()
        self.counts.index_add_(0, before % len(self.counts), -once)
        self.counts.index_add_(0, after % len(self.counts), once)
        self.selected[ids] = after

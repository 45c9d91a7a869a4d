"""FlexMatch (Zhang et al., NeurIPS 2021): classes that are learned slowly get a lower threshold."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..types import Calibrated, PseudoLabels, Step, Task
from .fixmatch import FixMatch
from .ops import last_occurrence

MAPPINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "convex": lambda status: status / (2 - status),
    "linear": lambda status: status,
    "concave": lambda status: (status + 1).log() / math.log(2),
    "low_limit": lambda status: 1 / (2 - status),
}


@dataclass(kw_only=True, eq=False, repr=False)
class FlexMatch(FixMatch):
    """FixMatch with thresholds that grow with the number of pool examples confidently predicted as each class.

    Args:
        threshold: confidence that a pseudo label of the best-learned class must reach.
        mapping: maps the learning status of a class (0 to 1) to the fraction of `threshold` that applies to it. With
            "low_limit" no threshold is below half of `threshold`; with the others every pseudo label counts at first.
        thresh_warmup: lower all thresholds while most of the pool has never been predicted confidently.

    References:
        Zhang et al., FlexMatch: Boosting Semi-Supervised Learning with Curriculum Pseudo Labeling, NeurIPS 2021.
    """

    mapping: Literal["convex", "linear", "concave", "low_limit"] = "convex"
    thresh_warmup: bool = True

    def setup(self, model: nn.Module, task: Task) -> None:
        """`selected`: last confident class of each pool example, or −1; `counts`: examples per class, then of −1."""
        self.selected = nn.Buffer(torch.full((task.pool,), -1))
        self.counts = nn.Buffer(torch.zeros(task.classes + 1, dtype=torch.long))
        self.counts[-1] = task.pool

    def on_coreset_change(self, ids: Tensor) -> None:
        """Count within `ids` only: examples outside the core set cannot become confident."""
        classes = self.selected[ids] % len(self.counts)
        self.counts.copy_(torch.bincount(classes, minlength=len(self.counts)))

    def class_thresholds(self) -> Tensor:
        """The current threshold of each class."""
        learned = self.counts[:-1]
        never = self.counts[-1]
        best = torch.maximum(learned.max(), never) if self.thresh_warmup else learned.max()
        return self.threshold * MAPPINGS[self.mapping](learned / best.clamp(min=1))

    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Hard labels from the threshold of their class upward, as it was after the previous step."""
        labels = calibrated.labels
        confidence = calibrated.confidence
        weights = (confidence >= self.class_thresholds()[labels]).float()
        if self.training:
            ids = step.gather(step.batch.pool_ids)
            confident = step.gather(labels.where(confidence >= self.threshold, -1))
            # A repeated id counts once, with its last confident label.
            last = last_occurrence(ids, confident >= 0)
            before = self.selected[ids]
            after = confident[last].where(confident[last] >= 0, before)
            once = (last == torch.arange(len(ids), device=ids.device)).long()
            self.counts.index_add_(0, before % len(self.counts), -once)
            self.counts.index_add_(0, after % len(self.counts), once)
            self.selected[ids] = after
        return PseudoLabels(labels, weights)

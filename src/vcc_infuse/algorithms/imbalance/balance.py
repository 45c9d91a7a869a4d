"""Balance: select the same fraction of every pseudo class, by the order of any confidence.

The selection of RobustVCC without VCC. Within each pseudo class the examples keep the order of the confidence that the
calibrator gives them. Its scale becomes that of the softmax confidence of all classes together: at any threshold as
many are selected as by the softmax, and equally large shares of all classes, however little confidence a class gets.
"""

from typing import Literal

import torch
from torch import nn

from ...calibrators.base import set_top_confidence
from ...calibrators.scale_matching import ScaleMatching
from ...errors import check_choice, check_integer, check_range
from ...types import Calibrated, Step, Task
from ..base import PseudoLabeling
from .wrapper import Wrapper


class Balance(Wrapper):
    """Matches the confidence of each pseudo class to the pooled softmax confidence of recent examples.

    Args:
        queue_size: recent examples that define the scales; 128 per class by default.
        min_per_class: examples of a class that must be among them before its confidence is changed.
        warmup_fraction: fraction of the run in which nothing is changed.
        shares: what a class's fraction is taken of: the examples "predicted" to be of it, or its share of the pool,
            "estimated" on frozen features before the first step; "auto" does so if every class has ten labels.
    """

    def __init__(
        self,
        base: PseudoLabeling | None = None,
        *,
        queue_size: int | None = None,
        min_per_class: int = 16,
        warmup_fraction: float = 0.1,
        shares: Literal["auto", "predicted", "estimated"] = "auto",
    ) -> None:
        super().__init__(base)
        self.queue_size = None if queue_size is None else check_integer("queue_size", queue_size)
        self.min_per_class = check_integer("min_per_class", min_per_class)
        self.warmup_fraction = check_range("warmup_fraction", warmup_fraction, 0, 1)
        self.shares = check_choice("shares", shares, ("auto", "predicted", "estimated"))

    def setup(self, model: nn.Module, task: Task) -> None:
        """Create the queue."""
        super().setup(model, task)
        size = self.queue_size or 128 * task.classes
        self.scale = ScaleMatching(
            "balanced",
            classes=task.classes,
            size=size,
            min_per_class=self.min_per_class,
            shares=None if self.shares == "predicted" else task.pool_shares,
        )

    @torch.no_grad()
    def correct(self, calibrated: Calibrated, step: Step) -> Calibrated:
        """The balanced confidence; in training mode, after storing the batch."""
        assert calibrated.outputs is not None
        confidence = calibrated.outputs.logits.float().softmax(1).amax(1)
        labels = calibrated.labels
        score = calibrated.confidence.detach().float()
        if self.training:
            self.scale.observe(step.gather, score=score, confidence=confidence, labels=labels)
        if step.progress < self.warmup_fraction:
            return calibrated
        probs = set_top_confidence(calibrated.probs.detach().float(), self.scale(score, confidence, labels))
        return calibrated._replace(probs=probs, confidence=probs.amax(1))

"""The two reference lines of every table: only the given labels, and all labels."""

from __future__ import annotations

from collections.abc import Iterator

from ..types import Losses, Step
from .base import Algorithm
from .ops import labeled_loss


class Supervised(Algorithm):
    """Learn from the labeled images alone: the lower reference."""

    views = ()

    def losses(self, step: Step) -> Iterator[Losses]:
        """Cross entropy of the weakly augmented labeled images."""
        (outputs,) = step.forward(step.batch.x)
        yield Losses(labeled=labeled_loss(outputs.logits, step.batch.y))


class FullySupervised(Supervised):
    """Learn from the labels of all training images: the upper reference."""

    all_labels = True

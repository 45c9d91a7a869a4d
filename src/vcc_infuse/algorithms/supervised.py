"""The two reference methods: training on the given labels only, and on all labels."""

from __future__ import annotations

from collections.abc import Iterator

from ..types import Losses, Step
from .base import Algorithm
from .ops import labeled_loss


class Supervised(Algorithm):
    """Train on the labeled images alone: the lower reference."""

    views = ()

    def losses(self, step: Step) -> Iterator[Losses]:
        """Cross entropy of the labeled images."""
        (outputs,) = step.forward(step.batch.x)
        yield Losses(labeled=labeled_loss(outputs.logits, step.batch.y))


class FullySupervised(Supervised):
    """Train on the labels of all training images: the upper reference."""

    all_labels = True

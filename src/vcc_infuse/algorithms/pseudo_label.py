"""PseudoLabel (Lee, ICML workshop 2013): the network's own confident labels, on the very view it judged."""

from __future__ import annotations

from collections.abc import Iterator

from ..models.classifier import frozen_statistics
from ..types import Losses, Step
from .fixmatch import FixMatch
from .ops import labeled_loss, ramp


class PseudoLabel(FixMatch):
    """FixMatch's selection with a single weak view, whose weight rises over the first part of the run.

    Args:
        threshold: confidence that a pseudo label must reach.
        weight: factor of the unlabeled loss.
        rampup_fraction: share of the run over which that factor rises from zero.
    """

    views = ("weak",)
    unlabeled_ratio = 1

    def __init__(self, threshold: float = 0.95, weight: float = 1.0, rampup_fraction: float = 0.4) -> None:
        super().__init__(threshold, weight)
        self.rampup_fraction = rampup_fraction

    def losses(self, step: Step) -> Iterator[Losses]:
        """One forward gives both the target and the prediction; only labeled images move the statistics."""
        batch = step.batch
        (labeled,) = step.forward(batch.x)
        with frozen_statistics(step.model):
            (outputs,) = step.forward(batch.views["weak"])
        step.weak = outputs.detach()
        calibrated = step.confidence(batch.views["weak"], step.weak)
        pseudo = self.pseudo_label(calibrated, step)
        weight = self.weight * ramp(step.progress, self.rampup_fraction)
        yield Losses(
            pseudo,
            labeled=labeled_loss(labeled.logits, batch.y),
            unlabeled=weight * pseudo.loss(outputs.logits, batch.weights),
            calibration=calibrated.loss,
        )

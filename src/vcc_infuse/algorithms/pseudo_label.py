"""PseudoLabel (Lee, ICML workshop 2013): the network's own confident labels, on the very view it judged."""

from __future__ import annotations

from collections.abc import Iterator

from ..models.batchnorm import frozen_statistics
from ..types import Losses, Step
from .base import labelled_loss, ramp
from .fixmatch import FixMatch


class PseudoLabel(FixMatch):
    """FixMatch's selection with a single weak view, whose weight rises over the first part of the run.

    Args:
        threshold: confidence that a pseudo label must reach.
        weight: factor of the unlabelled loss.
        ramp_share: share of the run over which that factor rises from zero.
    """

    views = ("weak",)
    ratio = 1

    def __init__(self, threshold: float = 0.95, weight: float = 1.0, ramp_share: float = 0.4) -> None:
        super().__init__(threshold, weight)
        self.ramp_share = ramp_share

    def losses(self, step: Step) -> Iterator[Losses]:
        """One forward gives both the target and the prediction; only labelled images move the statistics."""
        batch = step.batch
        (labelled,) = step.forward(batch.x)
        with frozen_statistics(step.model):
            (outputs,) = step.forward(batch.views["weak"])
        step.weak = outputs.detach()
        calibrated = step.confidence(batch.views["weak"], step.weak)
        pseudo = self.pseudo_label(calibrated, step)
        weight = self.weight * ramp(step.progress, self.ramp_share)
        yield Losses(
            pseudo,
            labelled=labelled_loss(labelled.logits, batch.y),
            unlabelled=weight * pseudo.loss(outputs.logits, batch.weights),
            calibration=calibrated.loss,
        )

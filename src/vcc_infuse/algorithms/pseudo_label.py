"""PseudoLabel (Lee, ICML workshop 2013): train on the confident predictions of the network for the same view."""

from collections.abc import Iterator
from dataclasses import dataclass

from ..models.classifier import frozen_statistics
from ..types import Losses, Step, WeakOutputs
from ..utils.params import number
from .fixmatch import FixMatch
from .ops import labeled_loss, ramp


@dataclass(kw_only=True, eq=False, repr=False)
class PseudoLabel(FixMatch):
    """The rule of FixMatch with a single weak view; the unlabeled loss ramps up over the first part of the run.

    Args:
        rampup_fraction: fraction of the run over which that factor rises from zero.

    References:
        Lee, Pseudo-Label: The Simple and Efficient Semi-Supervised Learning Method for Deep Neural Networks, ICML
        workshop on Challenges in Representation Learning 2013.
    """

    views = ("weak",)
    lazy_strong = False
    unlabeled_ratio = 1

    rampup_fraction: float = number(0.4, 0, 1)

    def losses(self, step: Step) -> Iterator[Losses]:
        """One forward gives target and prediction; only labeled images update the BatchNorm statistics."""
        batch = step.batch
        (labeled,) = step.forward(batch.x)
        with frozen_statistics(step.model):
            (outputs,) = step.forward(batch.views["weak"])
        weak = WeakOutputs(*outputs.detach(), with_gradient=outputs)
        calibrated = step.confidence(batch.views["weak"], weak)
        pseudo = self.pseudo_label(calibrated, step)
        weight = self.weight * ramp(step.progress, self.rampup_fraction)
        yield Losses(
            pseudo,
            labeled=labeled_loss(labeled.logits, batch.y),
            unlabeled=weight * pseudo.loss(outputs.logits, calibrated.sample_weights(batch)),
            calibration=calibrated.loss,
        )

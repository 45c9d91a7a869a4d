"""What a semi-supervised method writes: which views it wants, and its losses for one step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from ..types import Calibrated, Losses, PseudoLabels, Step, Task


class Algorithm(nn.Module):
    """A method. `__init__` takes hyper-parameters only; state is buffers, extra heads are submodules."""

    views: tuple[str, ...] = ("weak", "strong")
    ratio: int = 7
    """Unlabelled examples for each labelled one, unless the user says otherwise."""
    uses_confidence: ClassVar[bool] = False
    """Whether a calibrator has a confidence to replace."""
    all_labels: ClassVar[bool] = False
    """Whether every training label is shown: the upper bound, not a semi-supervised method."""

    def setup(self, model: nn.Module, task: Task) -> None:
        """Build heads, memories and second models, once the sizes are known."""

    def restrict(self, ids: Tensor) -> None:
        """Only these pool ids will be seen until the next core set: counts over the pool may have to follow."""

    def classifier(self, model: nn.Module) -> nn.Module:
        """What predicts at test time, given the averaged model: the model, unless a method trained a head for it."""
        return model

    def class_thresholds(self) -> Tensor | float | None:
        """What the pseudo labels of each class must reach now (one number if all the same); None without thresholds."""
        return None

    def losses(self, step: Step) -> Iterator[Losses]:
        """Yield the losses of one optimiser step; most methods yield once."""
        raise NotImplementedError


class PseudoLabelling(Algorithm):
    """The FixMatch family: a subclass only says which pseudo labels count, and how much."""

    uses_confidence = True
    weight: float = 1.0

    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Targets and weights from the weak view; memories may change only while `self.training`."""
        raise NotImplementedError

    def losses(self, step: Step) -> Iterator[Losses]:
        """Labelled cross entropy, and the strong view's cross entropy with the weak view's label."""
        batch = step.batch
        weak, (labelled, strong) = step.teach(batch.views["weak"], batch.x, batch.views["strong"])
        calibrated = step.confidence(batch.views["weak"], weak)
        pseudo = self.pseudo_label(calibrated, step)
        yield Losses(
            pseudo,
            labelled=self.labelled_term(labelled.logits, step),
            unlabelled=self.weight * pseudo.loss(strong.logits, batch.weights),
            **self.further_terms(strong.logits, pseudo, step),
            calibration=calibrated.loss,
        )

    def labelled_term(self, logits: Tensor, step: Step) -> Tensor:
        """What the labelled images teach."""
        return labelled_loss(logits, step.batch.y)

    def further_terms(self, strong: Tensor, pseudo: PseudoLabels, step: Step) -> dict[str, Tensor]:
        """What else is to be minimised, given the strong view's logits."""
        return {}


def labelled_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Mean cross entropy in float32, whatever the precision of the forward."""
    return F.cross_entropy(logits.float(), y)


def ramp(progress: float, share: float) -> float:
    """Rise linearly from 0 to 1 over the first `share` of the run."""
    return min(1.0, progress / share) if share > 0 else 1.0


def checked(name: str, value: float, low: float, high: float) -> float:
    """Return a hyper-parameter if it lies in its range, else say what would be right."""
    from ..errors import UserError

    if not low <= value <= high:
        raise UserError(f"{name} must lie between {low:g} and {high:g}, got {value!r}")
    return value

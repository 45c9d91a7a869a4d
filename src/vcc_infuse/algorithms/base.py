"""What a semi-supervised method writes: which views it wants, and its losses for one step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from torch import Tensor, nn

from ..types import Calibrated, Losses, PseudoLabels, Step, Task
from .ops import labeled_loss


class Algorithm(nn.Module):
    """A method. `__init__` takes hyper-parameters only; state is buffers, extra heads are submodules."""

    views: tuple[str, ...] = ("weak", "strong")
    unlabeled_ratio: int = 7
    """Unlabeled examples for each labeled one, unless the user says otherwise."""
    uses_confidence: ClassVar[bool] = False
    """Whether a calibrator has a confidence to replace."""
    all_labels: ClassVar[bool] = False
    """Whether every training label is shown: the upper bound, not a semi-supervised method."""

    def setup(self, model: nn.Module, task: Task) -> None:
        """Build heads, memories and second models, once the sizes are known."""

    def on_coreset_change(self, ids: Tensor) -> None:
        """Only these pool ids will be seen until the next core set: counts over the pool may have to follow."""

    def classifier(self, model: nn.Module) -> nn.Module:
        """What predicts at test time, given the averaged model: the model, unless a method trained a head for it."""
        return model

    def class_thresholds(self) -> Tensor | float | None:
        """What the pseudo labels of each class must reach now (one number if all the same); None without thresholds."""
        return None

    def losses(self, step: Step) -> Iterator[Losses]:
        """Yield the losses of one optimizer step; most methods yield once."""
        raise NotImplementedError


class PseudoLabeling(Algorithm):
    """The FixMatch family: a subclass only says which pseudo labels count, and how much."""

    uses_confidence = True
    weight: float = 1.0

    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Targets and weights from the weak view; memories may change only while `self.training`."""
        raise NotImplementedError

    def losses(self, step: Step) -> Iterator[Losses]:
        """Labeled cross entropy, and the strong view's cross entropy with the weak view's label."""
        batch = step.batch
        weak, (labeled, strong) = step.forward_weak_strong(batch.views["weak"], batch.x, batch.views["strong"])
        calibrated = step.confidence(batch.views["weak"], weak)
        pseudo = self.pseudo_label(calibrated, step)
        yield Losses(
            pseudo,
            labeled=self.labeled_term(labeled.logits, step),
            unlabeled=self.weight * pseudo.loss(strong.logits, batch.weights),
            **self.extra_losses(strong.logits, pseudo, step),
            calibration=calibrated.loss,
        )

    def labeled_term(self, logits: Tensor, step: Step) -> Tensor:
        """What the labeled images teach."""
        return labeled_loss(logits, step.batch.y)

    def extra_losses(self, strong: Tensor, pseudo: PseudoLabels, step: Step) -> dict[str, Tensor]:
        """What else is to be minimized, given the strong view's logits."""
        return {}

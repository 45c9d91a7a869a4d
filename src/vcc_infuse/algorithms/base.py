"""Base classes of the methods: a method names the views it needs and yields its losses for one step."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from ..types import Calibrated, Losses, PseudoLabels, Step, Task
from ..utils.params import HasOptions, number
from .ops import labeled_loss


class Algorithm(HasOptions, nn.Module):
    """A method. `__init__` takes hyperparameters only; state is held in buffers, extra heads are submodules."""

    views: tuple[str, ...] = ("weak", "strong")
    unlabeled_ratio: int = 7
    """Unlabeled examples per labeled one, unless the user sets another ratio."""
    uses_confidence: ClassVar[bool] = False
    """Whether the method uses a confidence that a calibrator can replace."""
    lazy_strong: bool = False
    """Whether the strong view matters only where its pseudo label has weight, so that other rows can be left out."""
    all_labels: ClassVar[bool] = False
    """Whether all training labels are used: the upper bound, not a semi-supervised method."""

    def setup(self, model: nn.Module, task: Task) -> None:
        """Build heads, memories and second models, once the sizes are known."""

    def on_coreset_change(self, ids: Tensor) -> None:
        """Called when training is restricted to these pool ids: update whatever is counted over the pool."""

    def classifier(self, model: nn.Module) -> nn.Module:
        """The model that predicts at test time, given the averaged model; a method may replace its head."""
        return model

    def class_thresholds(self) -> Tensor | float | None:
        """The current confidence threshold, per class or one for all; None for a method without thresholds."""
        return None

    def losses(self, step: Step) -> Iterator[Losses]:
        """Yield the losses of one optimizer step; most methods yield once."""
        raise NotImplementedError


@dataclass(kw_only=True, eq=False, repr=False)
class PseudoLabeling(Algorithm):
    """The FixMatch family: a subclass only writes its rule for targets and weights, `pseudo_label`.

    Args:
        weight: factor of the unlabeled loss.
    """

    uses_confidence = True
    lazy_strong = True
    weight: float = number(1.0)

    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Targets and weights from the weak view; memories may change only while `self.training`."""
        raise NotImplementedError

    def losses(self, step: Step) -> Iterator[Losses]:
        """Cross entropy of the labeled images, and of the strong views with the pseudo labels of the weak views.

        A lazy step computes the strong views last: only those whose pseudo label has weight.
        """
        batch = step.batch
        images = batch.views["weak"]
        outputs = None
        if step.lazy:
            weak = step.forward_weak(images)
        else:
            weak, outputs = step.forward_weak_strong(images, batch.x, batch.views["strong"])
        calibrated = step.confidence(images, weak)
        pseudo = self.pseudo_label(calibrated, step)
        labeled, strong = outputs or step.forward_strong(pseudo.rows(batch.weights))
        yield Losses(
            pseudo,
            labeled=self.labeled_term(labeled.logits, step),
            unlabeled=self.weight * pseudo.loss(strong.logits, calibrated.sample_weights(batch)),
            **self.extra_losses(strong.logits, pseudo, step),
            calibration=calibrated.loss,
        )

    def labeled_term(self, logits: Tensor, step: Step) -> Tensor:
        """The loss of the labeled images."""
        return labeled_loss(logits, step.batch.y)

    def extra_losses(self, strong: Tensor, pseudo: PseudoLabels, step: Step) -> dict[str, Tensor]:
        """Further terms to minimize, given the logits of the strong view; a lazy step has zeros in rows without weight.

        A method whose terms need every row sets `lazy_strong` to False.
        """
        return {}

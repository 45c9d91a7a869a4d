"""A calibrator says how far a pseudo label can be trusted; Softmax, the default, takes the classifier's word."""

from __future__ import annotations

from torch import Tensor, nn

from ..data.precision import wide
from ..types import Calibrated, Outputs, Step, Task


class Calibrator(nn.Module):
    """Turns outputs into trust. `__init__` takes hyper-parameters only; state is buffers and submodules."""

    labelled_views: tuple[str, ...] = ()
    """Further views of the labelled images it wants to see, e.g. "strong": `step.batch.views["labelled_strong"]`."""

    unlabelled_views: tuple[str, ...] = ()
    """Views of the unlabelled images it cannot do without: a method that shows none of them is refused."""

    @property
    def held_out(self) -> float:
        """The part of the labelled images to keep out of training.

        Weak views of them come as `step.batch.views["held_out"]`, their labels as `step.batch.held_out_y`.
        """
        return 0.0

    def setup(self, model: nn.Module, task: Task) -> None:
        """Build memories and networks, once the sizes are known."""

    def forward(self, step: Step, images: Tensor, outputs: Outputs) -> Calibrated:
        """Trust while training; memories may change only while `self.training`."""
        raise NotImplementedError

    def predict(self, outputs: Outputs) -> Tensor:
        """Confidence in the predicted class at inference, without randomness."""
        raise NotImplementedError


class Softmax(Calibrator):
    """The classifier's own probability: what every method uses when nothing is plugged in."""

    def forward(self, step: Step, images: Tensor, outputs: Outputs) -> Calibrated:
        """Softmax probabilities and their maximum."""
        probs = outputs.logits.detach().float().softmax(1)
        return Calibrated(probs, probs.amax(1))

    def predict(self, outputs: Outputs) -> Tensor:
        """The largest softmax probability."""
        return wide(outputs.logits.float()).softmax(1).amax(1)

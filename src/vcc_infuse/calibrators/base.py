"""A calibrator estimates how much a pseudo label can be trusted. `Softmax`, the default, trusts the classifier."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..types import Calibrated, Outputs, Step, Task, WeakOutputs
from ..utils.device import to_float64
from ..utils.params import HasOptions


class Calibrator(HasOptions, nn.Module):
    """Turns outputs into confidence. `__init__` takes hyperparameters only; state is buffers and submodules."""

    labeled_views: tuple[str, ...] = ()
    """Extra views of the labeled images: "strong" arrives as `step.batch.views["labeled_strong"]`."""

    unlabeled_views: tuple[str, ...] = ()
    """Views of the unlabeled images that it requires; an algorithm that does not provide them is rejected."""

    @property
    def held_out(self) -> float:
        """The fraction of the labeled images to keep out of training.

        Their weak views arrive as `step.batch.views["held_out"]`, their labels as `step.batch.held_out_y`.
        """
        return 0.0

    def setup(self, model: nn.Module, task: Task) -> None:
        """Build memories and networks once the sizes are known."""

    def forward(self, step: Step, images: Tensor, outputs: WeakOutputs) -> Calibrated:
        """Confidence during training; memories may change only while `self.training`."""
        raise NotImplementedError

    def predict(self, outputs: Outputs) -> Tensor:
        """Confidence in the predicted class at inference; deterministic."""
        raise NotImplementedError


class Softmax(Calibrator):
    """The classifier's own probability, used when no calibrator is given."""

    def forward(self, step: Step, images: Tensor, outputs: WeakOutputs) -> Calibrated:
        """Softmax probabilities and their maximum."""
        probs = outputs.logits.detach().float().softmax(1)
        return Calibrated(probs, probs.amax(1))

    def predict(self, outputs: Outputs) -> Tensor:
        """The largest softmax probability."""
        return to_float64(outputs.logits.float()).softmax(1).amax(1)


def set_top_confidence(probs: Tensor, confidence: Tensor) -> Tensor:
    """Set the largest probability of each row to `confidence` and scale the others to fill the rest.

    The label stays the largest entry: a confidence too low for that is raised to just above the runner-up.
    """
    labels = probs.argmax(1, keepdim=True)
    others = probs.scatter(1, labels, 0)
    total = others.sum(1, keepdim=True)
    even = torch.full_like(probs, 1 / (probs.shape[1] - 1)).scatter(1, labels, 0)
    shares = torch.where(total > 1e-7, others / total.clamp_min(1e-7), even)
    second = shares.amax(1, keepdim=True)
    least = second / (1 + second) * (1 + 1e-5)
    confidence = torch.maximum(confidence[:, None], least).clamp(max=1)
    return (shares * (1 - confidence)).scatter(1, labels, confidence)

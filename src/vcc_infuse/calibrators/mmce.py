"""MMCE (Kumar et al., ICML 2018): a training loss that pulls confidence towards how often it is right.

The maximum mean calibration error compares confidence and correctness of every pair of examples under a kernel. It
changes the network, not the reading of its confidence, which remains the softmax.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from ..models.classifier import frozen_statistics
from ..types import Calibrated, Outputs, Step, identity_gather
from ..validation import check_range
from .base import Softmax
from .label_sources import chosen, collect

WIDTH = 0.4


TINY = 1e-12


SOURCES = {
    "both": ("labeled_strong", "weak_strong"),
    "labeled_strong": ("labeled_strong",),
    "weak_strong": ("weak_strong",),
}


def kernel(one: Tensor, other: Tensor) -> Tensor:
    """Laplacian similarity of every pair of confidences."""
    return (-(one[:, None] - other).abs() / WIDTH).exp()


def residuals(confidence: Tensor, correct: Tensor, everyone: Tensor, weighted: bool) -> Tensor:
    """Correctness (0 or 1) minus confidence, divided by the number of examples, `everyone` telling who is right.

    Weighted, right and wrong ones are averaged apart; with all right or all wrong there is nothing to compare, so 0.
    """
    right, wrong = everyone.sum(), (1 - everyone).sum()
    count = correct * right + (1 - correct) * wrong if weighted else right + wrong
    return (correct - confidence) * (right * wrong > 0 if weighted else 1) / count.clamp_min(1)


def mmce(confidence: Tensor, correct: Tensor, weighted: bool = True) -> Tensor:
    """The calibration error of a batch, differentiable in the confidence; plain or weighted."""
    a = residuals(confidence, correct, correct, weighted)
    # No matrix product: autocast would take it to half precision.
    return (kernel(confidence, confidence) * a[:, None] * a).sum().clamp_min(TINY).sqrt()


def shared_mmce(
    confidence: Tensor, correct: Tensor, weighted: bool = True, gather: Callable[[Tensor], Tensor] = identity_gather
) -> Tensor:
    """`mmce` of the rows of all processes; its gradient, averaged over them, is that of the global batch.

    Gathered rows carry no gradient. In a symmetric sum over pairs the own rows against all fixed ones give half of it.
    """
    everyone, right = gather(confidence.detach()), gather(correct)
    value = mmce(everyone, right, weighted)
    own, all_ = residuals(confidence, correct, right, weighted), residuals(everyone, right, right, weighted)
    pairs = (kernel(confidence, everyone) * own[:, None] * all_).sum()
    return value + len(everyone) / len(confidence) * (pairs - pairs.detach()) / value


class MMCE(Softmax):
    """Adds the error of strongly augmented images to the loss, with labels that the network may miss.

    Images held out from training are no choice here: the loss would train on them. One further forward of twice the
    labeled batch a step.

    Args:
        labels: "labeled_strong" takes strongly augmented labeled images, "weak_strong" the weak view's pseudo label
            for the strong view of as many unlabeled images, "both" all of them.
        weight: factor of the loss.
        weighted: average right and wrong examples apart, which helps where nearly all are right.
    """

    def __init__(
        self,
        labels: Literal["both", "labeled_strong", "weak_strong"] = "both",
        weight: float = 1.0,
        weighted: bool = True,
    ) -> None:
        super().__init__()
        self.labels, self.weighted = chosen(labels, tuple(SOURCES)), weighted
        self.weight = check_range("weight", weight, 0)
        self.labeled_views = () if labels == "weak_strong" else ("strong",)
        self.unlabeled_views = ("strong",) if labels == "weak_strong" else ()

    def forward(self, step: Step, images: Tensor, outputs: Outputs) -> Calibrated:
        """Softmax confidence; while training, with the loss."""
        loss = self._loss(step, outputs) if self.training else None
        return super().forward(step, images, outputs)._replace(loss=loss)

    def _loss(self, step: Step, outputs: Outputs) -> Tensor | None:
        seen = collect(SOURCES[self.labels], step, outputs)
        if seen is None:
            return None
        with frozen_statistics(step.model):
            probs = step.model(seen.images).logits.float().softmax(1)
        confidence, predicted = probs.max(1)
        correct = (predicted == seen.labels).float()
        return self.weight * shared_mmce(confidence, correct, self.weighted, step.gather)

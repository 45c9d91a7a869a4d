"""MMCE (Kumar et al., ICML 2018): a training loss that pulls confidence toward accuracy.

The maximum mean calibration error compares confidence and correctness of every pair of examples under a kernel. It
changes the network, not the reported confidence, which remains the softmax.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..models.classifier import frozen_statistics
from ..types import Calibrated, Step, WeakOutputs, identity_gather
from ..utils.params import number
from .base import Softmax, collect_examples

KERNEL_WIDTH = 0.4
TINY = 1e-12


@dataclass(kw_only=True, eq=False, repr=False)
class MMCE(Softmax):
    """Adds the calibration error on strongly augmented images to the loss, with labels that the network may get wrong.

    Held-out images are not a choice here, because the loss would train on them. Costs one extra forward pass of twice
    the labeled batch per step.

    Args:
        labels: "labeled_strong" uses strongly augmented labeled images, "weak_strong" the weak view's pseudo label
            for the strong view of as many unlabeled images, "both" all of them.
        weight: factor of the loss; the authors' script has 4, their README recommends 8 to 9.
        weighted: average correct and wrong examples separately, which helps where nearly all are correct.

    References:
        Kumar et al., Trainable Calibration Measures for Neural Networks from Kernel Mean Embeddings, ICML 2018.
    """

    labels: Literal["both", "labeled_strong", "weak_strong"] = "both"
    weight: float = number(4.0)
    weighted: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.labeled_views = () if self.labels == "weak_strong" else ("strong",)
        self.unlabeled_views = ("strong",) if self.labels == "weak_strong" else ()

    def forward(self, step: Step, images: Tensor, outputs: WeakOutputs) -> Calibrated:
        """Softmax confidence; during training, with the loss."""
        loss = self._loss(step, outputs) if self.training else None
        return super().forward(step, images, outputs)._replace(loss=loss)

    def _loss(self, step: Step, outputs: WeakOutputs) -> Tensor | None:
        sources = ("labeled_strong", "weak_strong") if self.labels == "both" else (self.labels,)
        examples = collect_examples(sources, step, outputs)
        if examples is None:
            return None
        with frozen_statistics(step.model):
            probs = step.model(examples.images).logits.float().softmax(1)
        confidence, predicted = probs.max(1)
        correct = (predicted == examples.labels).float()
        return self.weight * gathered_mmce(confidence, correct, weighted=self.weighted, gather=step.gather)


def mmce(confidence: Tensor, correct: Tensor, *, weighted: bool = True) -> Tensor:
    """The maximum mean calibration error of a batch, differentiable in the confidence.

    √ Σᵢⱼ aᵢ aⱼ k(cᵢ, cⱼ) with k(c, d) = exp(−|c − d|/0.4) and a = (correct − c)/n; if weighted, n is the number of
    correct or of wrong examples, whichever example i is one of.

    Args:
        confidence: (batch,)
        correct: (batch,), 1.0 where the prediction is right, else 0.0.
        weighted: see above.

    Example:
        >>> import torch
        >>> round(mmce(torch.tensor([0.9, 0.9]), torch.tensor([1.0, 0.0])).item(), 3)
        0.8
    """
    a = _residuals(confidence, correct, correct, weighted)
    # No matrix product: autocast would run it in half precision.
    return (_kernel(confidence, confidence) * a[:, None] * a).sum().clamp_min(TINY).sqrt()


def gathered_mmce(
    confidence: Tensor, correct: Tensor, *, weighted: bool = True, gather: Callable[[Tensor], Tensor] = identity_gather
) -> Tensor:
    """`mmce` over the rows of all processes; its gradient, averaged over processes, is that of the global batch.

    Gathered rows carry no gradient. In a symmetric sum over pairs, local rows against all fixed rows give half of it.
    """
    all_confidence = gather(confidence.detach())
    all_correct = gather(correct)
    value = mmce(all_confidence, all_correct, weighted=weighted)
    local = _residuals(confidence, correct, all_correct, weighted)
    everyone = _residuals(all_confidence, all_correct, all_correct, weighted)
    pairs = (_kernel(confidence, all_confidence) * local[:, None] * everyone).sum()
    return value + len(all_confidence) / len(confidence) * (pairs - pairs.detach()) / value


def _kernel(one: Tensor, other: Tensor) -> Tensor:
    """Laplacian similarity of every pair of confidences."""
    return (-(one[:, None] - other).abs() / KERNEL_WIDTH).exp()


def _residuals(confidence: Tensor, correct: Tensor, all_correct: Tensor, weighted: bool) -> Tensor:
    """Correctness minus confidence, divided by the number of examples, or if weighted, of correct or of wrong ones.

    If weighted, all correct or all wrong leaves nothing to compare, so the result is 0.
    """
    right = all_correct.sum()
    wrong = (1 - all_correct).sum()
    count = correct * right + (1 - correct) * wrong if weighted else right + wrong
    return (correct - confidence) * (right * wrong > 0 if weighted else 1) / count.clamp_min(1)

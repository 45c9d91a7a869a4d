"""FreeMatch (Wang et al., ICLR 2023): thresholds follow the mean confidence; a fairness term spreads predictions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import check_range
from ..types import Calibrated, PseudoLabels, Step, Task
from ..utils.device import class_counts
from .base import PseudoLabeling


class FreeMatch(PseudoLabeling):
    """A global threshold (the mean confidence), scaled per class by the mean probability of that class.

    Args:
        weight: factor of the unlabeled loss.
        fairness: factor of the fairness term.
        momentum: of the running confidence, probabilities and label histogram.
        min_threshold: lower bound of the thresholds (0.9 for SVHN).
        max_threshold: upper bound of the thresholds (0.95 for SVHN).

    References:
        Wang et al., FreeMatch: Self-adaptive Thresholding for Semi-supervised Learning, ICLR 2023.
    """

    global_threshold: Tensor
    probs: Tensor
    histogram: Tensor

    def __init__(
        self,
        *,
        weight: float = 1.0,
        fairness: float = 0.001,
        momentum: float = 0.999,
        min_threshold: float = 0.0,
        max_threshold: float = 1.0,
    ) -> None:
        super().__init__()
        self.weight = check_range("weight", weight)
        self.fairness = check_range("fairness", fairness)
        self.momentum = check_range("momentum", momentum, 0, 1)
        self.min_threshold = check_range("min_threshold", min_threshold, 0, 1)
        self.max_threshold = check_range("max_threshold", max_threshold, min_threshold, 1)

    def setup(self, model: nn.Module, task: Task) -> None:
        """Running means of confidence and probabilities, and a running label histogram."""
        self.register_buffer("global_threshold", torch.tensor(1 / task.classes))
        self.register_buffer("probs", torch.full((task.classes,), 1 / task.classes))
        self.register_buffer("histogram", torch.full((task.classes,), 1 / task.classes))

    def class_thresholds(self) -> Tensor:
        """The current threshold of each class."""
        return (self.global_threshold * self.probs / self.probs.max()).clamp(self.min_threshold, self.max_threshold)

    @torch.no_grad()
    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Hard labels from the threshold of their class upward; thresholds are updated with this batch first."""
        labels = calibrated.labels
        confidence = calibrated.confidence.float()
        if self.training:
            self._update(step.gather(calibrated.probs.float()), step.gather(confidence), step.gather(labels))
        return PseudoLabels(labels, (confidence >= self.class_thresholds()[labels]).float())

    def _update(self, probs: Tensor, confidence: Tensor, labels: Tensor) -> None:
        frequencies = class_counts(labels, probs.shape[1]).float() / len(labels)
        self.global_threshold.lerp_(confidence.mean(), 1 - self.momentum)
        self.probs.lerp_(probs.mean(0), 1 - self.momentum)
        self.histogram.lerp_(frequencies, 1 - self.momentum)

    def extra_losses(self, strong: Tensor, pseudo: PseudoLabels, step: Step) -> dict[str, Tensor]:
        """The fairness term, from the predictions for the strong view."""
        return {"fairness": self.fairness * self._unfairness(strong, pseudo.weights * step.batch.weights)}

    def _unfairness(self, logits: Tensor, weights: Tensor) -> Tensor:
        """Negative cross entropy between running and selected mean prediction, each divided by its histogram."""
        probs = logits.float().softmax(1)
        total = weights.sum()
        normalized = (weights / total.clamp(min=1e-12)).unsqueeze(1)
        labels = nn.functional.one_hot(probs.argmax(1), probs.shape[1])
        selected = _balanced((normalized * probs).sum(0), (normalized * labels).sum(0))
        return (total > 0) * (_balanced(self.probs, self.histogram) * (selected + 1e-12).log()).sum()


def _balanced(probs: Tensor, histogram: Tensor) -> Tensor:
    """Probabilities divided by the histogram, normalized; zero for a class that is absent from the histogram."""
    ratio = (probs / histogram.clamp(min=1e-12)).where(histogram > 0, 0)
    return ratio / ratio.sum().clamp(min=1e-12)

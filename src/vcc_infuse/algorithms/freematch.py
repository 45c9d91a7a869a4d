"""FreeMatch (Wang et al., ICLR 2023): thresholds follow the mean confidence; a fairness term spreads predictions."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import check_range
from ..types import Calibrated, PseudoLabels, Step, Task
from ..utils.device import class_counts
from ..utils.params import number
from .base import PseudoLabeling


@dataclass(kw_only=True, eq=False, repr=False)
class FreeMatch(PseudoLabeling):
    """A global threshold (the mean confidence), scaled per class by the mean probability of that class.

    Args:
        fairness: factor of the fairness term.
        momentum: of the running confidence, probabilities and label histogram; less in short runs, see `Step.momentum`.
        min_threshold: lower bound of the thresholds (0.9 for SVHN).
        max_threshold: upper bound of the thresholds (0.95 for SVHN).

    References:
        Wang et al., FreeMatch: Self-adaptive Thresholding for Semi-supervised Learning, ICLR 2023.
    """

    fairness: float = number(0.001)
    momentum: float = number(0.999, 0, 1)
    min_threshold: float = number(0.0, 0, 1)
    max_threshold: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.max_threshold = check_range("max_threshold", self.max_threshold, self.min_threshold, 1)

    def setup(self, model: nn.Module, task: Task) -> None:
        """Running means of confidence and probabilities, and a running label histogram."""
        self.global_threshold = nn.Buffer(torch.tensor(1 / task.classes))
        self.probs = nn.Buffer(torch.full((task.classes,), 1 / task.classes))
        self.histogram = nn.Buffer(torch.full((task.classes,), 1 / task.classes))

    def class_thresholds(self) -> Tensor:
        """The current threshold of each class."""
        return (self.global_threshold * self.probs / self.probs.max()).clamp(self.min_threshold, self.max_threshold)

    @torch.no_grad()
    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Hard labels from the threshold of their class upward; thresholds are updated with this batch first."""
        labels = calibrated.labels
        confidence = calibrated.confidence.float()
        if self.training:
            rows = (step.gather(part) for part in (calibrated.probs.float(), confidence, labels))
            self._update(*rows, rate=1 - step.momentum(self.momentum))
        return PseudoLabels(labels, (confidence >= self.class_thresholds()[labels]).float())

    def _update(self, probs: Tensor, confidence: Tensor, labels: Tensor, *, rate: float) -> None:
        frequencies = class_counts(labels, probs.shape[1]).float() / len(labels)
        self.global_threshold.lerp_(confidence.mean(), rate)
        self.probs.lerp_(probs.mean(0), rate)
        self.histogram.lerp_(frequencies, rate)

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

"""FreeMatch (Wang et al., ICLR 2023): thresholds follow the confidence; a fairness term spreads predictions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..types import Calibrated, PseudoLabels, Step, Task
from ..validation import check_range
from .base import PseudoLabeling


class FreeMatch(PseudoLabeling):
    """A global threshold (mean confidence), scaled for each class by how much probability it receives.

    Args:
        weight: factor of the unlabeled loss.
        fairness: factor of the fairness term.
        momentum: of the running confidence, probabilities and label histogram.
        lowest: lower bound of the thresholds (0.9 for SVHN).
        highest: upper bound of the thresholds (0.95 for SVHN).
    """

    level: Tensor
    probs: Tensor
    histogram: Tensor

    def __init__(
        self,
        weight: float = 1.0,
        fairness: float = 0.001,
        momentum: float = 0.999,
        lowest: float = 0.0,
        highest: float = 1.0,
    ) -> None:
        super().__init__()
        self.weight = check_range("weight", weight)
        self.fairness = check_range("fairness", fairness)
        self.momentum = check_range("momentum", momentum, 0, 1)
        self.lowest = check_range("lowest", lowest, 0, 1)
        self.highest = check_range("highest", highest, lowest, 1)

    def setup(self, model: nn.Module, task: Task) -> None:
        """Running mean confidence, mean probabilities and label histogram."""
        self.register_buffer("level", torch.tensor(1 / task.classes))
        self.register_buffer("probs", torch.full((task.classes,), 1 / task.classes))
        self.register_buffer("histogram", torch.full((task.classes,), 1 / task.classes))

    def thresholds(self) -> Tensor:
        """The threshold of each class."""
        return (self.level * self.probs / self.probs.max()).clamp(self.lowest, self.highest)

    def class_thresholds(self) -> Tensor:
        """As they are now."""
        return self.thresholds()

    @torch.no_grad()
    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Hard labels above their class's threshold, which has taken in this batch."""
        labels, confidence = calibrated.labels, calibrated.confidence.float()
        if self.training:
            self._update(step.gather(calibrated.probs.float()), step.gather(confidence), step.gather(labels))
        return PseudoLabels(labels, (confidence >= self.thresholds()[labels]).float())

    def _update(self, probs: Tensor, confidence: Tensor, labels: Tensor) -> None:
        shares = torch.bincount(labels, minlength=probs.shape[1]).float() / len(labels)
        self.level.lerp_(confidence.mean(), 1 - self.momentum)
        self.probs.lerp_(probs.mean(0), 1 - self.momentum)
        self.histogram.lerp_(shares, 1 - self.momentum)

    def extra_losses(self, strong: Tensor, pseudo: PseudoLabels, step: Step) -> dict[str, Tensor]:
        """Fairness of the strong view's predictions."""
        return {"fairness": self.fairness * self._unfairness(strong, pseudo.weights * step.batch.weights)}

    def _unfairness(self, logits: Tensor, weights: Tensor) -> Tensor:
        """Minus the cross entropy between expected and selected predictions, both freed of their label histogram."""
        probs, total = logits.float().softmax(1), weights.sum()
        share = (weights / total.clamp(min=1e-12)).unsqueeze(1)
        labels = nn.functional.one_hot(probs.argmax(1), probs.shape[1])
        selected = _balanced((share * probs).sum(0), (share * labels).sum(0))
        return (total > 0) * (_balanced(self.probs, self.histogram) * (selected + 1e-12).log()).sum()


def _balanced(probs: Tensor, histogram: Tensor) -> Tensor:
    """Probabilities over histogram, summing to one; a class the histogram does not know has none."""
    ratio = (probs / histogram.clamp(min=1e-12)).where(histogram > 0, 0)
    return ratio / ratio.sum().clamp(min=1e-12)

"""ABC (Lee et al., NeurIPS 2021): an auxiliary balanced classifier, a second head to which all classes are alike."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..algorithms.base import PseudoLabeling
from ..models import Classifier
from ..types import PseudoLabels, Step, Task
from ..validation import check_range
from .plugin import Plugin, Seen


class ABC(Plugin):
    """The base trains the features and its own head; a balanced head learns beside it and predicts at test time.

    The paper's second strong view is left out. A calibrator speaks of the base's head.

    Args:
        base: the method that trains the features; FixMatch if not given.
        threshold: confidence of the balanced head that its own pseudo labels must reach.
        head_weight: factor of the balanced head's losses.
        soft: learn the weak view's distribution, as in the paper, instead of its likeliest class.
    """

    needs_strong = True
    rates: Tensor

    def __init__(
        self,
        base: PseudoLabeling | None = None,
        threshold: float = 0.95,
        head_weight: float = 1.0,
        soft: bool = True,
    ) -> None:
        super().__init__(base)
        self.threshold = check_range("threshold", threshold, 0, 1)
        self.head_weight = check_range("head_weight", head_weight)
        self.soft = soft

    def setup(self, model: nn.Module, task: Task) -> None:
        """The balanced head becomes a part of the model, so that it is averaged with it; how often a class counts."""
        super().setup(model, task)
        head = model.get_submodule("head")
        assert isinstance(head, nn.Linear)
        balanced = nn.Linear(head.in_features, task.classes)
        nn.init.xavier_normal_(balanced.weight)
        nn.init.zeros_(balanced.bias)
        model.add_module("balanced", balanced.to(head.weight.device))
        counts = task.label_counts.float().cpu()
        self.register_buffer("rates", counts[counts > 0].min() / counts.clamp(min=counts[counts > 0].min()))

    def classifier(self, model: nn.Module) -> nn.Module:
        """The averaged backbone under the averaged balanced head."""
        backbone, head = model.get_submodule("backbone"), model.get_submodule("balanced")
        assert isinstance(head, nn.Linear)
        return Classifier(backbone, head).train(model.training)

    def extra(self, step: Seen) -> dict[str, Tensor]:
        """Labeled and unlabeled cross entropy of the balanced head, frequent classes thinned out at random."""
        assert step.weak is not None
        head, batch, (labeled, strong, *_) = step.model.get_submodule("balanced"), step.batch, step.taught
        mask = torch.bernoulli(self.rates[batch.y])
        with torch.no_grad():
            pseudo = self.pseudo_label_by_head(head(step.weak.features), step)
        return {
            "balanced": self.head_weight * PseudoLabels(batch.y, mask).loss(head(labeled.features)),
            "balanced_unlabeled": self.head_weight * pseudo.loss(head(strong.features), batch.weights),
        }

    def pseudo_label_by_head(self, logits: Tensor, step: Step) -> PseudoLabels:
        """The balanced head's own confident labels; classes are thinned out more and more as the run goes on."""
        probs = logits.float().softmax(1)
        confidence, labels = probs.max(1)
        kept = torch.bernoulli(1 - step.progress * (1 - self.rates[labels]))
        return PseudoLabels(probs if self.soft else labels, kept * (confidence >= self.threshold))

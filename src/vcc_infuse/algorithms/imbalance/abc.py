"""ABC (Lee et al., NeurIPS 2021): an auxiliary balanced classifier, a second head trained on balanced classes."""

import torch
from torch import Tensor, nn

from ...errors import check_range
from ...models import Classifier
from ...types import PseudoLabels, Step, Task
from ..base import PseudoLabeling
from ..ops import head_of
from .wrapper import WrappedStep, Wrapper


class ABC(Wrapper):
    """The base trains the backbone and its own head; a balanced head is trained alongside and predicts at test time.

    The second strong view of the paper is left out. A calibrator applies to the head of the base.

    Args:
        threshold: confidence of the balanced head that its own pseudo labels must reach.
        head_weight: factor of the losses of the balanced head.
        soft: use the prediction for the weak view as a soft target, as in the paper, instead of a hard label.

    References:
        Lee, Shin and Kim, ABC: Auxiliary Balanced Classifier for Class-imbalanced Semi-supervised Learning, NeurIPS
        2021.
    """

    needs_strong = True
    lazy_strong = False  # the balanced head selects rows of its own

    def __init__(
        self,
        base: PseudoLabeling | None = None,
        *,
        threshold: float = 0.95,
        head_weight: float = 1.0,
        soft: bool = True,
    ) -> None:
        super().__init__(base)
        self.threshold = check_range("threshold", threshold, 0, 1)
        self.head_weight = check_range("head_weight", head_weight)
        self.soft = soft

    def setup(self, model: nn.Module, task: Task) -> None:
        """The balanced head, added to the model so that it is averaged too, and the fraction of each class to keep."""
        super().setup(model, task)
        head = head_of(model)
        balanced = nn.Linear(head.in_features, task.classes)
        nn.init.xavier_normal_(balanced.weight)
        nn.init.zeros_(balanced.bias)
        model.add_module("balanced", balanced.to(head.weight.device))
        counts = task.label_counts.float().cpu()
        rarest = counts[counts > 0].min()
        self.keep_rates = nn.Buffer(rarest / counts.clamp(min=rarest))

    def classifier(self, model: nn.Module) -> nn.Module:
        """The averaged backbone with the averaged balanced head."""
        head = model.get_submodule("balanced")
        assert isinstance(head, nn.Linear)
        return Classifier(model.get_submodule("backbone"), head).train(model.training)

    def wrapper_losses(self, step: WrappedStep) -> dict[str, Tensor]:
        """Labeled and unlabeled cross entropy of the balanced head; frequent classes are subsampled at random."""
        assert step.weak is not None
        batch = step.batch
        head = step.model.get_submodule("balanced")
        labeled, strong, *_ = step.outputs
        mask = torch.bernoulli(self.keep_rates[batch.y])
        with torch.no_grad():
            pseudo = self.balanced_pseudo_label(head(step.weak.features), step)
        return {
            "balanced": self.head_weight * PseudoLabels(batch.y, mask).loss(head(labeled.features)),
            "balanced_unlabeled": self.head_weight * pseudo.loss(head(strong.features), batch.weights),
        }

    def balanced_pseudo_label(self, logits: Tensor, step: Step) -> PseudoLabels:
        """Confident labels of the balanced head; frequent classes are subsampled more strongly as training proceeds."""
        probs = logits.float().softmax(1)
        confidence, labels = probs.max(1)
        kept = torch.bernoulli(1 - step.progress * (1 - self.keep_rates[labels]))
        return PseudoLabels(probs if self.soft else labels, kept * (confidence >= self.threshold))

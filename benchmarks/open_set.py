"""How other methods treat images of no class, as far as it can be written around FixMatch on frozen features.

SSB (Fan et al., 2023) leaves the pool as it is and learns a detector beside the classifier: where features are frozen,
its classifier is FixMatch's, so that it has no row of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vcc_infuse.algorithms import FixMatch
from vcc_infuse.types import Calibrated, PseudoLabels, Step, Task

USUAL = 0.95  # of the labeled images have an energy below the bound


@dataclass(kw_only=True, eq=False, repr=False)
class EnergyFixMatch(FixMatch):
    """FixMatch that trusts only images whose energy (Liu et al., 2020) is usual among the labeled ones."""

    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """FixMatch's labels, without those of high energy."""
        pseudo = super().pseudo_label(calibrated, step)
        assert calibrated.outputs is not None
        with torch.no_grad():
            bound = energy(step.model(step.batch.x).logits).quantile(USUAL)
        usual = energy(calibrated.outputs.logits) <= bound
        return pseudo._replace(weights=pseudo.weights * usual)


def energy(logits: Tensor) -> Tensor:
    """High where no class is likely."""
    return -logits.detach().float().logsumexp(1)


@dataclass(kw_only=True, eq=False, repr=False)
class InlierFixMatch(FixMatch):
    """IOMatch's choice of inliers (Li et al., 2023): one head per class says whether an image belongs to it at all.

    Its second classifier for known and unknown classes acts on the first one through features alone, which are frozen
    here, and is left out.
    """

    def setup(self, model: nn.Module, task: Task) -> None:
        """Two logits per class: not of it, and of it."""
        head = model.head
        assert isinstance(head, nn.Linear)
        self.belongs = nn.Linear(head.in_features, 2 * task.classes)

    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """FixMatch's labels, without those of images that more likely belong to no class."""
        pseudo = super().pseudo_label(calibrated, step)
        with torch.no_grad():
            inlier = (calibrated.probs * self.inside(calibrated.features).exp()[:, 1]).sum(1)
        return pseudo._replace(weights=pseudo.weights * (inlier > 0.5))

    def extra_losses(self, strong: Tensor, pseudo: PseudoLabels, step: Step) -> dict[str, Tensor]:
        """The heads learn from labels: their own class, and the other class that is nearest to being taken for it."""
        with torch.no_grad():
            features = step.model(step.batch.x).features
        logs = self.inside(features)
        own = F.one_hot(step.batch.y, logs.shape[2]).bool()
        away = (-logs[:, 0]).masked_fill(own, 0).amax(1)
        return {"belongs": (away - logs[:, 1][own]).mean()}

    def inside(self, features: Tensor) -> Tensor:
        """Log-probabilities of shape (batch, 2, classes)."""
        logits: Tensor = self.belongs(features.float())
        return logits.view(len(features), 2, -1).log_softmax(1)

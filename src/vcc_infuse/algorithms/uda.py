"""UDA (Xie et al., NeurIPS 2020): sharpened, confident predictions for weak views are the targets of strong views."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from ..types import Calibrated, PseudoLabels, Step
from ..utils.params import number
from .fixmatch import FixMatch
from .ops import sharpen

SCHEDULES: dict[str, Callable[[float], float]] = {
    "none": lambda progress: 1.0,
    "linear": lambda progress: progress,
    "exp": lambda progress: math.exp(5 * (progress - 1)),
    "log": lambda progress: 1 - math.exp(-5 * progress),
}


@dataclass(kw_only=True, eq=False, repr=False)
class UDA(FixMatch):
    """FixMatch with soft, sharpened targets.

    Args:
        temperature: of the sharpening; a value below 1 makes targets more confident.
        annealing: training signal annealing, the schedule by which labeled examples with a high probability of the
            true class are included; "none" always uses all of them.

    References:
        Xie et al., Unsupervised Data Augmentation for Consistency Training, NeurIPS 2020.
    """

    threshold: float = number(0.8, 0, 1)
    temperature: float = number(0.4, 0.001)
    annealing: Literal["none", "linear", "exp", "log"] = "none"

    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Sharpened targets, with weight 1 from the threshold upward and 0 below."""
        targets = sharpen(calibrated.probs.detach(), self.temperature)
        return PseudoLabels(targets, (calibrated.confidence >= self.threshold).float())

    def labeled_term(self, logits: Tensor, step: Step) -> Tensor:
        """The annealed labeled loss."""
        return annealed_loss(logits, step.batch.y, SCHEDULES[self.annealing](step.progress))


def annealed_loss(logits: Tensor, y: Tensor, released: float) -> Tensor:
    """Mean cross entropy of the examples whose true class has at most a given probability.

    That probability rises from 1/K to 1 as `released` rises from 0 to 1.
    """
    losses = F.cross_entropy(logits.float(), y, reduction="none")
    if released >= 1:
        return losses.mean()
    floor = 1 / logits.shape[1]
    kept = (losses.detach().neg().exp() <= released * (1 - floor) + floor).float()
    return (losses * kept).sum() / kept.sum().clamp(min=1)

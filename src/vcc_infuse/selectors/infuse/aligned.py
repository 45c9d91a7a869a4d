"""AlignedINFUSE: INFUSE with a gradient that also knows how many examples each class has.

A head has all but memorized its few labels, so their gradient, which INFUSE ranks by, says little about unseen images.
The pool says more: where its predictions, taken together, name some classes too often, they must be wrong. The nearest
predictions with the class shares of the labels, the rows scaled to 1 and the columns to those shares in turn, stand for
the truth. Every class counts the same, however far the head is from it: the gradients of its images in the pool and of
its labels are scaled to length 1 and summed. The table `beyond-selection` compares it with INFUSE.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import UserError
from ...utils.params import integer
from ..base import Granularity
from ..pool import Pool, mean_gradient
from .infuse import INFUSE

ROUNDS = 20
TINY = 1e-6


@dataclass(kw_only=True, eq=False, repr=False)
class AlignedINFUSE(INFUSE):
    """The examples with the best influence on labels and class shares.

    Args:
        shares: class shares that the pool is taken to have: those of the labels, or "estimated" on frozen features.
        support_views: augmented views per labeled image; 0 takes enough for a support set of 1,024.
        sample: random examples of the pool from which the class shares of the predictions are taken.
    """

    params: Literal["head", "all"] = field(default="head", init=False)
    granularity: Granularity = field(default="example", init=False)
    rank: Literal["corrected", "printed"] = field(default="corrected", init=False)
    curvature: Literal["identity", "gauss_newton"] = field(default="identity", init=False)
    mixup_draws: int = field(default=8, init=False)
    support_size: int = field(default=0, init=False)  # not used
    damping: float = field(default=0.1, init=False)
    sample: int = integer(4096)
    shares: Literal["labels", "estimated"] = "labels"

    def score(self, *args: Any, **kwargs: Any) -> Tensor:
        """Refuse: weak views of the pool are needed, too."""
        raise UserError("AlignedINFUSE scores the pool of a run only; choose INFUSE or RobustINFUSE to score features")

    def gradient(self, pool: Pool) -> Tensor:
        """The sum over classes, of pool and labels: near convergence the gradient of the labels is far shorter."""
        weak = pool.sample_weak(self.sample)
        labeled, y = pool.labeled_features(self.views(pool))
        probs = weak.logits.softmax(1)
        shares = pool.task.pool_shares if self.shares == "estimated" else pool.task.label_counts
        assert shares is not None
        target = aligned(probs, shares.to(probs))
        truth = F.one_hot(y, probs.shape[1])
        of_pool = sum_over_classes(probs - target, weak.features, target.argmax(1))
        return of_pool + sum_over_classes(labeled.logits.softmax(1) - truth, labeled.features, y)


def aligned(probs: Tensor, counts: Tensor) -> Tensor:
    """The distributions nearest to `probs` (in KL divergence) whose sum is in proportion to `counts`."""
    shares = counts / counts.sum()
    for _ in range(ROUNDS):
        probs = probs * (shares / probs.mean(0).clamp_min(TINY))
        probs = probs / probs.sum(1, keepdim=True).clamp_min(TINY)
    return probs


def sum_over_classes(errors: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """The mean gradient of the rows of each class, scaled to length 1, in sum, `(classes, width + 1)`."""
    order = labels.argsort(stable=True)
    scale = torch.zeros_like(errors[:, 0])
    for members in torch.split(order, torch.bincount(labels).tolist()):
        if len(members):
            scale[members] = 1 / gradient_length(errors[members], features[members]).clamp_min(TINY**2)
    scaled = errors * scale[:, None]
    return torch.cat([scaled.T @ features, scaled.sum(0)[:, None]], 1)


def gradient_length(errors: Tensor, features: Tensor) -> Tensor:
    """The length of the sum of the rows' gradients.

    Of few rows by their inner products: with 1,000 classes the sum itself is a thousand times as much to compute.
    """
    rows, classes = errors.shape
    if rows * (classes + features.shape[1]) > classes * features.shape[1]:
        whole: Tensor = torch.linalg.vector_norm(rows * mean_gradient(errors, features))
        return whole
    return ((errors @ errors.T) * (features @ features.T + 1)).sum().clamp_min(0).sqrt()

"""AlignedINFUSE: INFUSE with a gradient that also knows how many examples each class has.

A head has all but memorized its few labels, so their gradient, which INFUSE ranks by, says little about unseen images.
The pool says more: where its predictions, taken together, name some classes too often, they must be wrong. The nearest
predictions with the class shares of the labels, the rows scaled to 1 and the columns to those shares in turn, stand for
the truth. Every class counts the same, however far the head is from it: the gradients of its images in the pool and of
its labels are scaled to length 1 and summed. The table `beyond-selection` compares it with INFUSE.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import check_integer
from ..base import FirstInterval, ScoreWith
from ..head_gradients import mean_gradient
from ..pool import Pool
from .infuse import INFUSE

ROUNDS = 20
TINY = 1e-6


class AlignedINFUSE(INFUSE):
    """The examples with the best influence on labels and class shares. The pool must have the shares of the labels.

    Args:
        keep: fraction of the pool to keep, and of the optimizer steps to take.
        every: optimizer steps between refreshes; if None, 40/1024 of the run, or what a short run can afford.
        support_views: augmented views per labeled image; 0 takes enough for a support set of 1,024.
        sample: random examples of the pool from which the class shares of the predictions are taken.
        score_with: score with the "online" or the averaged ("ema") weights.
        first_interval: core set of the first interval: "random", the "full" pool, or "score" with the untrained model.
    """

    def __init__(
        self,
        keep: float = 0.4,
        every: int | None = None,
        support_views: int = 1,
        sample: int = 4096,
        score_with: ScoreWith = "online",
        first_interval: FirstInterval = "random",
    ) -> None:
        super().__init__(keep, every, support_views=support_views, score_with=score_with, first_interval=first_interval)
        self.sample = check_integer("sample", sample, 1)

    def gradient(self, pool: Pool) -> Tensor:
        """The sum over classes, of pool and labels: near convergence the gradient of the labels is far shorter."""
        (logits, features), (labeled, y) = pool.sample_weak(self.sample), pool.labeled_features(self.views(pool))
        probs = logits.softmax(1)
        target = aligned(probs, pool.task.label_counts.to(probs))
        truth = F.one_hot(y, probs.shape[1])
        of_pool = sum_over_classes(probs - target, features, target.argmax(1))
        return of_pool + sum_over_classes(labeled.logits.softmax(1) - truth, labeled.features, y)


def aligned(probs: Tensor, counts: Tensor) -> Tensor:
    """The distributions nearest to `probs` (in KL divergence) whose sum is in proportion to `counts`."""
    shares = counts / counts.sum()
    for _ in range(ROUNDS):
        probs = probs * (shares / probs.mean(0).clamp_min(TINY))
        probs = probs / probs.sum(1, keepdim=True).clamp_min(TINY)
    return probs


def sum_over_classes(errors: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """The mean gradient of the rows of each class, scaled to length 1, in sum."""
    total = errors.new_zeros(errors.shape[1], features.shape[1] + 1)
    for label in torch.bincount(labels).nonzero():
        own = labels == label
        gradient = mean_gradient(errors[own], features[own])
        total += F.normalize(gradient.flatten(), dim=0).view_as(gradient)
    return total

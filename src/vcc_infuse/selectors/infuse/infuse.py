"""INFUSE (VCC-INFUSE, IJCAI 2024): keep the unlabeled examples whose influence lowers the validation loss most.

score(u) = dL(V)/dε = −∇L(V)ᵀ H⁻¹ ∇L_U(u), with feature-level Mixup of labeled examples in place of V.
A positive score raises the validation loss, so the lowest scores are kept unless `rank="printed"`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, cast

import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import check_choice, check_integer, check_range
from ..base import FirstInterval, ScoreWith
from ..head_gradients import alignment
from ..pool import Pool, PoolChunk
from ..scoring import GRANULARITIES, Granularity, ScoredSelector, example_columns, group_scores, random_groups
from .influence import GaussNewton, SupportGradient, directional_derivatives, full_direction, support_gradient

MIXUP = 21  # key of a random stream
SUPPORT_SIZE = 1024


class INFUSE(ScoredSelector):
    """The examples with the best influence on a Mixup support set; examples without weight come after all others.

    Args:
        keep: fraction of the pool to keep, and of the optimizer steps to take.
        every: optimizer steps between refreshes; if None, 40/1024 of the run, or what a short run can afford.
        params: parameters through which influence is measured: the "head" (closed form) or "all" of them.
        granularity: one score per "example", or one per random "batch" as in the paper.
        rank: "corrected" keeps what lowers the support loss most; "printed" keeps the highest score, which raises it.
        curvature: H is the "identity" as in the paper, or the head's "gauss_newton" matrix (needs params="head").
        mixup_draws: number of Mixup draws over the labeled set that are averaged.
        support_views: augmented views per labeled image to mix; 0 takes enough for a support set of 1,024.
        damping: added to the Gauss-Newton factors, in units of their mean eigenvalue.
        score_with: score with the "online" or the averaged ("ema") weights.
        first_interval: core set of the first interval: "random", the "full" pool, or "score" with the untrained model.
    """

    def __init__(
        self,
        keep: float = 0.4,
        every: int | None = None,
        params: Literal["head", "all"] = "head",
        granularity: Granularity = "example",
        rank: Literal["corrected", "printed"] = "corrected",
        curvature: Literal["identity", "gauss_newton"] = "identity",
        mixup_draws: int = 8,
        support_views: int = 1,
        damping: float = 0.1,
        score_with: ScoreWith = "online",
        first_interval: FirstInterval = "random",
    ) -> None:
        super().__init__(keep, every, first_interval, score_with)
        self.params = check_choice("params", params, ("head", "all"))
        self.granularity = check_choice("granularity", granularity, GRANULARITIES)
        self.rank = check_choice("rank", rank, ("corrected", "printed"))
        # Curvature is implemented for the head only.
        curvatures = ("identity", "gauss_newton") if params == "head" else ("identity",)
        self.curvature = check_choice("curvature", curvature, curvatures)
        self.mixup_draws = check_integer("mixup_draws", mixup_draws, 1)
        self.support_views = check_integer("support_views", support_views, 0)
        self.damping = check_range("damping", damping, 1e-6)

    def score(self, pool: Pool) -> dict[str, Tensor]:
        """One pass over the pool, which stores four numbers per example whatever the feature width."""
        influence_of = self._influence(pool)
        columns = pool.scan(lambda chunk: {"score": influence_of(chunk), **example_columns(chunk)})
        scores, used = columns["score"], columns["weight"]
        if self.granularity == "batch":
            scores = group_scores(scores, used, random_groups(pool))
        columns["score"] = self.value(scores)
        return columns

    def value(self, score: Tensor) -> Tensor:
        """The influence score with its sign chosen so that a higher value is kept first."""
        return -score if self.rank == "corrected" else score

    def direction(self, pool: Pool) -> Tensor:
        """H⁻¹∇L(V) of the head, classes × (width + 1). It is computed once; each chunk is then one matrix product."""
        direction = self.gradient(pool)
        if self.curvature == "identity":
            return direction
        factors = GaussNewton(
            (chunk.outputs.logits.softmax(1), chunk.outputs.features, chunk.weights) for chunk in pool.sample(4096)
        )
        return factors.solve(direction, self.damping)

    def gradient(self, pool: Pool) -> Tensor:
        """∇L(V) of the head, classes × (width + 1)."""
        return self.support(pool).head

    def views(self, pool: Pool) -> int:
        """Views per labeled image."""
        return self.support_views or math.ceil(SUPPORT_SIZE / pool.task.labeled)

    def support(self, pool: Pool) -> SupportGradient:
        """∇L(V): the gradient of the loss on Mixup of the labeled examples."""
        views = self.views(pool)
        outputs, y = pool.labeled_features(views)
        head = cast(nn.Linear, pool.model.get_submodule("head"))
        gradients = support_gradient(head, outputs.features, y, self.mixup_draws, pool.rng(MIXUP))
        return SupportGradient(*gradients, ((rows, x) for rows, x, _ in pool.labeled_chunks(views)))

    def _influence(self, pool: Pool) -> Callable[[PoolChunk], Tensor]:
        if self.params == "all":
            tangent = full_direction(pool, self.support(pool))
            return lambda chunk: -directional_derivatives(pool.model, tangent, chunk)
        direction = self.direction(pool)
        return lambda chunk: chunk_influence(direction, chunk)


def chunk_influence(direction: Tensor, chunk: PoolChunk) -> Tensor:
    """The influence score of each example of a scanned chunk."""
    return -alignment(direction, chunk.errors, chunk.outputs.features)


def influence_scores(direction: Tensor, features: Tensor, probs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """The influence score of each row, from stored features; labels are classes or distributions."""
    targets = F.one_hot(labels, probs.shape[1]) if labels.ndim == 1 else labels
    return -alignment(direction, weights[:, None] * (probs - targets), features)

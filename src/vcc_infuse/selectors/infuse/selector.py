"""INFUSE (VCC-INFUSE, IJCAI 2024): keep the unlabeled examples whose influence lowers the validation loss.

score(u) = dL(V)/dε = −∇L(V)ᵀ H⁻¹ ∇L_U(u), with feature-level Mixup of labeled examples in place of V.
A positive score raises the validation loss, so the lowest scores are kept unless `rank="paper"`. Yet scores do not say
how examples work together: the best are much alike and of few classes. So by default the sign alone decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from ...validation import check_choice, check_integer, check_range
from ..base import Warmup, Weights
from ..head_gradients import alignment
from ..pool import Pool
from ..pool_chunk import Chunk
from ..ranking import Quota
from ..scoring import GRANULARITIES, Granularity, example_columns, random_groups, shared_by_group
from .curvature import GaussNewton
from .harmless import HarmlessSampler, Take
from .jvp import full_direction, influence
from .support import support_gradient

MIXUP = 21


SUPPORT = 1024


class INFUSE(HarmlessSampler):
    """Influence on a Mixup support set.

    Args:
        keep: share of the pool to keep, and of the optimizer steps to take.
        every: steps between refreshes; if not given, 40/1024 of the run, or what a short run can afford.
        params: parameters through which influence is measured: the "head" (closed form) or "all" of them.
        granularity: a score for each "example", or one for each random "batch" as in the paper.
        rank: "helpful" keeps what lowers the support loss; "paper" keeps the highest score as printed.
        curvature: H is the "identity" as in the paper, or the head's "gauss_newton" matrix (needs params="head").
        draws: Mixup draws over the labeled set that are averaged.
        views: augmented views of each labeled image to mix; 0 takes as many as make a support set of 1,024.
        damping: added to the Gauss-Newton factors, in units of their mean eigenvalue.
        weights: score with the "online" or the averaged ("ema") weights.
        quota: share the budget among pseudo classes: "proportional" to their counts, "equal", or "none".
            With take="harmless" in proportion also to what the method selects of a class and what it does not.
        smooth: factor of past refreshes in a moving average of the scores; 0 uses the present one alone.
        random_fraction: part of the budget that is drawn at random from what the ranking leaves.
        take: "harmless" leaves out what would raise the support loss and draws the budget at random from all other
            examples; "best" keeps the best scores, as in the paper.
        redraw: with take="harmless" draw another core set, by the same scores, after each pass through the present one:
            a set that is gone through many times teaches its own mistakes.
        warmup: core set of the first interval: "random", the "full" pool, or "score" with the untrained model.
    """

    def __init__(
        self,
        keep: float = 0.4,
        every: int | None = None,
        params: Literal["head", "all"] = "head",
        granularity: Granularity = "example",
        rank: Literal["helpful", "paper"] = "helpful",
        curvature: Literal["identity", "gauss_newton"] = "identity",
        draws: int = 8,
        views: int = 1,
        damping: float = 0.1,
        weights: Weights = "online",
        quota: Quota = "proportional",
        smooth: float = 0.0,
        random_fraction: float = 0.0,
        take: Take = "harmless",
        redraw: bool = False,
        warmup: Warmup = "random",
    ) -> None:
        super().__init__(keep, every, warmup, weights, quota, smooth, random_fraction, take, redraw)
        self.params = check_choice("params", params, ("head", "all"))
        self.granularity = check_choice("granularity", granularity, GRANULARITIES)
        self.rank = check_choice("rank", rank, ("helpful", "paper"))
        # Only the head has a curvature here: with params="all" there is but the identity.
        known = ("identity", "gauss_newton") if params == "head" else ("identity",)
        self.curvature = check_choice("curvature", curvature, known)
        self.draws = check_integer("draws", draws, 1)
        self.views = check_integer("views", views, 0)
        self.damping = check_range("damping", damping, 1e-6)

    def score(self, pool: Pool) -> dict[str, Tensor]:
        """One pass over the pool that keeps four numbers an example, whatever the width of the features."""
        influence_of = self._influence(pool)
        columns = pool.scan(lambda chunk: {"score": influence_of(chunk), **example_columns(chunk)})
        scores, used = columns["score"], columns["weight"]
        if self.granularity == "batch":
            scores = shared_by_group(scores, used, random_groups(pool))
        size = scores.abs().sum() / (used > 0).sum().clamp(min=1)
        # In units of their mean size, or an average over refreshes would be ruled by the largest gradient.
        columns["score"] = self.value(scores / size.clamp(min=1e-30) if self.smooth else scores)
        return columns

    def value(self, score: Tensor) -> Tensor:
        """A number by which higher is kept first, from the influence score."""
        return -score if self.rank == "helpful" else score

    def direction(self, pool: Pool) -> Tensor:
        """H⁻¹∇L(V) of the head, classes × (width + 1): computed once, then every chunk is one matrix product."""
        direction = self._support(pool)[0]
        if self.curvature == "identity":
            return direction
        factors = GaussNewton(
            (chunk.outputs.logits.softmax(1), chunk.outputs.features, chunk.weights) for chunk in pool.sample(4096)
        )
        return factors.solve(direction, self.damping)

    def _views(self, pool: Pool) -> int:
        return self.views or math.ceil(SUPPORT / pool.task.labeled)

    def _support(self, pool: Pool) -> tuple[Tensor, Tensor]:
        outputs, y = pool.labeled_features(self._views(pool))
        head = pool.model.get_submodule("head")
        return support_gradient(head, outputs.features, y, self.draws, pool.rng(MIXUP))  # type: ignore[arg-type]

    def _influence(self, pool: Pool) -> Callable[[Chunk], Tensor]:
        if self.params == "all":
            tangent = full_direction(pool, *self._support(pool), self._views(pool))
            return lambda chunk: -influence(pool.model, tangent, chunk)
        direction = self.direction(pool)
        return lambda chunk: chunk_score(direction, chunk)


def chunk_score(direction: Tensor, chunk: Chunk) -> Tensor:
    """The influence score of each example of a scanned chunk."""
    return -alignment(direction, chunk.errors, chunk.outputs.features)


def score_chunk(direction: Tensor, features: Tensor, probs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """The influence score of rows in a stream of stored features; labels are classes or distributions."""
    targets = F.one_hot(labels, probs.shape[1]) if labels.ndim == 1 else labels
    return -alignment(direction, weights[:, None] * (probs - targets), features)

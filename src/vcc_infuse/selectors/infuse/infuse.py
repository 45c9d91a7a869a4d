"""INFUSE (VCC-INFUSE, IJCAI 2024): keep the unlabeled examples whose influence lowers the validation loss most.

Feature-level Mixup of labeled examples stands in for the validation set. `influence.py` has the formulas.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import UserError, check_choice
from ...types import Outputs
from ...utils.params import integer, number
from ..base import Granularity, ScoredSelector, example_columns, group_scores, random_groups
from ..pool import Pool, PoolChunk, mean_gradient
from .influence import GaussNewton, SupportGradient, directional_derivatives, full_direction, influence, mixup_errors

MIXUP = 21  # key of a random stream
SUPPORT_SIZE = 1024
CURVATURE_SIZE = 4096
Array = Tensor | np.ndarray


@dataclass(kw_only=True, eq=False, repr=False)
class INFUSE(ScoredSelector):
    """The examples with the best influence on a Mixup support set; examples without weight come after all others.

    Args:
        params: parameters through which influence is measured: the "head" (closed form) or "all" of them.
        granularity: one score per "example", or one per random "batch" as in the paper.
        rank: "corrected" keeps what lowers the support loss most; "printed" keeps the highest score, which raises it.
        curvature: H is the "identity" as in the paper, or the head's "gauss_newton" matrix (needs params="head").
        mixup_draws: number of Mixup draws over the labeled set that are averaged.
        support_views: augmented views per labeled image to mix; 0 takes enough for a support set of 1,024.
        support_size: views to mix at most; of more, every selection draws a random part, whose gradient is on average
            that of all.
        damping: added to the Gauss-Newton factors, in units of their mean eigenvalue.

    References:
        Fang et al.: VCC-INFUSE: Towards Accurate and Efficient Selection of Unlabeled Examples in Semi-supervised
        Learning. IJCAI 2024.

    Example:
        In a training loop of your own, with features and logits of any network that ends in a linear layer:

        >>> import torch
        >>> from vcc_infuse import INFUSE
        >>> _ = torch.manual_seed(0)
        >>> head, pool, labeled = torch.nn.Linear(4, 3), torch.randn(10, 4), torch.randn(6, 4)
        >>> infuse = INFUSE(keep=0.3)
        >>> scores = infuse.score(
        ...     pool, head(pool), support_features=labeled, support_labels=torch.arange(6) % 3, head=head
        ... )
        >>> scores.shape, infuse.choose_from(scores).shape
        (torch.Size([10]), torch.Size([3]))
    """

    params: Literal["head", "all"] = "head"
    granularity: Granularity = "example"
    rank: Literal["corrected", "printed"] = "corrected"
    curvature: Literal["identity", "gauss_newton"] = "identity"
    mixup_draws: int = integer(8)
    support_views: int = integer(1, 0)
    support_size: int = integer(4096, 2)
    damping: float = number(0.1, 1e-6)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.params == "all":  # curvature is implemented for the head only
            check_choice("curvature", self.curvature, ("identity",))

    @torch.no_grad()
    def score(
        self,
        features: Array,
        logits: Array,
        *,
        support_features: Array,
        support_labels: Array,
        head: nn.Linear | tuple[Array, Array | None],
        targets: Array | None = None,
        weights: Array | None = None,
        seed: int = 0,
    ) -> Tensor:
        """Score a pool given as tensors or NumPy arrays, for a training loop of your own.

        Args:
            features: inputs of the head, `(pool, width)`, for the view that is trained on.
            logits: outputs of the head for them, `(pool, classes)`.
            support_features: inputs of the head for labeled examples, `(labeled, width)`.
            support_labels: their classes, `(labeled,)`.
            head: the linear layer, or its weight `(classes, width)` and bias `(classes,)` or None.
            targets: pseudo labels: classes `(pool,)`, or distributions `(pool, classes)`. If None, the largest logit.
            weights: how much each pseudo label counts in the loss, `(pool,)`, such as 1 above a threshold of
                confidence and 0 below. If None, all count the same.
            seed: seed of Mixup.

        Returns:
            Scores, `(pool,)`: the larger, the better to keep; −inf where the weight is zero.
        """
        if self.params != "head" or self.granularity != "example":
            raise UserError('scores of features need params="head" and granularity="example"; leave out these options')
        device = torch.as_tensor(features).device
        outputs = Outputs(_floats(logits, device), _floats(features, device))
        target = outputs.logits.argmax(1) if targets is None else torch.as_tensor(targets, device=device)
        weight = torch.ones(len(target), device=device) if weights is None else _floats(weights, device)
        parts = (head.weight, head.bias) if isinstance(head, nn.Linear) else head
        rng = np.random.default_rng([seed, MIXUP])
        mixed = _floats(support_features, device)
        labels = torch.as_tensor(support_labels, device=device)
        population = len(labels)
        if population > self.support_size:
            part = rng.choice(population, self.support_size, replace=False)
            mixed = mixed[part]
            labels = labels[part]
        own_head = (_floats(parts[0], device), None if parts[1] is None else _floats(parts[1], device))
        errors = mixup_errors(
            mixed, labels, head=own_head, mixup_draws=self.mixup_draws, rng=rng, population=population
        )
        gradient = mean_gradient(errors, mixed)
        rows = rng.permutation(len(target))[:CURVATURE_SIZE]
        sample = outputs.logits[rows].softmax(1), outputs.features[rows], weight[rows]
        direction = self._precondition(gradient, [sample])
        scores = influence(outputs.features, outputs.logits, targets=target, direction=direction, weights=weight)
        return self.value(scores).masked_fill(weight == 0, -math.inf)

    def score_pool(self, pool: Pool) -> dict[str, Tensor]:
        """One pass over the pool, which stores four numbers per example whatever the feature width."""
        influence_of = self._influence(pool)
        columns = pool.scan(lambda chunk: {"score": influence_of(chunk), **example_columns(chunk)})
        if self.granularity == "batch":
            columns["score"] = group_scores(columns["score"], columns["weight"], random_groups(pool))
        return columns | {"score": self.value(columns["score"])}

    def value(self, influence: Tensor) -> Tensor:
        """The influence with its sign chosen so that a higher value is kept first."""
        return -influence if self.rank == "corrected" else influence

    def direction(self, pool: Pool) -> Tensor:
        """H⁻¹∇L(V) of the head, `(classes, width + 1)`: computed once, so that each chunk is one matrix product."""
        sample = ((c.outputs.logits.softmax(1), c.outputs.features, c.weights) for c in pool.sample(CURVATURE_SIZE))
        return self._precondition(self.gradient(pool), sample)

    def gradient(self, pool: Pool) -> Tensor:
        """∇L(V) of the head, `(classes, width + 1)`."""
        return self.support(pool).head

    def views(self, pool: Pool) -> int:
        """Views per labeled image."""
        return self.support_views or math.ceil(SUPPORT_SIZE / pool.task.labeled)

    def support(self, pool: Pool) -> SupportGradient:
        """∇L(V): the gradient of the loss on Mixup of the labeled examples."""
        views = self.views(pool)
        outputs, y = pool.labeled_features(views, self.support_size)
        head = cast(nn.Linear, pool.model.get_submodule("head"))
        errors = mixup_errors(
            outputs.features,
            y,
            head=(head.weight, head.bias),
            mixup_draws=self.mixup_draws,
            rng=pool.rng(MIXUP),
            population=views * pool.task.labeled,
        )
        chunks = ((rows, x) for rows, x, _ in pool.labeled_chunks(views, self.support_size))
        return SupportGradient(mean_gradient(errors, outputs.features), errors, head.weight, chunks)

    def _precondition(self, gradient: Tensor, batches: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
        if self.curvature == "identity":
            return gradient
        return GaussNewton(batches).solve(gradient, self.damping)

    def _influence(self, pool: Pool) -> Callable[[PoolChunk], Tensor]:
        if self.params == "all":
            tangent = full_direction(pool, self.support(pool))
            return lambda chunk: -directional_derivatives(pool.model, tangent, chunk)
        direction = self.direction(pool)
        return lambda chunk: chunk.spread(
            influence(
                chunk.learned.features,
                chunk.learned.logits,
                targets=chunk.targets[chunk.rows],
                direction=direction,
                weights=chunk.weights[chunk.rows],
            )
        )


def _floats(values: Array, device: torch.device) -> Tensor:
    return torch.as_tensor(values, device=device).detach().float()

"""RETRIEVE (Killamsetty et al., NeurIPS 2021): greedily add what lowers the labeled loss after one more step."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import check_choice, check_integer, check_range
from ..types import Outputs
from .base import SCORE_WITH, FirstInterval, ScoreWith, Selector, uniform
from .head_gradients import Atoms, ExampleGradients, GroupGradients, augmented, mean_gradient
from .pool import Pool
from .ranking import Selection, order
from .scoring import GRANULARITIES, Granularity, example_columns, random_groups, table


class RETRIEVE(Selector):
    """Bilevel selection with the head's gradients.

    The look-ahead step follows the labeled gradient and the sum of the unlabeled gradients (of batches: of their means)
    of the core set so far. The labeled gradient is recomputed after every round.

    Args:
        keep: fraction of the pool to keep, and of the optimizer steps to take.
        every: optimizer steps between refreshes; if None, 40/1024 of the run, or what a short run can afford.
        lr: learning rate of the look-ahead step; 0 keeps the examples best aligned with the labeled gradient.
        rounds: how often the labeled gradient is recomputed until the budget is reached.
        granularity: add single examples ("example") or random batches ("batch").
        score_with: score with the "online" or the averaged ("ema") weights.
        first_interval: core set of the first interval: "random", the "full" pool, or "score" with the untrained model.
    """

    def __init__(
        self,
        keep: float = 0.4,
        every: int | None = None,
        lr: float = 0.03,
        rounds: int = 15,
        granularity: Granularity = "example",
        score_with: ScoreWith = "online",
        first_interval: FirstInterval = "random",
    ) -> None:
        super().__init__(keep, every, first_interval)
        self.lr = check_range("lr", lr, 0)
        self.rounds = check_integer("rounds", rounds, 1)
        self.granularity = check_choice("granularity", granularity, GRANULARITIES)
        self.score_with = check_choice("score_with", score_with, SCORE_WITH)

    def choose(self, pool: Pool, budget: int) -> Selection:
        """Score each example by how early it is picked."""
        columns = pool.scan(lambda c: {"features": c.outputs.features, "errors": c.errors, **example_columns(c)})
        outputs, y = pool.labeled_features()
        labeled = Lookahead(outputs, y, self.lr, float(getattr(pool.algorithm, "weight", 1.0)))
        errors, features, used = columns["errors"], columns["features"], columns["weight"]
        if self.granularity == "batch":
            groups = [group for group in random_groups(pool) if used[group].sum() > 0]
            sizes = torch.stack([(used[group] > 0).sum() for group in groups]) if groups else torch.zeros(0)
        else:
            groups = list((used > 0).nonzero())
            sizes = torch.ones(len(groups))
        picks = self._pick(errors, features, used, groups, sizes, labeled, budget) if groups else []
        columns["score"] = torch.full((pool.size,), -math.inf)
        for place, pick in enumerate(picks):
            columns["score"][groups[pick]] = -float(place)
        rows = table(columns)
        return Selection(uniform(order(rows)[:budget]), rows)

    def _pick(self, errors: Tensor, features: Tensor, used: Tensor, groups: list[Tensor], sizes: Tensor,
              labeled: Lookahead, budget: int) -> list[int]:  # fmt: skip
        if self.granularity == "batch":
            atoms: Atoms = GroupGradients(errors, features, used, groups)
            return greedy(atoms, labeled, sizes.float(), budget, len(groups))
        rows = torch.cat(groups)
        return greedy(ExampleGradients(errors[rows], features[rows]), labeled, sizes, budget, self.rounds)


class Lookahead:
    """The labeled loss after a look-ahead step of the head; only the labeled logits need to be stored."""

    def __init__(self, outputs: Outputs, y: Tensor, lr: float, weight: float) -> None:
        self.features = outputs.features.cpu()
        self.truth = F.one_hot(y.cpu(), outputs.logits.shape[1]).float()
        self.logits, self.lr, self.weight = outputs.logits.cpu().clone(), lr, weight
        self.step(self.gradient())

    def gradient(self) -> Tensor:
        """The gradient of the mean labeled cross entropy after the steps so far."""
        return mean_gradient(self.logits.softmax(1) - self.truth, self.features)

    def step(self, gradient: Tensor) -> None:
        """One SGD step of the head."""
        self.logits -= self.lr * augmented(self.features) @ gradient.T


def greedy(atoms: Atoms, labeled: Lookahead, sizes: Tensor, budget: int, rounds: int) -> list[int]:
    """Indices of atoms in the order they are picked, until their sizes reach `budget` or none is left."""
    left = min(budget, int(sizes.sum()))
    free, picked = torch.ones(len(atoms), dtype=torch.bool), []
    for rounds_left in range(min(rounds, len(atoms)), 0, -1):
        if left <= 0:
            break
        gains = atoms.against(labeled.gradient()).masked_fill(~free, -math.inf)
        ranked = gains.argsort(descending=True, stable=True)[: int(free.sum())]
        goal = math.ceil(left / rounds_left)
        enough = int((sizes[ranked].cumsum(0) < goal).sum()) + 1
        best = ranked[:enough]
        # The sum, as in the original: by the mean, a step of a usual learning rate moves nothing, and the core set is
        # the top of the first round's gains.
        labeled.step(labeled.weight * atoms.total(best, torch.ones(len(best))))
        free[best] = False
        left -= int(sizes[best].sum())
        picked += best.tolist()
    return picked

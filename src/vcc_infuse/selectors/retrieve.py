"""RETRIEVE (Killamsetty et al., NeurIPS 2021): greedily add what lowers the labeled loss after one more step."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..types import Outputs
from ..validation import check_choice, check_integer, check_range
from .base import Selector, Warmup, Weights, uniform
from .head_gradients import Atoms, ExampleGradients, GroupGradients, augmented, mean_gradient
from .pool import Pool
from .ranking import order
from .scoring import GRANULARITIES, Granularity, example_columns, random_groups, table
from .selection import Selection


class RETRIEVE(Selector):
    """Bilevel selection with the head's gradients.

    The imagined step goes along the labeled gradient and the mean unlabeled gradient of the core set so far;
    after every round the labeled gradient is taken anew.

    Args:
        keep: share of the pool to keep, and of the optimizer steps to take.
        every: steps between refreshes; if not given, 40/1024 of the run, or what a short run can afford.
        lr: length of the imagined step; with 0 the examples best aligned with the labeled gradient are kept.
        rounds: times the labeled gradient is renewed on the way to the budget.
        granularity: add single examples, or random batches ("batch").
        weights: score with the "online" or the averaged ("ema") weights.
        warmup: core set of the first interval: "random", the "full" pool, or "score" with the untrained model.
    """

    def __init__(
        self,
        keep: float = 0.4,
        every: int | None = None,
        lr: float = 0.03,
        rounds: int = 15,
        granularity: Granularity = "example",
        weights: Weights = "online",
        warmup: Warmup = "random",
    ) -> None:
        super().__init__(keep, every, warmup)
        self.lr = check_range("lr", lr, 0)
        self.rounds = check_integer("rounds", rounds, 1)
        self.granularity = check_choice("granularity", granularity, GRANULARITIES)
        self.weights = check_choice("weights", weights, ("online", "ema"))

    def choose(self, pool: Pool, budget: int) -> Selection:
        """Score an example by how early it is picked."""
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
    """The labeled loss after an imagined step of the head; only the labeled logits need to be kept."""

    def __init__(self, outputs: Outputs, y: Tensor, lr: float, weight: float) -> None:
        self.features = outputs.features.cpu()
        self.truth = F.one_hot(y.cpu(), outputs.logits.shape[1]).float()
        self.logits, self.lr, self.weight = outputs.logits.cpu().clone(), lr, weight
        self.move(self.gradient())

    def gradient(self) -> Tensor:
        """Of the mean labeled cross entropy, with the true labels, at the imagined point."""
        return mean_gradient(self.logits.softmax(1) - self.truth, self.features)

    def move(self, gradient: Tensor) -> None:
        """Step the head along a gradient."""
        self.logits -= self.lr * augmented(self.features) @ gradient.T


def greedy(atoms: Atoms, labeled: Lookahead, sizes: Tensor, budget: int, rounds: int) -> list[int]:
    """Atoms in the order in which they are picked, until their sizes reach `budget` or none is left."""
    left = min(budget, int(sizes.sum()))
    free, picked = torch.ones(len(atoms), dtype=torch.bool), []
    for after in range(min(rounds, len(atoms)), 0, -1):
        if left <= 0:
            break
        gains = atoms.against(labeled.gradient()).masked_fill(~free, -math.inf)
        ranked = gains.argsort(descending=True, stable=True)[: int(free.sum())]
        goal = math.ceil(left / after)
        enough = int((sizes[ranked].cumsum(0) < goal).sum()) + 1
        best = ranked[:enough]
        labeled.move(labeled.weight / budget * atoms.total(best, sizes[best]))
        free[best] = False
        left -= int(sizes[best].sum())
        picked += best.tolist()
    return picked

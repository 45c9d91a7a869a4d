"""RETRIEVE (Killamsetty et al., NeurIPS 2021): greedily add what lowers the labeled loss after one more step."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..types import Outputs
from ..utils.params import integer, number
from .base import Granularity, Selector, gradient_columns, random_groups, table, uniform
from .pool import ExampleGradients, GroupGradients, Pool, augmented, mean_gradient
from .ranking import Selection, order


class Lookahead:
    """The labeled loss after a look-ahead step of the head; only the labeled logits need to be stored."""

    def __init__(self, outputs: Outputs, y: Tensor, lr: float, weight: float) -> None:
        self.features = outputs.features.cpu()
        self.truth = F.one_hot(y.cpu(), outputs.logits.shape[1]).float()
        self.logits = outputs.logits.cpu().clone()
        self.lr = lr
        self.weight = weight
        self.step(self.gradient())

    def gradient(self) -> Tensor:
        """The gradient of the mean labeled cross entropy after the steps so far, `(classes, width + 1)`."""
        return mean_gradient(self.logits.softmax(1) - self.truth, self.features)

    def step(self, gradient: Tensor) -> None:
        """One SGD step of the head."""
        self.logits -= self.lr * augmented(self.features) @ gradient.T


def greedy(
    atoms: ExampleGradients | GroupGradients, labeled: Lookahead, sizes: Tensor, budget: int, rounds: int
) -> list[int]:
    """Indices of atoms in the order they are picked, until their sizes reach `budget` or none is left."""
    left = min(budget, int(sizes.sum()))
    free = torch.ones(len(sizes), dtype=torch.bool)
    picked: list[int] = []
    for rounds_left in range(min(rounds, len(sizes)), 0, -1):
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


@dataclass(kw_only=True, eq=False, repr=False)
class RETRIEVE(Selector):
    """Bilevel selection with the head's gradients.

    The look-ahead step follows the labeled gradient and the sum of the unlabeled gradients (of batches: of their means)
    of the core set so far. The labeled gradient is recomputed after every round.

    Args:
        lr: learning rate of the look-ahead step; 0 keeps the examples best aligned with the labeled gradient.
        rounds: how often the labeled gradient is recomputed until the budget is reached.
        granularity: add single examples ("example") or random batches ("batch").

    References:
        Killamsetty et al.: RETRIEVE: Coreset Selection for Efficient and Robust Semi-Supervised Learning. NeurIPS 2021.
    """

    lr: float = number(0.03)
    rounds: int = integer(15)
    granularity: Granularity = "example"

    def choose(self, pool: Pool, budget: int) -> Selection:
        """Score each example by how early it is picked."""
        columns = pool.scan(gradient_columns)
        outputs, y = pool.labeled_features()
        labeled = Lookahead(outputs, y, self.lr, float(getattr(pool.algorithm, "weight", 1.0)))
        columns["score"] = torch.full((pool.size,), -math.inf)
        for place, group in enumerate(self._pick(pool, columns, labeled, budget)):
            columns["score"][group] = -float(place)
        rows = table(columns)
        return Selection(uniform(order(rows)[:budget]), rows)

    def _pick(self, pool: Pool, columns: dict[str, Tensor], labeled: Lookahead, budget: int) -> list[Tensor]:
        """Groups of pool ids in the order in which they are picked."""
        errors = columns["errors"]
        features = columns["features"]
        used = columns["weight"]
        if self.granularity == "example":
            ids = (used > 0).nonzero()[:, 0]
            examples = ExampleGradients(errors[ids], features[ids])
            return list(ids[greedy(examples, labeled, torch.ones(len(ids)), budget, self.rounds)])
        groups = [group for group in random_groups(pool) if used[group].sum() > 0]
        if not groups:
            return []
        sizes = torch.stack([(used[group] > 0).sum() for group in groups]).float()
        batches = GroupGradients(errors, features, used, groups)
        return [groups[pick] for pick in greedy(batches, labeled, sizes, budget, len(groups))]

"""GradMatch (Killamsetty et al., ICML 2021): a weighted subset whose gradient matches that of the whole pool."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..types import Coreset
from ..utils.params import integer, number
from .base import Selector, gradient_columns, random_groups, table
from .pool import ExampleGradients, GroupGradients, Pool
from .ranking import Selection, order, proportional

BLOCKS, FILL = 31, 32  # keys of random streams


@dataclass(kw_only=True, eq=False, repr=False)
class GradMatch(Selector):
    """Orthogonal matching pursuit over the head's gradients; its weights (mean 1) multiply the loss.

    Args:
        ridge: penalty on large weights, in units of the mean squared norm of a gradient.
        granularity: match each pseudo "class" by its examples, or the pool by random batches ("batch").
        block: most examples matched together: a larger class is split at random, which bounds time and memory.

    References:
        Killamsetty et al.: GRAD-MATCH: Gradient Matching based Data Subset Selection. ICML 2021.
    """

    ridge: float = number(0.5)
    granularity: Literal["class", "batch"] = "class"
    block: int = integer(1000, 2)

    def choose(self, pool: Pool, budget: int) -> Selection:
        """Match; fill the places that the pursuit leaves open with further examples of average weight."""
        columns = pool.scan(gradient_columns)
        match = self._by_class if self.granularity == "class" else self._by_batch
        ids, weights = match(pool, columns, budget)
        columns["score"] = torch.zeros(pool.size)
        columns["score"][ids] = weights.float()
        rows = table(columns)
        ranked = order(rows)
        others = ranked[~np.isin(ranked, ids.numpy())]
        return Selection(filled(ids.numpy(), weights.numpy(), others, rows.selected, budget, pool.rng(FILL)), rows)

    def _by_class(self, pool: Pool, columns: dict[str, Tensor], budget: int) -> tuple[Tensor, Tensor]:
        """Ids and weights, matched block by block."""
        blocks = class_blocks(columns["label"], columns["weight"] > 0, self.block, pool.rng(BLOCKS))
        places = proportional(np.array([len(block) for block in blocks], dtype=np.int64), budget)
        ids = [torch.zeros(0, dtype=torch.long)]
        weights = [torch.zeros(0, dtype=torch.float64)]
        for block, count in zip(blocks, places, strict=True):
            gram = ExampleGradients(columns["errors"][block].double(), columns["features"][block].double()).gram()
            index, matched = self._pursue(gram, gram.sum(1), int(count))
            ids.append(block[index])
            weights.append(matched)
        return torch.cat(ids), torch.cat(weights)

    def _by_batch(self, pool: Pool, columns: dict[str, Tensor], budget: int) -> tuple[Tensor, Tensor]:
        """Ids and weights of the members of the matched batches."""
        used = columns["weight"]
        groups = [group[used[group] > 0] for group in random_groups(pool)]
        groups = [group for group in groups if len(group)]
        if not groups:
            return torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.float64)
        atoms = GroupGradients(columns["errors"].double(), columns["features"].double(), used.double(), groups)
        gram = atoms.gram()
        places = math.ceil(budget / (sum(map(len, groups)) / len(groups)))
        index, weights = self._pursue(gram, gram @ atoms.counts, places)
        chosen = [groups[i] for i in index.tolist()]
        # The pursuit weighs the mean gradient of a batch, so each member gets an equal part of the weight.
        sizes = torch.tensor([len(group) for group in chosen])
        return torch.cat(chosen)[:budget], (weights / sizes).repeat_interleave(sizes)[:budget]

    def _pursue(self, gram: Tensor, target: Tensor, places: int) -> tuple[Tensor, Tensor]:
        return Pursuit(gram, target, places, self.ridge * float(gram.diagonal().mean())).run()


def class_blocks(labels: Tensor, selected: Tensor, size: int, rng: np.random.Generator) -> list[Tensor]:
    """The selected examples of each pseudo class, split at random into nearly equal blocks of at most `size`."""
    blocks: list[Tensor] = []
    for label in torch.unique(labels[selected]).tolist():
        members = rng.permutation(torch.nonzero(selected & (labels == label))[:, 0].numpy())
        parts = np.array_split(members, math.ceil(len(members) / size))
        blocks += [torch.from_numpy(part) for part in parts]
    return blocks


def filled(
    ids: np.ndarray,
    weights: np.ndarray,
    others: np.ndarray,
    selected: np.ndarray,
    budget: int,
    rng: np.random.Generator,
) -> Coreset:
    """Weights scaled to mean 1, then `others` with weight 1: random selected ones, then the rest in order."""
    usable = rng.permutation(others[selected[others]])
    extra = np.concatenate([usable, others[~selected[others]]])[: budget - len(ids)]
    scaled = weights * (len(weights) / weights.sum()) if len(weights) else weights
    all_weights = np.concatenate([scaled, np.ones(len(extra))])
    return Coreset(torch.from_numpy(np.concatenate([ids, extra])).long(), torch.from_numpy(all_weights).float())


class Pursuit:
    """min ‖b − A x‖² + λ‖x‖² over x ≥ 0 with few positive entries, by orthogonal matching pursuit (Batch-OMP).

    This is the active-set method of Lawson & Hanson (1974), stopped when `budget` atoms are active. Each round adds the
    atom most aligned with the residual and solves for all weights again; an atom whose weight would turn negative is
    removed. `gram` is AᵀA, `target` Aᵀb, `ridge` λ.
    """

    def __init__(self, gram: Tensor, target: Tensor, budget: int, ridge: float = 0.0) -> None:
        self.gram = gram.double()
        self.target = target.double()
        self.ridge = ridge
        size = min(budget, len(target))
        self.index = torch.zeros(size, dtype=torch.long)
        self.factor = torch.zeros(size, size, dtype=torch.float64)
        self.rows = torch.zeros(size, len(target), dtype=torch.float64)
        self.x = torch.zeros(0, dtype=torch.float64)
        self.spanned = torch.zeros(len(target), dtype=torch.bool)

    def run(self, tolerance: float = 1e-9) -> tuple[Tensor, Tensor]:
        """Atoms and their positive weights; fewer than the budget if no other atom is aligned with the residual."""
        floor = tolerance * float(self.target.abs().amax()) if len(self.target) else 0.0
        barred = self.spanned.clone()
        rounds = 4 * len(self.index) + len(self.target)  # a bound, since rounding could make two atoms alternate
        for _ in range(rounds):
            if len(self.x) == len(self.index):
                break
            pull = self.target - self.x @ self.rows[: len(self.x)]
            pull[self.index[: len(self.x)]] = 0
            pull[barred | self.spanned] = 0
            value, atom = pull.max(0)
            if value <= floor:
                break
            if self._add(int(atom)):
                barred.zero_()
            else:
                barred[atom] = True  # until the set changes, or it would be tried forever
        return self.index[: len(self.x)].clone(), self.x.clone()

    def _add(self, atom: int) -> bool:
        """Add an atom and solve; False if the atom does not stay."""
        if not self._grow(atom):
            self.spanned[atom] = True
            return False
        self.x = torch.cat([self.x, torch.zeros(1, dtype=torch.float64)])
        while len(self.x):
            count = len(self.x)
            right = self.target[self.index[:count]][:, None]
            best = torch.cholesky_solve(right, self.factor[:count, :count])[:, 0]
            falling = best <= 0
            if not falling.any():
                self.x = best
                break
            ratio = torch.where(falling, self.x / (self.x - best).clamp(min=1e-300), torch.inf)
            self.x = self.x + ratio.min() * (best - self.x)
            self._restrict(~falling | (ratio > ratio.min()))
        return atom in self.index[: len(self.x)].tolist()

    def _grow(self, atom: int) -> bool:
        """Append one row to the Cholesky factor; False if the atom already lies in the span."""
        count = len(self.x)
        cross = self.gram[self.index[:count], atom][:, None]
        row = torch.linalg.solve_triangular(self.factor[:count, :count], cross, upper=False)[:, 0]
        norm = self.gram[atom, atom] + self.ridge
        pivot = norm - row @ row
        if pivot <= 1e-12 * norm:
            return False
        self.factor[count, :count] = row
        self.factor[count, count] = pivot.sqrt()
        self.index[count] = atom
        self.rows[count] = self.gram[atom]
        return True

    def _restrict(self, stay: Tensor) -> None:
        """Remove atoms and factorize the rest."""
        kept = self.index[: len(self.x)][stay]
        count = len(kept)
        self.x = self.x[stay]
        self.index[:count] = kept
        self.rows[:count] = self.gram[kept]
        self.spanned.zero_()
        inner = self.gram[kept][:, kept] + self.ridge * torch.eye(count, dtype=torch.float64)
        self.factor.zero_()
        self.factor[:count, :count] = torch.linalg.cholesky(inner)

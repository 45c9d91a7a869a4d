"""GradMatch (Killamsetty et al., ICML 2021): a weighted subset whose gradient matches that of the whole pool."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..types import Coreset
from ..validation import check_choice, check_integer, check_range
from .base import SCORE_WITH, FirstInterval, ScoreWith, Selector
from .head_gradients import ExampleGradients, GroupGradients
from .omp import Pursuit
from .pool import Pool
from .ranking import order, proportional
from .scoring import example_columns, random_groups, table
from .selection import Selection

BLOCKS, FILL = 31, 32  # keys of random streams
Picked = tuple[list[np.ndarray], list[np.ndarray]]


class GradMatch(Selector):
    """Orthogonal matching pursuit over the head's gradients; its weights (mean 1) multiply the loss.

    Args:
        keep: fraction of the pool to keep, and of the optimizer steps to take.
        every: optimizer steps between refreshes; if None, 40/1024 of the run, or what a short run can afford.
        ridge: penalty on large weights, in units of the mean squared norm of a gradient.
        granularity: match each pseudo "class" by its examples, or the pool by random batches ("batch").
        block: most examples matched together: a larger class is split at random, which bounds time and memory.
        score_with: score with the "online" or the averaged ("ema") weights.
        first_interval: core set of the first interval: "random", the "full" pool, or "score" with the untrained model.
    """

    def __init__(
        self,
        keep: float = 0.4,
        every: int | None = None,
        ridge: float = 0.5,
        granularity: Literal["class", "batch"] = "class",
        block: int = 1000,
        score_with: ScoreWith = "online",
        first_interval: FirstInterval = "random",
    ) -> None:
        super().__init__(keep, every, first_interval)
        self.ridge = check_range("ridge", ridge, 0)
        self.granularity = check_choice("granularity", granularity, ("class", "batch"))
        self.block = check_integer("block", block, 2)
        self.score_with = check_choice("score_with", score_with, SCORE_WITH)

    def choose(self, pool: Pool, budget: int) -> Selection:
        """Match; fill the places that the pursuit leaves open with further examples of average weight."""
        columns = pool.scan(lambda c: {"features": c.outputs.features, "errors": c.errors, **example_columns(c)})
        match = self._by_class if self.granularity == "class" else self._by_batch
        ids, weights = match(pool, columns, budget)
        columns["score"] = torch.zeros(pool.size)
        columns["score"][torch.from_numpy(ids)] = torch.from_numpy(weights).float()
        rows = table(columns)
        ranked = order(rows)
        others = ranked[~np.isin(ranked, ids)]
        coreset = filled(ids, weights, others, rows.selected, budget, pool.rng(FILL))
        return Selection(coreset, rows)

    def _by_class(self, pool: Pool, columns: dict[str, Tensor], budget: int) -> tuple[np.ndarray, np.ndarray]:
        blocks = class_blocks(columns["label"], columns["weight"] > 0, self.block, pool.rng(BLOCKS))
        places = proportional(np.array([len(block) for block in blocks], dtype=np.int64), budget)
        found: Picked = ([], [])
        for block, count in zip(blocks, places, strict=True):
            gram = ExampleGradients(columns["errors"][block].double(), columns["features"][block].double()).gram()
            index, weights = self._pursue(gram, gram.sum(1), int(count))
            found[0].append(block[index].numpy())
            found[1].append(weights.numpy())
        return _joined(found)

    def _by_batch(self, pool: Pool, columns: dict[str, Tensor], budget: int) -> tuple[np.ndarray, np.ndarray]:
        used = columns["weight"]
        groups = [group[used[group] > 0] for group in random_groups(pool)]
        groups = [group for group in groups if len(group)]
        if not groups:
            return _joined(([], []))
        atoms = GroupGradients(columns["errors"].double(), columns["features"].double(), used.double(), groups)
        gram = atoms.gram()
        places = math.ceil(budget / (sum(map(len, groups)) / len(groups)))
        index, weights = self._pursue(gram, gram @ atoms.counts, places)
        chosen = [groups[i].numpy() for i in index.tolist()]
        # The pursuit weighs the mean gradient of a batch, so each member gets an equal part of the weight.
        each = [np.full(len(g), w / len(g)) for g, w in zip(chosen, weights.tolist(), strict=True)]
        ids, shares = _joined((chosen, each))
        return ids[:budget], shares[:budget]

    def _pursue(self, gram: Tensor, target: Tensor, places: int) -> tuple[Tensor, Tensor]:
        size = float(gram.diagonal().mean())
        return Pursuit(gram, target, places, self.ridge * size).run()


def class_blocks(labels: Tensor, selected: Tensor, size: int, rng: np.random.Generator) -> list[Tensor]:
    """The selected examples of each pseudo class, split at random into nearly equal blocks of at most `size`."""
    blocks: list[Tensor] = []
    for label in torch.unique(labels[selected]).tolist():
        members = rng.permutation(torch.nonzero(selected & (labels == label))[:, 0].numpy())
        parts = np.array_split(members, math.ceil(len(members) / size))
        blocks += [torch.from_numpy(part) for part in parts]
    return blocks


def filled(ids: np.ndarray, weights: np.ndarray, others: np.ndarray, selected: np.ndarray, budget: int,
           rng: np.random.Generator) -> Coreset:  # fmt: skip
    """Weights scaled to mean 1, then `others` with weight 1: random selected ones, then the rest in order."""
    usable = rng.permutation(others[selected[others]])
    extra = np.concatenate([usable, others[~selected[others]]])[: budget - len(ids)]
    scaled = weights * (len(weights) / weights.sum()) if len(weights) else weights
    both = np.concatenate([scaled, np.ones(len(extra))])
    return Coreset(torch.from_numpy(np.concatenate([ids, extra])).long(), torch.from_numpy(both).float())


def _joined(found: Picked) -> tuple[np.ndarray, np.ndarray]:
    ids, weights = (np.concatenate(part) if part else np.zeros(0) for part in found)
    return ids.astype(np.int64), weights.astype(np.float64)

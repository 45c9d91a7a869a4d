"""What every selector shares: the length of the run, the refresh interval, and a choice that leaves no trace."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..types import Coreset, Task
from .check import at_least, one_of, share
from .pool import Pool
from .rest import at_rest
from .selection import Selection

Warmup = Literal["random", "full", "score"]
Weights = Literal["online", "ema"]
WARMUPS = ("random", "full", "score")
PAPER_EVERY, PAPER_EPOCHS = 40, 1024


class Selector:
    """Keeps a part of the unlabelled pool. `__init__` stores hyper-parameters; a subclass writes `choose`.

    Args:
        keep: share of the pool to keep, and of the optimiser steps to take.
        every: epochs between refreshes; if not given, 40 of 1024, or what a short run can afford.
        warmup: what the first interval trains on, before the model knows anything: a "random" subset of the
            same size, the "full" pool, or "score" to select with the untrained model.
    """

    static: ClassVar[bool] = False
    """Whether the first core set is kept for the whole run."""
    restricts: ClassVar[bool] = True
    """Whether anything is left out at all."""
    warmup: Warmup = "score"
    weights: Weights = "online"
    selection_: Selection | None = None
    """How the last choice came about."""

    def __init__(self, keep: float = 0.4, every: int | None = None, warmup: Warmup = "random") -> None:
        self.keep = share("keep", keep, zero=False)
        self.every = None if every is None else int(at_least("every", every, 0))
        self.warmup = one_of("warmup", warmup, WARMUPS)

    @property
    def active(self) -> bool:
        """Whether there is anything to select: keeping everything is plain training."""
        return self.restricts and self.keep < 1

    def steps(self, full: int) -> int:
        """Optimiser steps to take where the full run takes `full`."""
        return max(1, round(self.keep * full))

    def schedule_steps(self, full: int) -> int:
        """The length of the learning-rate schedule."""
        return self.steps(full)

    def budget(self, size: int) -> int:
        """Distinct examples to keep of a pool of `size`."""
        return max(1, round(self.keep * size)) if self.restricts else size

    def interval(self, task: Task, epochs: int) -> int:
        """Steps between refreshes in a run cut into `epochs`.

        Unless the user says how many epochs, it is the paper's share of the run. A short run is cut into as many
        equal parts as make looking at the pool cost about a twentieth of the training, and has one look at least:
        what is saved by training on less must not be spent on choosing it.
        """
        if self.every:
            return self.every * task.epoch
        step, scan = 4 * task.unlabelled_batch + 3 * task.batch, 2 * task.pool  # in forward passes of one example
        parts = max(2, round(task.steps * step / (20 * scan)))
        return max(1, round(epochs * PAPER_EVERY / PAPER_EPOCHS) * task.epoch, math.ceil(task.steps / parts))

    def begin(self, size: int, budget: int, seed: int) -> Coreset | None:
        """The core set before the first scoring (None: the whole pool), unless `warmup` is "score"."""
        if self.warmup == "full":
            return None
        return uniform(random_subset(size, budget, seed, 0))

    def select(self, pool: Pool, budget: int) -> Coreset:
        """`budget` distinct pool ids and their weights (mean 1); model, memories and random state stay as they were."""
        if not 1 <= budget <= pool.size:
            raise UserError(f"a core set of {budget} does not fit a pool of {pool.size}; change --selector.keep")
        if budget == pool.size:
            self.selection_ = Selection(uniform(np.arange(pool.size)))
        else:
            with at_rest(pool.model, pool.ema, pool.algorithm, pool.calibrator, device=pool.device):
                self.selection_ = self.choose(pool.using(self.weights), budget)
        return self.selection_.coreset

    def choose(self, pool: Pool, budget: int) -> Selection:
        """The selector's own rule; modules are in eval mode here."""
        raise NotImplementedError

    @property
    def draws_anew(self) -> bool:
        """Whether `again` is asked for another core set after each pass through the present one."""
        return False

    def again(self, pool: Pool, budget: int) -> Coreset:
        """Another core set by what the last look at the pool said; it must not look again."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Tensor]:
        """What must outlive a refresh."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where `state_dict` was taken."""


def random_subset(size: int, budget: int, *key: int) -> np.ndarray:
    """`budget` distinct ids, the same for the same key on every machine."""
    return np.sort(np.random.default_rng([*key, 77]).choice(size, budget, replace=False))


def uniform(ids: np.ndarray) -> Coreset:
    """A core set in which every example counts the same."""
    return Coreset(torch.from_numpy(np.ascontiguousarray(ids)).long(), torch.ones(len(ids)))

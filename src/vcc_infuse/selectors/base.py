"""What every selector shares: the length of the run, the refresh interval, and a choice that leaves no trace."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..types import Coreset, Task
from ..utils.seeding import preserve_mode_and_rng
from ..validation import check_choice, check_integer, check_range
from .pool import Pool
from .selection import Selection

Warmup = Literal["random", "full", "score"]


Weights = Literal["online", "ema"]


WARMUPS = ("random", "full", "score")


PAPER_EVERY = 40 / 1024  # of the run


class Selector:
    """Keeps a part of the unlabeled pool. `__init__` stores hyper-parameters; a subclass writes `choose`.

    Args:
        keep: share of the pool to keep, and of the optimizer steps to take.
        every: steps between refreshes; if not given, 40/1024 of the run, or what a short run can afford.
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
        self.keep = check_range("keep", keep, 0, 1, open_low=True)
        self.every = None if every is None else check_integer("every", every, 0)
        self.warmup = check_choice("warmup", warmup, WARMUPS)

    @property
    def active(self) -> bool:
        """Whether there is anything to select: keeping everything is plain training."""
        return self.restricts and self.keep < 1

    def steps(self, full: int) -> int:
        """Optimizer steps to take where the full run takes `full`."""
        return max(1, round(self.keep * full))

    def schedule_steps(self, full: int) -> int:
        """The length of the learning-rate schedule."""
        return self.steps(full)

    def budget(self, size: int) -> int:
        """Distinct examples to keep of a pool of `size`."""
        return max(1, round(self.keep * size)) if self.restricts else size

    def interval(self, task: Task) -> int:
        """Steps between refreshes.

        Unless the user sets `every`, it is the paper's fraction of the run. A short run is cut into as many equal
        parts as make scanning the pool cost about a twentieth of the training, and has one scan at least: what is
        saved by training on less must not be spent on choosing it.
        """
        if self.every:
            return self.every
        # in forward passes of one example
        step, scan = 4 * task.unlabeled_batch_size + 3 * task.batch_size, 2 * task.pool
        parts = max(2, round(task.steps * step / (20 * scan)))
        return max(1, round(task.steps * PAPER_EVERY), math.ceil(task.steps / parts))

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
            with preserve_mode_and_rng(pool.model, pool.ema, pool.algorithm, pool.calibrator, device=pool.device):
                self.selection_ = self.choose(pool.using(self.weights), budget)
        return self.selection_.coreset

    def choose(self, pool: Pool, budget: int) -> Selection:
        """The selector's own rule; modules are in eval mode here."""
        raise NotImplementedError

    @property
    def resamples(self) -> bool:
        """Whether `again` is asked for another core set after each pass through the present one."""
        return False

    def resample(self, pool: Pool, budget: int) -> Coreset:
        """Another core set by what the last look at the pool said; it must not look again."""
        raise NotImplementedError

    def direction(self, pool: Pool) -> Tensor | None:
        """What ranking images outside the pool needs of the labeled set; None for rules that cannot rank them."""
        return None

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

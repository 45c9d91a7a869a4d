"""CoresetScheduler: when the core set of a run is refreshed or resampled, what it is now, and how long that took."""

from __future__ import annotations

import copy
import math
import time
from typing import Any

import numpy as np
import torch

from ..data.batches import Batches
from ..selectors.base import Selector
from ..selectors.pool import Pool
from ..selectors.ranking import Selection, describe_selection
from ..types import Coreset, Task


class CoresetScheduler:
    """Runs a selector at fixed intervals; without a selector, or with one that keeps everything, it does nothing.

    The selector is copied, so that one object can serve several runs.
    """

    def __init__(self, selector: Selector | None, task: Task, seed: int) -> None:
        self.selector = copy.deepcopy(selector) if selector and selector.active else None
        self.task = task
        self.seed = seed
        self.interval = self.selector.interval(task) if self.selector else 0
        self.budget = self.selector.budget(task.pool) if self.selector else task.pool
        self.steps_per_pass = math.ceil(self.budget / max(1, task.unlabeled_batch_size))
        self.coreset: Coreset | None = None
        self.coreset_start = 0
        self.seconds = 0.0

    def due(self, number: int) -> bool:
        """Whether to select a new core set before step `number`."""
        if self.selector is None:
            return False
        return number == 0 or (number % self.interval == 0 and not self.selector.static)

    def resample_due(self, number: int) -> bool:
        """Whether a pass through the core set ends and another one is to be drawn before step `number`."""
        if self.selector is None or self.coreset is None or not self.selector.resamples:
            return False
        return number == self.coreset_start + self.steps_per_pass and not self.due(number)

    def refresh(
        self, pool: Pool, batches: Batches, truth: np.ndarray | None = None
    ) -> tuple[Selection, dict[str, Any]]:
        """Select a core set and restrict batches and algorithm to it; returns the selection and its statistics.

        `truth` are the hidden labels of the pool, `(pool,)`, −1 where unknown, for the statistics.
        """
        assert self.selector is not None
        began = time.perf_counter()
        previous = self.coreset
        unscored = pool.number == 0 and self.selector.first_interval != "score"
        if unscored:
            self.coreset = self.selector.first_coreset(pool.size, self.budget, self.seed)
            selection = Selection(self.coreset or Coreset(torch.arange(pool.size), torch.ones(pool.size)))
        else:
            self.coreset = self.selector.select(pool, self.budget)
            assert self.selector.selection_ is not None
            selection = self.selector.selection_
        self._activate(pool, batches)
        # A selector that resamples may draw any example until the next refresh.
        ids = torch.arange(pool.size) if self.selector.resamples else selection.coreset.ids
        pool.algorithm.on_coreset_change(ids.to(pool.device))
        seconds = time.perf_counter() - began
        self.seconds += seconds
        statistics = describe_selection(
            selection, classes=self.task.classes, pool_size=pool.size, previous=previous, truth=truth
        )
        chosen_by = f"first interval ({self.selector.first_interval})" if unscored else type(self.selector).__name__
        return selection, {"step": pool.number, "chosen_by": chosen_by, "seconds": seconds, **statistics}

    def resample(self, pool: Pool, batches: Batches) -> None:
        """Draw another core set without a new scan of the pool."""
        assert self.selector is not None
        began = time.perf_counter()
        self.coreset = self.selector.resample(pool, self.budget)
        self._activate(pool, batches)
        self.seconds += time.perf_counter() - began

    def resume(self, batches: Batches) -> None:
        """Restrict the batches to the restored core set; the algorithm restores its own state."""
        if self.coreset is not None:
            batches.restrict(self.coreset, self.coreset_start)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers, so that a run resumes in the middle of an interval."""
        return {
            "ids": None if self.coreset is None else self.coreset.ids.clone(),
            "weights": None if self.coreset is None else self.coreset.weights.clone(),
            "coreset_start": self.coreset_start,
            "seconds": self.seconds,
            "selector": self.selector.state_dict() if self.selector else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; call `resume` once the batches exist."""
        self.coreset_start = state["coreset_start"]
        self.seconds = state["seconds"]
        self.coreset = None if state["ids"] is None else Coreset(state["ids"].cpu(), state["weights"].cpu())
        if self.selector:
            self.selector.load_state_dict(state["selector"])

    def _activate(self, pool: Pool, batches: Batches) -> None:
        """Draw from the new core set from this step on."""
        self.coreset_start = pool.number
        batches.restrict(self.coreset, pool.number)

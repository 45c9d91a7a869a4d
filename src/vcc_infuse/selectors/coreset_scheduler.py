"""CoresetScheduler: the core set of one run — when it is renewed, what it is now, and what that cost."""

from __future__ import annotations

import copy
import math
import time
from typing import Any

import numpy as np
import torch

from ..data.sampling import Batches
from ..types import Coreset, Task
from .base import Selector
from .pool import Pool
from .selection import Selection, describe_selection


class CoresetScheduler:
    """Asks a selector every so many steps; without one, or with nothing to leave out, it never acts.

    Args:
        selector: the user's; a copy is used, so that one object can serve several runs.
        task: the sizes of the run.
        seed: of the run.
    """

    def __init__(self, selector: Selector | None, task: Task, seed: int) -> None:
        self.selector = copy.deepcopy(selector) if selector and selector.active else None
        self.task, self.seed = task, seed
        self.every = self.selector.interval(task) if self.selector else 0
        self.budget = self.selector.budget(task.pool) if self.selector else task.pool
        self.turn = math.ceil(self.budget / max(1, task.unlabeled_batch_size))
        self.coreset: Coreset | None = None
        self.start, self.seconds = 0, 0.0

    def due(self, number: int) -> bool:
        """Whether to choose anew before step `number`."""
        if self.selector is None:
            return False
        return number == 0 or (number % self.every == 0 and not self.selector.static)

    def resample_due(self, number: int) -> bool:
        """Whether the core set has been gone through and is to be drawn anew before step `number`."""
        if self.selector is None or self.coreset is None or not self.selector.resamples:
            return False
        return number == self.start + self.turn and not self.due(number)

    def resample(self, pool: Pool, batches: Batches) -> None:
        """Another core set without another look at the pool."""
        assert self.selector is not None
        began = time.perf_counter()
        self.coreset = self.selector.resample(pool, self.budget)
        self._begin(pool, batches)
        self.seconds += time.perf_counter() - began

    def refresh(
        self, pool: Pool, batches: Batches, truth: np.ndarray | None = None
    ) -> tuple[Selection, dict[str, Any]]:
        """Choose from the pool, let batches and algorithm know, and return what was chosen with its figures."""
        assert self.selector is not None
        began, previous, number = time.perf_counter(), self.coreset, pool.number
        warming = number == 0 and self.selector.warmup != "score"
        if warming:
            self.coreset = self.selector.begin(pool.size, self.budget, self.seed)
            selection = Selection(self._present(pool.size))
        else:
            self.coreset = self.selector.select(pool, self.budget)
            assert self.selector.selection_ is not None
            selection = self.selector.selection_
        self._begin(pool, batches)
        # Where sets are drawn anew all the time, any example may be seen until the next look.
        seen = torch.arange(pool.size) if self.selector.resamples else selection.coreset.ids
        pool.algorithm.on_coreset_change(seen.to(pool.device))
        spent = time.perf_counter() - began
        self.seconds += spent
        figures = describe_selection(selection, self.task.classes, pool.size, previous, truth)
        chosen_by = f"warm-up ({self.selector.warmup})" if warming else type(self.selector).__name__
        return selection, {"step": number, "chosen_by": chosen_by, "seconds": spent, **figures}

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers, so that a run resumes in the middle of an interval."""
        ids = None if self.coreset is None else self.coreset.ids.clone()
        weights = None if self.coreset is None else self.coreset.weights.clone()
        own = self.selector.state_dict() if self.selector else {}
        return {"ids": ids, "weights": weights, "start": self.start, "seconds": self.seconds, "selector": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue; call `resume` once the batches exist."""
        self.start, self.seconds = state["start"], state["seconds"]
        self.coreset = None if state["ids"] is None else Coreset(state["ids"].cpu(), state["weights"].cpu())
        if self.selector:
            self.selector.load_state_dict(state["selector"])

    def resume(self, batches: Batches) -> None:
        """Let the batches draw from the restored core set; the algorithm's own counts were restored with it."""
        if self.coreset is not None:
            batches.restrict(self.coreset, self.start)

    def _begin(self, pool: Pool, batches: Batches) -> None:
        self.start = pool.number
        batches.restrict(self.coreset, pool.number)

    def _present(self, size: int) -> Coreset:
        return self.coreset or Coreset(torch.arange(size), torch.ones(size))

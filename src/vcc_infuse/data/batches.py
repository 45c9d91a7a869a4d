"""Batches of a run as a function of the step number, drawn from endless random permutations.

Every example is seen equally often. A resumed run needs no saved position, because element `i` depends only on the seed
and `i`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..augment.views import MakeRows, SlotRows
from ..types import Batch, Coreset, LazyViews
from ..utils.device import send
from .ssl_data import SSLData

CPU = torch.device("cpu")


class Views(Protocol):
    """Makes a view of raw rows: at once, or the strong one later."""

    def __call__(self, name: str, raw: Any) -> Tensor:
        """The view called `name`."""

    def strong_later(self, raw: Any) -> MakeRows:
        """A function that makes rows of the strong view when they are wanted."""


class Stream:
    """Positions 0, 1, 2, … of concatenated random permutations of `ids`."""

    def __init__(self, ids: np.ndarray, *key: int) -> None:
        self.ids = np.asarray(ids)
        self._permutation = lru_cache(maxsize=4)(lambda n: np.random.default_rng([*key, n]).permutation(self.ids))

    def at(self, start: int, count: int) -> np.ndarray:
        """The ids at positions start … start + count − 1."""
        size = len(self.ids)
        first = start // size
        last = (start + count - 1) // size
        joined = np.concatenate([self._permutation(number) for number in range(first, last + 1)])
        return joined[start - first * size :][:count]


@dataclass(eq=False)
class Batches:
    """Maps a step number to its Batch. Each of `world` processes takes its slice of the global batch.

    `names` are views of unlabeled examples, such as ("weak", "strong"), none if only labeled examples are needed;
    `labeled_names` those of labeled examples besides the weak one, which are called "labeled_…". If `lazy`, the strong
    view of unlabeled examples is made only when it is asked for.
    """

    data: SSLData
    views: Views
    names: Sequence[str]
    labeled_names: Sequence[str] = ()
    _: KW_ONLY
    batch_size: int  # labeled examples per step, of all processes together
    unlabeled_batch_size: int
    seed: int = 0
    rank: int = 0
    world: int = 1
    device: torch.device = CPU
    lazy: bool = False

    def __post_init__(self) -> None:
        split = self.data.split
        self.labeled_stream = Stream(np.arange(len(split.labeled)), self.seed, 0)
        self.held_out_stream = Stream(split.held_out, self.seed, 2)
        self.embed(split.labeled, split.held_out)
        self.restrict(None)

    def restrict(self, coreset: Coreset | None, start: int = 0) -> None:
        """From step `start` on, draw unlabeled examples from a core set (None: from the whole pool)."""
        pool = len(self.data.split.pool)
        ids = np.arange(pool) if coreset is None else np.sort(coreset.ids.cpu().numpy())
        self.start = start
        self.pool_stream = Stream(ids, self.seed, 1, start)
        self.pool_weights = torch.ones(pool)
        if coreset is not None:
            self.pool_weights[coreset.ids.cpu()] = coreset.weights.cpu().float()
            self.embed(self.data.split.pool[ids])
        # A selector chooses before the first step: only a run without one needs the views of the whole pool.
        self.whole_pool = coreset is None

    def embed(self, *rows: np.ndarray) -> None:
        """Make a lazy bank embed the augmented views of training rows."""
        if self.data.dataset.bank is not None:
            self.data.dataset.bank.ensure(np.concatenate(rows), rank=self.rank, world=self.world)

    def at(self, step: int) -> Batch:
        """The batch of step `step` on this process."""
        ids = self._slice(self.labeled_stream, step, self.batch_size)
        raw = self.rows(self.data.split.labeled[ids])
        x = self.views("weak", raw)
        y = self._send(self.data.labeled_y[ids])
        views = {f"labeled_{name}": self.views(name, raw) for name in self.labeled_names}
        pool_ids, later = self._pool_views(step, views)
        held_out_y = None
        if len(self.data.split.held_out):
            rows = self._slice(self.held_out_stream, step, self.batch_size)
            views["held_out"] = self.views("weak", self.rows(rows))
            held_out_y = self._send(self.data.dataset.train.y[rows])
        weights = send(self.pool_weights[torch.from_numpy(pool_ids)], self.device)
        every_view = LazyViews(views, later) if later else views
        return Batch(x, y, self._send(ids), every_view, self._send(pool_ids), weights, held_out_y)

    def _pool_views(self, step: int, views: dict[str, Tensor]) -> tuple[np.ndarray, dict[str, MakeRows]]:
        """Add the views of the pool; returns the examples, and what makes the views that are made later."""
        later: dict[str, MakeRows] = {}
        if not self.names:
            return np.empty(0, dtype=np.int64), later
        if self.whole_pool:
            self.embed(self.data.split.pool)
            self.whole_pool = False
        pool_ids = self._slice(self.pool_stream, step - self.start, self.unlabeled_batch_size)
        raw = self.rows(self.data.split.pool[pool_ids])
        for name in self.names:
            if self.lazy and name == "strong":
                later[name] = self.views.strong_later(raw)
            else:
                views[name] = self.views(name, raw)
        return pool_ids, later

    def rows(self, rows: np.ndarray) -> Tensor | SlotRows:
        """Raw training rows on the device; of views, a reference to them, because a view reads one slot of each."""
        if self.data.dataset.slots is not None:
            return SlotRows(self.data.dataset.train.x, rows, self.device)
        return self._send(np.ascontiguousarray(self.data.dataset.train.x[rows]))

    def _send(self, rows: np.ndarray) -> Tensor:
        return send(torch.from_numpy(rows), self.device)

    def _slice(self, stream: Stream, step: int, count: int) -> np.ndarray:
        return stream.at(step * count, count)[self.rank :: self.world]

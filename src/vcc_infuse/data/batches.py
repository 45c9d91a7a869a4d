"""Batches: the data of any step by its number, gathered by index and augmented on the training device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ..types import Batch, Coreset
from .ssl import SSLData
from .stream import Stream

Views = Callable[[str, Tensor], Tensor]


class Batches:
    """Step number in, Batch out. Each process takes its slice of the global batch."""

    def __init__(
        self,
        data: SSLData,
        views: Views,
        names: Sequence[str],
        labelled_names: Sequence[str] = (),
        *,
        batch: int,
        unlabelled: int,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        self.data, self.views = data, views
        self.names, self.labelled_names = tuple(names), tuple(labelled_names)
        self.batch, self.unlabelled = batch, unlabelled
        self.seed, self.rank, self.world, self.device = seed, rank, world, torch.device(device)
        self.labelled_stream = Stream(np.arange(len(data.split.labelled)), seed, 0)
        self.held_out_stream = Stream(data.split.held_out, seed, 2)
        self.restrict(None)

    def restrict(self, coreset: Coreset | None, start: int = 0) -> None:
        """Draw unlabelled examples from a core set from step `start` on (None: from the whole pool)."""
        pool = len(self.data.split.pool)
        ids = np.arange(pool) if coreset is None else np.sort(coreset.ids.cpu().numpy())
        self.start = start
        self.pool_stream = Stream(ids, self.seed, 1, start)
        self.pool_weights = torch.ones(pool)
        if coreset is not None:
            self.pool_weights[coreset.ids.cpu()] = coreset.weights.cpu().float()

    def at(self, step: int) -> Batch:
        """The batch of step `step` on this process."""
        ids = self._slice(self.labelled_stream, step, self.batch)
        raw = self.rows(self.data.split.labelled[ids])
        x = self.views("weak", raw)
        y = torch.from_numpy(self.data.labelled_y[ids]).to(self.device)
        views = {f"labelled_{name}": self.views(name, raw) for name in self.labelled_names}
        pool_ids = np.empty(0, dtype=np.int64)
        if self.names:
            pool_ids = self._slice(self.pool_stream, step - self.start, self.unlabelled)
            raw = self.rows(self.data.split.pool[pool_ids])
            views |= {name: self.views(name, raw) for name in self.names}
        held_out_y = None
        if len(self.data.split.held_out):
            held = self._slice(self.held_out_stream, step, self.batch)
            views["held_out"] = self.views("weak", self.rows(held))
            held_out_y = torch.from_numpy(self.data.dataset.train.y[held]).to(self.device)
        pool = torch.from_numpy(pool_ids)
        weights = self.pool_weights[pool].to(self.device)
        return Batch(x, y, torch.from_numpy(ids).to(self.device), views, pool.to(self.device), weights, held_out_y)

    def rows(self, rows: np.ndarray) -> Tensor:
        """Raw training rows on the device."""
        return torch.from_numpy(np.ascontiguousarray(self.data.dataset.train.x[rows])).to(self.device)

    def _slice(self, stream: Stream, step: int, count: int) -> np.ndarray:
        return stream.at(step * count, count)[self.rank :: self.world]

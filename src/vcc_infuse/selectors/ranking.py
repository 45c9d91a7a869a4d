"""The order in which examples are kept: those the algorithm learns from by score, then the rest by confidence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Scored(NamedTuple):
    """Rows of examples: `scores` (higher is kept first), whether the algorithm selects them, confidence, label."""

    ids: np.ndarray
    scores: np.ndarray
    selected: np.ndarray
    confidence: np.ndarray
    labels: np.ndarray

    def take(self, rows: np.ndarray) -> Scored:
        """Some rows."""
        return Scored(*(column[rows] for column in self))


def joined(tables: list[Scored]) -> Scored:
    """Several tables as one, best first."""
    rows = Scored(*(np.concatenate(columns) for columns in zip(*tables, strict=True)))
    return rows.take(order(rows))


def rows_state(rows: Scored) -> dict[str, Tensor]:
    """Rows as named tensors, for a checkpoint."""
    return {f"rows_{name}": torch.from_numpy(np.array(column)) for name, column in rows._asdict().items()}


def restored_rows(state: dict[str, Tensor]) -> Scored | None:
    """The rows in a checkpoint, if there are any."""
    names = [f"rows_{name}" for name in Scored._fields]
    return Scored(*(state[name].cpu().numpy() for name in names)) if names[0] in state else None


def order(rows: Scored) -> np.ndarray:
    """Row numbers, best first: an example without weight never before one with weight; ties by confidence, then id."""
    score = np.where(rows.selected, known(rows.scores), 0)
    return np.lexsort((rows.ids, -rows.confidence, -score, ~rows.selected))


def known(scores: np.ndarray) -> np.ndarray:
    """A score that is not a number is the worst."""
    return np.where(np.isnan(scores), -np.inf, scores)


def pieces(rows: Scored, size: int) -> Iterator[Scored]:
    """A table as a stream."""
    for start in range(0, len(rows.ids), size):
        yield Scored(*(column[start : start + size] for column in rows))

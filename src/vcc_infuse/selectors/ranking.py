"""The order in which examples are kept: those the algorithm learns from by score, then the rest by confidence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


def top_stream(chunks: Iterable[Scored], keep: int, slack: int = 65_536) -> Scored:
    """The best `keep` rows of a stream, best first; never holds many more than `keep` and a chunk."""
    held: list[Scored] = []
    count, best = 0, None
    for chunk in chunks:
        chunk = chunk if best is None else chunk.take(_may_enter(chunk, best))
        held.append(chunk)
        count += len(chunk.ids)
        if count > keep + max(keep // 4, slack):
            held = [_top(held, keep)]
            count, best = len(held[0].ids), held[0].take(np.array([-1]))
    if not held:
        raise ValueError("an empty stream has no best rows")
    return _top(held, keep)


def pieces(rows: Scored, size: int) -> Iterator[Scored]:
    """A table as a stream."""
    for start in range(0, len(rows.ids), size):
        yield Scored(*(column[start : start + size] for column in rows))


def _top(held: list[Scored], keep: int) -> Scored:
    joined = Scored(*(np.concatenate(columns) for columns in zip(*held, strict=True)))
    return joined.take(order(joined)[:keep])


def _may_enter(chunk: Scored, worst: Scored) -> np.ndarray:
    """Rows not plainly below the worst row kept so far: most of a long stream is turned away by one comparison."""
    if not worst.selected[0]:
        return np.flatnonzero(chunk.selected | (chunk.confidence >= worst.confidence[0]))
    return np.flatnonzero(chunk.selected & (known(chunk.scores) >= known(worst.scores)[0]))

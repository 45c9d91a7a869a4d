"""Frozen features of a dataset as rows of unit length, which the studies of messy pools share."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from vcc_infuse import pool_audit
from vcc_infuse.errors import UserError


class Features(NamedTuple):
    """A pool and a test set as rows of unit length."""

    name: str
    x: np.ndarray
    y: np.ndarray
    test: np.ndarray
    test_y: np.ndarray

    @property
    def classes(self) -> int:
        """Their number."""
        return int(self.y.max()) + 1

    def draw(self, rng: np.random.Generator, count: int, among: np.ndarray | None = None) -> np.ndarray:
        """`count` rows of each class."""
        chosen = np.arange(self.classes) if among is None else among
        return np.concatenate([rng.choice(np.flatnonzero(self.y == label), count, replace=False) for label in chosen])


def load(path: Path) -> Features:
    """Read one file of features."""
    if not path.exists():
        raise UserError(f"--sets: {path} does not exist; put NAME.npz into the folder that --features names")
    with np.load(path) as arrays:
        train = arrays["train"]
        plain = train[:, 0] if train.ndim == 3 else train
        test = pool_audit.unit_rows(arrays["test"], reference=plain)
        y = arrays["train_y"].astype(np.int64)
        test_y = arrays["test_y"].astype(np.int64)
    return Features(path.stem, pool_audit.unit_rows(plain), y, test, test_y)


def enough(data: Features, count: int) -> bool:
    """Whether each class has that many rows."""
    return bool(np.bincount(data.y).min() >= count)

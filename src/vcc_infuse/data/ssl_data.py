"""SSLData: a dataset together with the split that says which of its labels may be seen."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from .arrays import from_arrays
from .dataset import Dataset
from .split import Split, given, hold_out


@dataclass(frozen=True)
class SSLData:
    """Labeled rows, the unlabeled pool (whose labels, where known, serve only to measure), and a test set if any."""

    dataset: Dataset
    split: Split

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        test_x: ArrayLike | None = None,
        test_y: ArrayLike | None = None,
        classes: tuple[str, ...] | None = None,
    ) -> SSLData:
        """Arrays of images (N,H,W or N,H,W,C) or features (N,D); −1 in `y` means unlabeled; a test set is optional."""
        dataset = from_arrays(x, y, test_x, test_y, classes)
        return cls(dataset, given(dataset.train.y))

    @property
    def labeled_y(self) -> np.ndarray:
        """The labels the method may see."""
        return self.dataset.train.y[self.split.labeled]

    @property
    def pool_truth(self) -> np.ndarray:
        """The hidden labels of the pool, −1 where nobody knows."""
        return self.dataset.train.y[self.split.pool]

    def hold_out(self, share: float) -> SSLData:
        """The same data with `share` of the labeled images kept out of training."""
        return replace(self, split=hold_out(self.split, self.dataset.train.y, share, self.dataset.classes))

    def with_all_labels(self) -> SSLData:
        """The same data with every known label shown (for the fully supervised reference)."""
        known = np.flatnonzero(self.dataset.train.y >= 0)
        return replace(self, split=Split(labeled=known, pool=self.split.pool))

"""SSLData: a dataset and the split that decides which of its labels a method may see."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from .arrays import from_arrays
from .dataset import Dataset
from .split import Split, from_given_labels, hold_out


@dataclass(frozen=True)
class SSLData:
    """Labeled rows, the unlabeled pool (whose labels, where known, only serve for metrics), and the test set if any."""

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
        slots: tuple[int, int] | None = None,
    ) -> SSLData:
        """Data from arrays of images (N,H,W or N,H,W,C), feature vectors (N,D) or views of them (N,V,D).

        −1 in `y` means unlabeled. Of views the first is the plain one; `slots` says how many weak and strong ones
        follow. Without `slots`, floats with values below 0 and V < D are read as views, and the first half of the
        views after the plain one is weak, the rest strong.

        Example:
            >>> import numpy as np
            >>> from vcc_infuse import SSLData
            >>> images = np.zeros((6, 8, 8), dtype=np.uint8)
            >>> data = SSLData.from_arrays(images, [0, 1, -1, -1, -1, -1], classes=("cat", "dog"))
            >>> data.labeled_y.tolist(), len(data.split.pool)
            ([0, 1], 6)
        """
        dataset = from_arrays(x, y, test_x, test_y, classes, slots)
        return cls(dataset, from_given_labels(dataset.train.y))

    @property
    def labeled_y(self) -> np.ndarray:
        """The labels the method may see."""
        labels: np.ndarray = self.dataset.train.y[self.split.labeled]
        return labels

    @property
    def pool_truth(self) -> np.ndarray:
        """The hidden labels of the pool, −1 where they are unknown."""
        labels: np.ndarray = self.dataset.train.y[self.split.pool]
        return labels

    def hold_out(self, fraction: float) -> SSLData:
        """The same data with `fraction` of the labeled examples kept out of training."""
        return replace(self, split=hold_out(self.split, self.dataset.train.y, fraction, self.dataset.classes))

    def with_all_labels(self) -> SSLData:
        """The same data with every known label shown (for the fully supervised baseline)."""
        known = np.flatnonzero(self.dataset.train.y >= 0)
        return replace(self, split=Split(labeled=known, pool=self.split.pool))

"""What training reads: images or feature vectors with labels (−1 = unlabelled), checked once when made."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .validate import check_examples, check_labels, check_same_shape


@dataclass(frozen=True, eq=False)
class Examples:
    """Rows of data: uint8 N×H×W×C images (in memory or mapped from a file) or float32 N×D vectors."""

    x: np.ndarray
    y: np.ndarray
    names: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test examples of the same shape and classes; without a test set no test figure is taken.

    `mean` and `std` are per channel in units of [0, 1], or per feature. `skipped` lists unreadable files with
    the reason; `fixed` says that the source itself decides which examples are labelled.
    `flip` says that a mirrored image keeps its class, so that augmentation may mirror it.
    """

    train: Examples
    test: Examples | None
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    fixed: bool = False
    flip: bool = True
    name: str = "arrays"

    def __post_init__(self) -> None:
        check_examples(self.train.x, self.train.y, self.train.names, "train")
        if self.test is not None:
            check_examples(self.test.x, self.test.y, self.test.names, "test")
            check_same_shape(self.train.x, self.test.x)
        check_labels(self.train.y, None if self.test is None else self.test.y, self.classes)
        if not len(self.mean) == len(self.std) == self.shape[-1] or min(self.std) <= 0:
            raise ValueError("mean and std need one value per channel or feature, and std must be positive")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example: (H, W, C) for images, (D,) for vectors."""
        return tuple(self.train.x.shape[1:])

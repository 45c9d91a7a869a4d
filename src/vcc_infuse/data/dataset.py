"""What training reads: images or feature vectors with labels (−1 = unlabeled), checked when a Dataset is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..augment.recipe import Augment, read_augment
from ..errors import OptionError, UserError

if TYPE_CHECKING:
    from ..bank.bank import Bank

MeanStd = tuple[tuple[float, ...], tuple[float, ...]]  # per channel or feature
CHANNELS = 16
UNLABELED = -1
CHUNK = 1024  # rows read at a time, because the array may be a file larger than memory


@dataclass(frozen=True, eq=False)
class Examples:
    """Rows of data with their labels.

    `x` are uint8 images `(rows, height, width, channels)`, in memory or mapped from a file; float32 vectors
    `(rows, features)`; or float views `(rows, views, features)`, of which the first is the plain one.
    """

    x: np.ndarray
    y: np.ndarray  # int64 class numbers `(rows,)`; −1 means unlabeled
    names: Sequence[str] | None = None  # such as those of files

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test examples of the same shape and classes; without a test set no test metric is computed."""

    train: Examples
    test: Examples | None
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # per channel in units of [0, 1], or per feature
    std: tuple[float, ...]  # in the same units
    skipped: tuple[tuple[str, str], ...] = ()  # unreadable files with reasons
    fixed: bool = False  # whether the source itself decides which examples are labeled
    flip: bool = True  # whether a mirrored image keeps its class, so that augmentation may mirror it
    augment: Augment = "natural"  # how weak and strong views are made; see `load_ssl`
    name: str = "arrays"  # of the source
    slots: tuple[int, int] | None = None  # how many weak and strong views follow the plain one in rows of views
    bank: Bank | None = None  # that the views come from, which knows the images and the network
    validation: np.ndarray | None = None  # training rows that stand in for a test set; their label in `train` is −1
    groups: np.ndarray | None = None  # a number per training row; rows of one group stay together in every split
    ranges: tuple[tuple[float, float], ...] = ()  # values that became 0 and 255, of a source with more than 8 bits

    def __post_init__(self) -> None:
        check_examples(self.train.x, self.train.y, self.train.names, "train")
        if self.test is not None:
            check_examples(self.test.x, self.test.y, self.test.names, "test")
            start = 2 if self.train.x.ndim == 3 else 1  # of views only the plain one is needed
            train = self.train.x.shape
            test = self.test.x.shape
            if len(train) != len(test) or train[start:] != test[start:]:
                shapes = f"test examples have shape {test[1:]}, training examples {train[1:]}"
                raise UserError(f"{shapes}; give both the same shape")
        check_labels(self.train.y, None if self.test is None else self.test.y, self.classes)
        if self.groups is not None and self.groups.shape != (len(self.train),):
            raise UserError(f"groups must name a group for each of {len(self.train)} rows, got {self.groups.shape}")
        if not len(self.mean) == len(self.std) == self.shape[-1] or min(self.std) <= 0:
            raise ValueError("mean and std need one value per channel or feature, and std must be positive")

    def augmented(self, augment: Augment = "natural", flip: bool | None = None) -> Dataset:
        """The dataset with other views; `flip` stays as it is if not given."""
        read_augment(augment)
        if augment != "natural" and len(self.shape) != 3:
            raise OptionError("augment", augment, "needs images, and these are vectors", "leave it out")
        return replace(self, augment=augment, flip=self.flip if flip is None else flip)

    def with_validation(self, rows: np.ndarray) -> Dataset:
        """The dataset with some of its labeled training rows as validation set; the images stay where they are."""
        train = self.train
        names = None if train.names is None else [train.names[row] for row in rows]
        test = Examples(train.x[rows] if train.x.ndim != 3 else train.x[rows, :1], train.y[rows], names)
        y = train.y.copy()
        y[rows] = UNLABELED  # so that nothing can see the label, not even by mistake
        return replace(self, train=replace(train, y=y), test=test, validation=rows)

    @property
    def images(self) -> Dataset:
        """What the rows were before a bank embedded them; the dataset itself where there is no bank."""
        return self.bank.source if self.bank else self

    @property
    def evaluated_on(self) -> Literal["test", "validation"] | None:
        """What the figures of a run are taken on."""
        if self.test is None:
            return None
        return "test" if self.validation is None else "validation"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example: (H, W, C) for images, (D,) for vectors and views."""
        return tuple(self.train.x.shape[2 if self.train.x.ndim == 3 else 1 :])


def check_examples(x: np.ndarray, y: np.ndarray, names: Sequence[str] | None, part: str) -> None:
    """Images or vectors of a supported type, finite, with one label (and name) per example."""
    if not len(x):
        raise UserError(f"{part}: no examples; at least one is needed")
    if (x.ndim, x.dtype.name) not in [(4, "uint8"), (2, "float32"), (3, "float32"), (3, "float16")]:
        known = "uint8 N×H×W×C images, float32 N×D vectors or N×V×D views"
        raise UserError(f"{part}: x is {x.dtype} {x.shape}; give {known}")
    if x.ndim == 4 and not 1 <= x.shape[3] <= CHANNELS:
        raise UserError(f"{part}: images of shape {x.shape[1:]}; the last axis must be 1 to {CHANNELS} channels")
    if not x.size:
        raise UserError(f"{part}: examples of shape {x.shape[1:]} are empty; give at least one value per example")
    if y.shape != (len(x),):
        raise UserError(f"{part}: {len(x)} examples but labels of shape {y.shape}; give one label per example")
    if names is not None and len(names) != len(x):
        raise UserError(f"{part}: {len(x)} examples but {len(names)} names; give one name per example")
    if x.ndim < 4 and not all(np.isfinite(x[i : i + 4096]).all() for i in range(0, len(x), 4096)):
        raise UserError(f"{part}: x holds NaN or infinite values; remove or fill them first")


def check_labels(train: np.ndarray, test: np.ndarray | None, classes: Sequence[str]) -> None:
    """Labels in range (−1 = unlabeled, in training only), and at least one labeled example of every class."""
    k = len(classes)
    if k < 2:
        raise UserError(f"only {k} class found ({', '.join(classes) or 'none'}); at least 2 are needed")
    for part, y, lowest in (("train", train, -1), ("test", test, 0)):
        if y is not None and (y.dtype != np.int64 or y.min() < lowest or y.max() >= k):
            given = f"{y.dtype} {y.min()}…{y.max()}"
            raise UserError(f"{part}: labels are {given}; they must be int64 from {lowest} to {k - 1}")
    empty = np.flatnonzero(np.bincount(train[train >= 0], minlength=k) == 0)
    if len(empty):
        raise UserError(f"class {classes[empty[0]]!r} has no labeled training example; add some")


def channel_mean_std(x: np.ndarray) -> MeanStd:
    """Mean and standard deviation per channel, in units of [0, 1], or per feature of vectors; std is never 0."""
    starts = range(0, len(x), CHUNK)
    if x.ndim == 4:  # from the histogram of the 256 values, which is exact for any number of pixels
        counts = np.zeros((x.shape[-1], 256))
        for start in starts:
            for channel in range(x.shape[-1]):
                counts[channel] += np.bincount(x[start : start + CHUNK, ..., channel].ravel(), minlength=256)
        share = counts / counts.sum(1, keepdims=True)
        value = np.arange(256) / 255
        mean = share @ value
        square = (share * (value - mean[:, None]) ** 2).sum(1)
    else:  # in two passes, because E[x²] − E[x]² loses all digits if the mean is large
        mean = np.asarray(sum(x[i : i + CHUNK].sum(0, dtype=np.float64) for i in starts) / len(x))
        square = sum(((x[i : i + CHUNK].astype(np.float64) - mean) ** 2).sum(0) for i in starts) / len(x)
    std = np.sqrt(square)
    std = np.where(std > 0, std, 1.0)  # a constant column is only shifted
    return tuple(mean.tolist()), tuple(std.tolist())

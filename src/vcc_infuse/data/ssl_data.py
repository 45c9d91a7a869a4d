"""SSLData: a dataset and the split that decides which of its labels a method may see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..augment.recipe import Augment
from ..errors import check_range
from .dataset import Dataset, Examples
from .sources.arrays import UNLABELED, from_arrays
from .sources.other_datasets import load_objects
from .split import Split, balanced, from_given_labels, hold_out, validation_rows, without


@dataclass(frozen=True)
class SSLData:
    """A dataset and which of its labels a method may see; labels of the pool, where known, only serve for metrics.

    Args:
        dataset: training examples, and the test set if there is one.
        split: the labeled rows and the unlabeled pool.
    """

    dataset: Dataset
    split: Split

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        test_x: ArrayLike | None = None,
        test_y: ArrayLike | None = None,
        *,
        classes: Sequence[str] | None = None,
        slots: tuple[int, int] | None = None,
        validation: float | None = None,
        intensity: str = "auto",
        flip: bool = True,
        augment: Augment = "natural",
    ) -> SSLData:
        """Data from arrays of images, feature vectors, or several views of each example.

        Args:
            x: images `(rows, height, width)` or `(rows, height, width, channels)` of any number type with 1 to 16
                channels; vectors `(rows, features)`; or, with `slots`, views `(rows, views, features)`.
            y: class numbers or text; the number −1 means unlabeled.
            test_x: the same for the test set, of which views may be `(rows, features)`, too.
            test_y: labels of the test set.
            classes: class names; if given, `y` holds their numbers or names.
            slots: how many weak and strong views follow the plain one in each row of views.
            validation: share of the labels that is kept out of training to measure on, if there is no test set.
            intensity: which values become black and white if they are not in 0…255, or 0…1 for floats: auto, full or
                percentile.
            flip: whether a mirrored image keeps its class.
            augment: how weak and strong views of images are made; see `load_ssl`.

        Example:
            >>> import numpy as np
            >>> from vcc_infuse import SSLData
            >>> images = np.zeros((6, 8, 8), dtype=np.uint8)
            >>> data = SSLData.from_arrays(images, [0, 1, -1, -1, -1, -1], classes=("cat", "dog"))
            >>> data.labeled_y.tolist(), len(data.split.pool)
            ([0, 1], 6)
        """
        dataset = from_arrays(x, y, test_x, test_y, classes=classes, slots=slots, intensity=intensity)
        dataset = dataset.augmented(augment, flip)
        data = cls(dataset, from_given_labels(dataset.train.y))
        return data if validation is None else data.with_validation(validation)

    @classmethod
    def from_dataset(
        cls,
        data: Any,
        y: Sequence[Any] | None = None,
        test: Any = None,
        test_y: Sequence[Any] | None = None,
        *,
        columns: tuple[str, str] | None = None,
        classes: Sequence[str] | None = None,
        labels: int | None = None,
        validation: float | None = None,
        size: int | None = None,
        mode: str = "auto",
        intensity: str = "auto",
        flip: bool = True,
        augment: Augment = "natural",
        seed: int = 0,
    ) -> SSLData:
        """Data from another library's dataset, or from a list of images; everything is read into memory once.

        Args:
            data: a torchvision or torch dataset of (image, label), a Hugging Face dataset, a DataFrame, a list or
                Series of images; or a mapping with "train" and maybe "test". Images are paths, PIL images, arrays
                H×W or H×W×C, or tensors C×H×W, of any size.
            y: labels, if `data` does not hold them: integers or text. None, NaN and −1 mean unlabeled.
            test: the same for the test set.
            test_y: labels of the test set, if it does not hold them.
            columns: names of the image and the label column, if they are not the usual ones.
            classes: class names; if not given, those that the dataset knows, else the labels that occur.
            labels: number of labels shown in total, spread evenly over the classes; all if not given.
            validation: share of the labels that is kept to measure on, if there is no test set.
            size: resize images to size×size; required if their sizes differ.
            mode: auto, rgb or gray.
            intensity: how values of more than 8 bits are scaled: auto, full or percentile.
            flip: whether a mirrored image keeps its class.
            augment: how weak and strong views are made; see `load_ssl`.
            seed: seed of the choice of labels.

        Example:
            >>> from PIL import Image
            >>> from vcc_infuse import SSLData
            >>> photos = [Image.new("RGB", (20 + i, 30)) for i in range(6)]
            >>> data = SSLData.from_dataset(photos, ["cat", "dog", None, None, None, None], size=16)
            >>> data.dataset.classes, data.dataset.shape, len(data.split.pool)
            (('cat', 'dog'), (16, 16, 3), 6)
        """
        dataset = load_objects(
            data, y, test, test_y, columns=columns, classes=classes, size=size, mode=mode, intensity=intensity
        ).augmented(augment, flip)
        if validation is not None and dataset.test is None:
            dataset = keep_validation(dataset, validation)
        rows = dataset.train.y
        split = from_given_labels(rows) if labels is None else balanced(rows, labels, dataset.classes, seed)
        return cls(dataset, without(split, dataset.validation))

    @property
    def labeled_y(self) -> np.ndarray:
        """The labels the method may see."""
        return np.asarray(self.dataset.train.y[self.split.labeled])

    @property
    def pool_truth(self) -> np.ndarray:
        """The labels of the pool, −1 where they are unknown."""
        return np.asarray(self.dataset.train.y[self.split.pool])

    @property
    def hidden_truth(self) -> np.ndarray:
        """The labels of the pool that the method does not see, −1 elsewhere: answers on the others prove little."""
        return np.where(np.isin(self.split.pool, self.split.labeled), UNLABELED, self.pool_truth)

    def hold_out(self, fraction: float) -> SSLData:
        """The same data with `fraction` of the labeled examples kept out of training."""
        return replace(self, split=hold_out(self.split, self.dataset.train.y, fraction, self.dataset.classes))

    def with_validation(self, fraction: float) -> SSLData:
        """The same data with a share of all known labels as the set to measure on; as it is if there is a test set."""
        if self.dataset.test is not None:
            return self
        dataset = keep_validation(self.dataset, fraction)
        return SSLData(dataset, without(self.split, dataset.validation))

    def with_all_labels(self) -> SSLData:
        """The same data with every known label shown (for the fully supervised baseline)."""
        known = np.flatnonzero(self.dataset.train.y >= 0)
        return replace(self, split=Split(labeled=known, pool=self.split.pool))


def keep_validation(dataset: Dataset, fraction: float) -> Dataset:
    """The dataset with a stratified share of its labeled rows as validation set; the images stay where they are."""
    check_range("validation", fraction, 0, 1, open_low=True, open_high=True)
    return as_validation(dataset, validation_rows(dataset.train.y, fraction))


def as_validation(dataset: Dataset, rows: np.ndarray) -> Dataset:
    """The dataset with some of its labeled training rows as validation set."""
    train = dataset.train
    names = None if train.names is None else [train.names[row] for row in rows]
    test = Examples(train.x[rows] if train.x.ndim != 3 else train.x[rows, :1], train.y[rows], names)
    y = train.y.copy()
    y[rows] = UNLABELED  # so that nothing can see the label, not even by mistake
    return replace(dataset, train=replace(train, y=y), test=test, validation=rows)

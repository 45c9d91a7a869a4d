"""SSLData: a dataset and the split that decides which of its labels a method may see, from any source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from ..augment.recipe import Augment, read_augment
from ..errors import OptionError, UserError, check_range
from ..utils.suggest import did_you_mean_path
from .dataset import UNLABELED, Dataset
from .groups import BY_DATA, check_group_by, sample_groups
from .images.decode import check_options
from .images.store import Limits
from .sources.arrays import from_arrays
from .sources.folder import decode_size, load_folder
from .sources.named import SOURCES, load_named
from .sources.other_datasets import load_objects
from .split import LongTail, Split, balanced, from_given_labels, hold_out, long_tailed, validation_rows, without


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
        groups: ArrayLike | None = None,
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
            groups: numbers or names, `(rows,)`; rows with the same one are never torn apart by a split of the labels.
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
        if groups is not None:
            dataset = replace(dataset, groups=np.unique(np.asarray(groups), return_inverse=True)[1])
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
    def label_groups(self) -> np.ndarray | None:
        """The group of each label the method may see; None if every label stands alone."""
        groups = self.dataset.groups
        if groups is None or len(np.unique(groups[self.split.labeled])) == len(self.split.labeled):
            return None
        return np.asarray(groups[self.split.labeled])

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
        groups = None if self.label_groups is None else self.dataset.groups
        return replace(self, split=hold_out(self.split, self.dataset.train.y, fraction, self.dataset.classes, groups))

    def with_validation(self, fraction: float) -> SSLData:
        """The same data with a share of all known labels as the set to measure on; as it is if there is a test set."""
        if self.dataset.test is not None:
            return self
        dataset = keep_validation(self.dataset, fraction)
        return SSLData(dataset, without(self.split, dataset.validation))

    def regrouped(self, groups: np.ndarray) -> SSLData:
        """The same data with other groups: whole ones are kept for validation, of each class about as many as before.

        Args:
            groups: of all training rows, (rows,).
        """
        dataset = replace(self.dataset, groups=groups)
        rows = dataset.validation
        if rows is None or dataset.test is None:
            return replace(self, dataset=dataset)
        y = dataset.train.y.copy()
        y[rows] = dataset.test.y
        known = np.sort(np.concatenate([self.split.labeled, rows]))
        if not np.isin(groups[rows], groups[self.split.labeled]).any():  # nothing is torn apart
            return replace(self, dataset=dataset)
        wanted = np.bincount(y[rows], minlength=len(dataset.classes))
        chosen = sample_groups(y[known], groups[known], wanted, np.random.RandomState(0))
        if not len(chosen):  # there are no two groups to choose from
            return replace(self, dataset=dataset)
        validation = known[chosen]
        back = replace(dataset, train=replace(dataset.train, y=y), test=None, validation=None)
        labeled = np.setdiff1d(known, validation)
        labeled = labeled[np.argsort(y[labeled], kind="stable")]
        included = np.isin(self.split.labeled, self.split.pool).all()
        rest = np.setdiff1d(self.split.pool, known)
        pool = np.concatenate([labeled, rest]) if included else rest
        return SSLData(back.with_validation(validation), Split(labeled, pool))

    def with_all_labels(self) -> SSLData:
        """The same data with every known label shown (for the fully supervised baseline)."""
        known = np.flatnonzero(self.dataset.train.y >= 0)
        return replace(self, split=Split(labeled=known, pool=self.split.pool))


def keep_validation(dataset: Dataset, fraction: float) -> Dataset:
    """The dataset with a stratified share of its labeled rows as validation set; the images stay where they are."""
    check_range("validation", fraction, 0, 1, open_low=True, open_high=True)
    return dataset.with_validation(validation_rows(dataset.train.y, fraction, dataset.groups))


def load_ssl(
    data: str = "digits",
    *,
    labels: int | None = None,
    long_tail: LongTail | None = None,
    include_labeled: bool | None = None,
    root: str | None = None,
    download: bool = False,
    size: int | None = None,
    mode: Literal["auto", "rgb", "gray"] = "auto",
    intensity: Literal["auto", "full", "percentile"] = "auto",
    cache: str | None = None,
    flip: bool | None = None,
    augment: Augment = "natural",
    label_file: str | None = None,
    validation: float | Literal["none"] = 0.2,
    group_by: str = "auto",
    limits: Limits | None = None,
    seed: int = 0,
    all_labels: bool = False,
    progress: bool = True,
) -> SSLData:
    """Load images and choose which labels are shown.

    Args:
        data: a named source (see `vcc-infuse list`), or a folder or zip of class folders.
        labels: number of labels shown in total, spread evenly over the classes.
        long_tail: class sizes that fall geometrically, instead of `labels`.
        include_labeled: also use labeled images as unlabeled ones (default: yes, but not with long_tail).
        root: folder with the files of a named source.
        download: download the files of a named source if they are missing.
        size: resize images to size×size.
        mode: color mode; auto is gray only if all images are, and keeps the channels of TIFF files that have others.
        intensity: which values of 16-bit and float images become black and white, the same for all images: auto (the
            range of 8 to 16 bits, or 0 to 1, that holds them), full (16 bits, or 0 to 1), percentile (0.5 to 99.5).
        cache: folder for decoded images.
        flip: whether a mirrored image keeps its class (default: yes, but not for digits, svhn and svhn_train; set it to
            false for a folder or zip of digits or letters).
        augment: how weak and strong views are made: natural, gentle, microscopy, satellite, text or none; or operations
            and their magnitudes, such as {weak: {crop: 0.1}, strong: {crop: 0.1, rotate: 15}}. See docs/augment.md.
        label_file: labels of the images in `data`: a CSV with the columns file, label and maybe split (train,
            validation or test), JSON lines, or a JSON export of Label Studio or COCO; other images are unlabeled.
        validation: share of the labels that is kept out of training to measure on, if there is no test set; or none.
        group_by: what belongs together when labels are split for validation or cross-validation: auto (near copies, on
            a bank), none, a column of the label file, or a regular expression whose first group, or whole match, is
            found in the name of each file. An expression also splits class folders for testing.
        limits: largest image, file and depth of folders that are read of a folder or zip.
        seed: seed of the choice of labels.
        all_labels: show every label if neither `labels` nor `long_tail` is given.
        progress: show a progress bar while images are decoded.

    Returns:
        The dataset, and which of its labels are shown.

    Example:
        >>> from vcc_infuse import load_ssl
        >>> data = load_ssl("digits", labels=40)
        >>> data.dataset.shape, len(data.split.labeled), len(data.split.pool)
        ((8, 8, 1), 40, 1437)
    """
    read_augment(augment)  # a mistake is reported before images are decoded
    check_group_by(group_by)
    dataset = load(
        data, root=root, download=download, size=size, mode=mode, cache=cache, progress=progress, label_file=label_file,
        intensity=intensity, limits=limits, group_by=group_by,
    )  # fmt: skip
    dataset = dataset.augmented(augment, flip)
    if dataset.test is None and validation != "none":
        dataset = keep_validation(dataset, validation)
    split = choose_split(
        dataset, labels=labels, long_tail=long_tail, include_labeled=include_labeled, seed=seed, all_labels=all_labels
    )
    return SSLData(dataset, without(split, dataset.validation))


def choose_split(
    dataset: Dataset,
    *,
    labels: int | None = None,
    long_tail: LongTail | None = None,
    include_labeled: bool | None = None,
    seed: int = 0,
    all_labels: bool = False,
) -> Split:
    """Which labels of a loaded dataset are shown; the options are those of `load_ssl`."""
    y = dataset.train.y
    classes = dataset.classes
    if long_tail is not None:
        if labels is not None:
            raise UserError("labels and long_tail exclude each other; give one of them")
        return long_tailed(y, classes, seed, long_tail, bool(include_labeled))
    if labels is not None:
        return balanced(y, labels, classes, seed, include_labeled is not False)
    if dataset.fixed or all_labels:
        return from_given_labels(y)
    remedy = f"choose how many labels of {dataset.name} are shown, for example {4 * len(classes)}"
    raise OptionError("labels", None, "must be set", remedy)


def network_size(data: str, side: int, *, cache: str | None, limits: Limits | None, progress: bool) -> int | None:
    """The `size` of `load` that suits a network of `side` pixels: photos need not be decoded at more than that.

    None for named datasets, and for images of one size that are smaller.
    """
    path = Path(data).expanduser()
    if data in SOURCES or not data or not path.exists():  # `load` says what is wrong
        return None
    return decode_size(path, side, cache=cache, limits=limits, progress=progress)


def load(
    data: str,
    *,
    root: str | None = None,
    download: bool = False,
    size: int | None = None,
    mode: str = "auto",
    cache: str | None = None,
    progress: bool = False,
    label_file: str | None = None,
    intensity: str = "auto",
    limits: Limits | None = None,
    group_by: str = "none",
) -> Dataset:
    """The dataset called `data`, or the one in the folder or zip of that path (./digits for a folder digits).

    Class folders alone give a fixed fifth of every class to the test set; labeled/ and unlabeled/ without test/ have
    none. The options are those of `load_ssl`.
    """
    check_options(size, mode, intensity)
    if data in SOURCES:
        if label_file is not None:
            raise OptionError("label_file", label_file, f"must be left out, because {data} has labels of its own")
        if group_by not in BY_DATA:
            raise OptionError("group_by", group_by, f"must be auto or none, because {data} has no names of files")
        return load_named(data, root=root, download=download, size=size, mode=mode, cache=cache)
    path = Path(data).expanduser()
    if data and path.exists():
        return load_folder(
            path, size=size, mode=mode, cache=cache, progress=progress, label_file=label_file, intensity=intensity,
            limits=limits, group_by=group_by,
        )  # fmt: skip
    hint = did_you_mean_path(data, SOURCES).removeprefix("; ") or f"known sources: {', '.join(SOURCES)}"
    raise OptionError("data", data, "must be a known source or the path of a folder or zip", hint)

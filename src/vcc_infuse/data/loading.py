"""Load a dataset by name or path, and choose which labels are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ..augment.recipe import Augment, read_augment
from ..errors import OptionError, UserError
from ..utils.suggest import did_you_mean_path
from .dataset import Dataset
from .images.decode import check_options
from .images.store import Limits
from .sources.folder import load_folder
from .sources.named import SOURCES, load_named
from .split import LongTail, Split, balanced, from_given_labels, long_tailed, without
from .ssl_data import SSLData, keep_validation


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
    dataset = load(
        data, root=root, download=download, size=size, mode=mode, cache=cache, progress=progress, label_file=label_file,
        intensity=intensity, limits=limits,
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
) -> Dataset:
    """The dataset called `data`, or the one in the folder or zip of that path (./digits for a folder digits).

    Class folders alone give a fixed fifth of every class to the test set; labeled/ and unlabeled/ without test/ have
    none. The options are those of `load_ssl`.
    """
    check_options(size, mode, intensity)
    if label_file is not None and data in SOURCES:
        raise OptionError("label_file", label_file, f"must be left out, because {data} has labels of its own")
    if data in SOURCES:
        return load_named(data, root=root, download=download, size=size, mode=mode, cache=cache)
    path = Path(data).expanduser()
    if data and path.exists():
        return load_folder(
            path, size=size, mode=mode, cache=cache, progress=progress, label_file=label_file, intensity=intensity,
            limits=limits,
        )  # fmt: skip
    hint = did_you_mean_path(data, SOURCES).removeprefix("; ") or f"known sources: {', '.join(SOURCES)}"
    raise OptionError("data", data, "must be a known source or the path of a folder or zip", hint)

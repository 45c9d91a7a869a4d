"""Load a dataset by name or path, and choose which labels are shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..augment.recipe import Augment, read_augment
from ..errors import OptionError, UserError
from ..utils.suggest import did_you_mean_path
from .cache import Allocate, cache_folder, cached
from .dataset import Dataset, Examples, channel_mean_std
from .images.convert import check_options, height_width
from .images.decode import refit
from .images.high_bit_depth import check_intensity
from .images.store import Limits
from .sources import named
from .sources.folder import load_folder
from .sources.named import CLASSES, read_fashion_mnist
from .split import LongTail, Split, balanced, from_given_labels, long_tailed, train_test_rows, without
from .ssl_data import SSLData, keep_validation

SOURCES: dict[str, str] = {
    "digits": "scikit-learn's handwritten digits, 1,437 train / 360 test, 8×8 gray, 10 classes; needs no download",
    "fashion_mnist": "Fashion-MNIST, 60,000 / 10,000, 28×28 gray, 10 classes",
    "cifar10": "CIFAR-10, 50,000 / 10,000, 32×32 RGB, 10 classes",
    "cifar100": "CIFAR-100, 50,000 / 10,000, 32×32 RGB, 100 classes",
    "svhn": "SVHN with its extra images, 604,388 / 26,032, 32×32 RGB, 10 classes; not mirrored",
    "svhn_train": "SVHN without its extra images, 73,257 / 26,032, 32×32 RGB, 10 classes; not mirrored",
    "stl10": "STL-10, 5,000 labeled + 100,000 unlabeled / 8,000, 96×96 RGB, 10 classes",
}


def load_ssl(
    data: str = "digits",
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
    """
    read_augment(augment)  # a mistake is told before images are decoded
    dataset = load(
        data, root=root, download=download, size=size, mode=mode, cache=cache, progress=progress, label_file=label_file,
        intensity=intensity, limits=limits,
    )  # fmt: skip
    dataset = dataset.augmented(augment, flip)
    if dataset.test is None and validation != "none":
        dataset = keep_validation(dataset, validation)
    split = choose_split(dataset, labels, long_tail, include_labeled, seed, all_labels)
    return SSLData(dataset, split if dataset.validation is None else without(split, dataset.validation))


def choose_split(
    dataset: Dataset,
    labels: int | None,
    long_tail: LongTail | None,
    include_labeled: bool | None,
    seed: int,
    all_labels: bool,
) -> Split:
    """Which labels of a loaded dataset are shown; the options are those of `load_ssl`."""
    y, classes = dataset.train.y, dataset.classes
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

    `root` is the folder with the files of a named source (default: datasets/ in the cache folder); `download` fetches
    missing files into it. Class folders alone give a fixed fifth of every class to the test set; labeled/ and
    unlabeled/ without test/ have none. `size` makes every image size×size; `mode` rgb or gray sets the channels.
    `label_file` is a table with the labels of a folder or zip of images in any layout. `intensity`
    says how images with more than 8 bits are scaled, and `limits` how large a file may be; see `load_ssl`.
    """
    check_options(size, mode)
    check_intensity(intensity)
    if label_file is not None and data in SOURCES:
        raise OptionError("label_file", label_file, f"must be left out, because {data} has labels of its own")
    if data in named.SPECS:
        return _torchvision(data, root, download, size, mode, cache)
    if data == "digits":
        return _digits(size, mode)
    if data == "fashion_mnist":
        train, test = read_fashion_mnist(root, cache_folder(cache) / "datasets", download)
        return _refitted(data, train, test, CLASSES, size, mode)
    path = Path(data).expanduser()
    if data and path.exists():
        return load_folder(path, size, mode, cache, progress, label_file, intensity, limits)
    hint = did_you_mean_path(data, SOURCES).removeprefix("; ") or f"known sources: {', '.join(SOURCES)}"
    raise OptionError("data", data, "must be a known source or the path of a folder or zip", hint)


def _digits(size: int | None, mode: str) -> Dataset:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = np.rint(images * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)  # stored as 0…16
    y = labels.astype(np.int64)
    train, test = (Examples(x[rows], y[rows]) for rows in train_test_rows(y))
    dataset = _refitted("digits", train, test, tuple(map(str, range(10))), size, mode)
    return replace(dataset, flip=False)  # a mirrored digit is no digit


def _refitted(
    name: str, train: Examples, test: Examples, classes: tuple[str, ...], size: int | None, mode: str
) -> Dataset:
    train_x, test_x = (np.empty(_refitted_shape(part.x.shape, size, mode), np.uint8) for part in (train, test))
    refit(train.x, train_x)
    refit(test.x, test_x)
    mean, std = channel_mean_std(train_x)
    return Dataset(Examples(train_x, train.y), Examples(test_x, test.y), classes, mean, std, name=name)


def _refitted_shape(shape: tuple[int, ...], size: int | None, mode: str) -> tuple[int, ...]:
    channels = {"rgb": 3, "gray": 1}.get(mode, shape[3])
    return (shape[0], *(height_width(size) or shape[1:3]), channels)


def _torchvision(
    name: str, root: str | None, download: bool, size: int | None, mode: str, cache: str | None
) -> Dataset:
    """Through the cache, because reading and checking the large sets takes minutes and memory."""
    home = Path(root).expanduser() if root else cache_folder(cache) / "datasets"
    key = [name, named.find(name, home, download), size, mode]
    arrays, facts = cached(key, cache, lambda allocate: _decode_torchvision(name, home, size, mode, allocate))
    train, test = (Examples(arrays[part], np.array(facts["labels"][part], np.int64)) for part in ("train", "test"))
    mean, std = tuple(facts["mean"]), tuple(facts["std"])
    return Dataset(
        train, test, tuple(facts["classes"]), mean, std, flip=named.SPECS[name].flip, name=name
    )  # fmt: skip


def _decode_torchvision(name: str, home: Path, size: int | None, mode: str, allocate: Allocate) -> dict[str, Any]:
    parts, test, classes = named.read(name, home)
    shape = (sum(map(len, parts)), *parts[0].x.shape[1:])
    train_x = allocate("train", _refitted_shape(shape, size, mode))
    start = 0
    for part in parts:
        refit(part.x, train_x[start : start + len(part)])
        start += len(part)
    refit(test.x, allocate("test", _refitted_shape(test.x.shape, size, mode)))
    original = train_x.shape == shape
    mean, std = named.SPECS[name].mean_std if original else channel_mean_std(train_x)
    labels = {"train": np.concatenate([part.y for part in parts]).tolist(), "test": test.y.tolist()}
    return {"labels": labels, "classes": classes, "mean": mean, "std": std}

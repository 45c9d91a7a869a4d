"""Where images come from: a set known by name, or the path of a folder or zip."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import UserError
from ..utils.suggest import did_you_mean_path
from .cache import Allocate, cache_folder, cached
from .dataset import Dataset, Examples, moments
from .images.convert import check_options, height_width
from .images.decode import refit
from .long_tail import long_tail
from .sources import torchvision as torchvision_sets
from .sources.fashion_mnist import CLASSES, read_fashion_mnist
from .sources.folder import load_folder
from .sources.torchvision import Part
from .split import Split, balanced, given, holdout
from .ssl_data import SSLData

SOURCES: dict[str, str] = {
    "digits": "scikit-learn's handwritten digits, 1,437 train / 360 test, 8×8 gray, 10 classes; always there",
    "fashion_mnist": "Fashion-MNIST, 60,000 / 10,000, 28×28 gray, 10 classes",
    "cifar10": "CIFAR-10, 50,000 / 10,000, 32×32 RGB, 10 classes",
    "cifar100": "CIFAR-100, 50,000 / 10,000, 32×32 RGB, 100 classes",
    "svhn": "SVHN with its extra images, 604,388 / 26,032, 32×32 RGB, 10 classes; not mirrored",
    "svhn_train": "SVHN without its extra images, 73,257 / 26,032, 32×32 RGB, 10 classes; not mirrored",
    "stl10": "STL-10, 5,000 labeled + 100,000 unlabeled / 8,000, 96×96 RGB, 10 classes",
}


def load(
    data: str,
    *,
    root: str | None = None,
    download: bool = False,
    size: int | None = None,
    mode: str = "auto",
    cache: str | None = None,
    progress: bool = False,
) -> Dataset:
    """The dataset called `data`, or the one in the folder or zip of that path (./digits for a folder digits).

    `root` is where a public set's files are (default: datasets/ in the cache folder), `download` fetches them
    there. Class folders without a test part give it a fixed fifth of every class. `size` makes every image
    size×size, `mode` rgb or gray sets the channels.
    """
    check_options(size, mode)
    if data in torchvision_sets.PUBLIC:
        return _public(data, root, download, size, mode, cache)
    if data == "digits":
        return _digits(size, mode)
    if data == "fashion_mnist":
        train, test = read_fashion_mnist(root, cache_folder(cache) / "datasets", download)
        return _refitted(data, train, test, CLASSES, size, mode)
    path = Path(data).expanduser()
    if data and path.exists():
        return load_folder(path, size, mode, cache, progress)
    hint = did_you_mean_path(data, SOURCES) or f"known sources: {', '.join(SOURCES)}"
    raise UserError(f"--data {data}: no such source, folder or zip; {hint}")


def _digits(size: int | None, mode: str) -> Dataset:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = np.rint(images * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)  # stored as 0…16
    y = labels.astype(np.int64)
    train, test = holdout(y)
    classes = tuple(str(c) for c in range(10))
    dataset = _refitted("digits", (x[train], y[train]), (x[test], y[test]), classes, size, mode)
    return replace(dataset, flip=False)  # a mirrored digit is another sign


def _refitted(name: str, train: Part, test: Part, classes: tuple[str, ...], size: int | None, mode: str) -> Dataset:
    train_x, test_x = (np.empty(_wanted(x.shape, size, mode), np.uint8) for x, _ in (train, test))
    refit(train[0], train_x)
    refit(test[0], test_x)
    mean, std = moments(train_x)
    return Dataset(Examples(train_x, train[1]), Examples(test_x, test[1]), classes, mean, std, name=name)


def _wanted(shape: tuple[int, ...], size: int | None, mode: str) -> tuple[int, ...]:
    channels = {"rgb": 3, "gray": 1}.get(mode, shape[3])
    return (shape[0], *(height_width(size) or shape[1:3]), channels)


def _public(name: str, root: str | None, download: bool, size: int | None, mode: str, cache: str | None) -> Dataset:
    """Through the cache as well: checking, unpacking and turning the large sets takes minutes and memory."""
    home = Path(root).expanduser() if root else cache_folder(cache) / "datasets"
    key = [name, torchvision_sets.find(name, home, download), size, mode]

    def build(allocate: Allocate) -> dict[str, Any]:
        parts, test, classes = torchvision_sets.read(name, home)
        n = sum(len(x) for x, _ in parts)
        train_x = allocate("train", _wanted((n, *parts[0][0].shape[1:]), size, mode))
        start = 0
        for x, _ in parts:
            refit(x, train_x[start : start + len(x)])
            start += len(x)
        refit(test[0], allocate("test", _wanted(test[0].shape, size, mode)))
        usual = train_x.shape[1:] == parts[0][0].shape[1:]
        mean, std = torchvision_sets.PUBLIC[name].moments if usual else moments(train_x)
        labels = {"train": np.concatenate([y for _, y in parts]).tolist(), "test": test[1].tolist()}
        return {"labels": labels, "classes": classes, "mean": mean, "std": std}

    arrays, facts = cached(key, cache, build)
    train, test = (Examples(arrays[p], np.array(facts["labels"][p], np.int64)) for p in ("train", "test"))
    flip = torchvision_sets.PUBLIC[name].flip
    mean, std = tuple(facts["mean"]), tuple(facts["std"])
    return Dataset(train, test, tuple(facts["classes"]), mean, std, flip=flip, name=name)


@dataclass
class LongTail:
    """Class sizes that fall geometrically.

    Args:
        first: labeled images of the largest class.
        gamma: how many times smaller the smallest class is.
        beta: share of labeled among all images kept of a class.
        unlabeled_first: unlabeled images of the largest class, instead of beta.
        gamma_u: imbalance of the unlabeled images; negative reverses the order of the classes; gamma if not given.
    """

    first: int | None = None
    gamma: float = 100.0
    beta: float | None = None
    unlabeled_first: int | None = None
    gamma_u: float | None = None


def load_ssl(
    data: str = "digits",
    labels: int | None = None,
    long_tail: LongTail | None = None,
    include_labeled: bool | None = None,
    root: str | None = None,
    download: bool = False,
    size: int | None = None,
    mode: Literal["auto", "rgb", "gray"] = "auto",
    cache: str | None = None,
    flip: bool | None = None,
    seed: int = 0,
    all_labels: bool = False,
    progress: bool = True,
) -> SSLData:
    """Load images and choose which labels are shown.

    Args:
        data: a named source (see `vcc-infuse list`), or a folder or zip of class folders.
        labels: how many labels are shown in all, spread evenly over the classes.
        long_tail: instead of `labels`, class sizes that fall geometrically.
        include_labeled: whether labeled images also count as unlabeled (default: yes, but not with long_tail).
        root: where the files of a named source lie.
        download: fetch a named source that is not there yet.
        size: resize images to size×size.
        mode: color mode; auto is gray only if all images are.
        cache: where decoded images are kept.
        flip: whether a mirrored image keeps its class (default: yes, but not for digits, svhn and svhn_train;
            a folder or zip of digits or letters needs `--flip false`).
    """
    dataset = load(data, root=root, download=download, size=size, mode=mode, cache=cache, progress=progress)
    dataset = dataset if flip is None else replace(dataset, flip=flip)
    return SSLData(dataset, choose_split(dataset, labels, long_tail, include_labeled, seed, all_labels))


def choose_split(
    dataset: Dataset,
    labels: int | None,
    tail: LongTail | None,
    include_labeled: bool | None,
    seed: int,
    all_labels: bool = False,
) -> Split:
    """The split the options ask for."""
    y, classes = dataset.train.y, dataset.classes
    if tail is not None:
        if labels is not None:
            raise UserError("--labels and --long_tail exclude each other; give one")
        if tail.first is None:
            raise UserError("--long_tail.first is missing: say how many labels the largest class has, e.g. 60")
        return long_tail(
            y, classes, seed, tail.first, tail.gamma, beta=tail.beta, unlabeled_first=tail.unlabeled_first,
            gamma_u=tail.gamma_u, include_labeled=bool(include_labeled),
        )  # fmt: skip
    if labels is None:
        if dataset.fixed or all_labels:
            return given(dataset.train.y)
        raise UserError(f"--labels is missing: say how many of {dataset.name} are shown, e.g. {4 * len(classes)}")
    return balanced(y, labels, classes, seed, include_labeled is not False)

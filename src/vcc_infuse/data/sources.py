"""Where images come from: a set known by name, or the path of a folder or zip."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from . import torchvision_sets
from .cache import Allocate, cache_folder, cached
from .dataset import Dataset, Examples
from .decode import refit
from .fashion_mnist import CLASSES, read_fashion_mnist
from .folders import load_folder
from .holdout import holdout
from .moments import moments
from .paths import close_matches
from .pixels import check_options, height_width
from .torchvision_sets import Part

SOURCES: dict[str, str] = {
    "digits": "scikit-learn's handwritten digits, 1,437 train / 360 test, 8×8 grey, 10 classes; always there",
    "fashion_mnist": "Fashion-MNIST, 60,000 / 10,000, 28×28 grey, 10 classes",
    "cifar10": "CIFAR-10, 50,000 / 10,000, 32×32 RGB, 10 classes",
    "cifar100": "CIFAR-100, 50,000 / 10,000, 32×32 RGB, 100 classes",
    "svhn": "SVHN with its extra images, 604,388 / 26,032, 32×32 RGB, 10 classes; not mirrored",
    "svhn_train": "SVHN without its extra images, 73,257 / 26,032, 32×32 RGB, 10 classes; not mirrored",
    "stl10": "STL-10, 5,000 labelled + 100,000 unlabelled / 8,000, 96×96 RGB, 10 classes",
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
    size×size, `mode` rgb or grey sets the channels.
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
    hint = close_matches(data, SOURCES) or f"known sources: {', '.join(SOURCES)}"
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
    channels = {"rgb": 3, "grey": 1}.get(mode, shape[3])
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

"""Datasets by name: scikit-learn's digits, Fashion-MNIST from IDX files, and those that torchvision downloads."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError
from ..cache import Allocate, cache_folder, cached
from ..dataset import Dataset, Examples, MeanStd, channel_mean_std
from ..images.decode import height_width, refit
from ..split import train_test_rows

SOURCES: dict[str, str] = {
    "digits": "scikit-learn's handwritten digits, 1,437 train / 360 test, 8×8 gray, 10 classes; needs no download",
    "fashion_mnist": "Fashion-MNIST, 60,000 / 10,000, 28×28 gray, 10 classes",
    "cifar10": "CIFAR-10, 50,000 / 10,000, 32×32 RGB, 10 classes",
    "cifar100": "CIFAR-100, 50,000 / 10,000, 32×32 RGB, 100 classes",
    "svhn": "SVHN with its extra images, 604,388 / 26,032, 32×32 RGB, 10 classes; not mirrored",
    "svhn_train": "SVHN without its extra images, 73,257 / 26,032, 32×32 RGB, 10 classes; not mirrored",
    "stl10": "STL-10, 5,000 labeled + 100,000 unlabeled / 8,000, 96×96 RGB, 10 classes",
}
FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
_FASHION_RAW = Path("FashionMNIST", "raw")  # where torchvision puts the files


@dataclass(frozen=True)
class TorchvisionSpec:
    """How torchvision stores a dataset, its training and test splits, its usual mean and std, whether to mirror it."""

    factory: str
    files: tuple[str, ...]
    train: tuple[dict[str, Any], ...]
    test: dict[str, Any]
    mean_std: MeanStd
    flip: bool = True


_SVHN = ((0.4380, 0.4440, 0.4730), (0.1751, 0.1771, 0.1744))
SPECS = {
    "cifar10": TorchvisionSpec(
        "CIFAR10",
        (*map("cifar-10-batches-py/data_batch_{}".format, range(1, 6)), "cifar-10-batches-py/test_batch"),
        ({"train": True},), {"train": False},
        ((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)),
    ),
    "cifar100": TorchvisionSpec(
        "CIFAR100", ("cifar-100-python/train", "cifar-100-python/test"), ({"train": True},), {"train": False},
        ((129.3 / 255, 124.1 / 255, 112.4 / 255), (68.2 / 255, 65.4 / 255, 70.4 / 255)),
    ),
    "svhn": TorchvisionSpec(
        "SVHN", ("train_32x32.mat", "extra_32x32.mat", "test_32x32.mat"),
        ({"split": "train"}, {"split": "extra"}), {"split": "test"}, _SVHN, flip=False,
    ),
    "svhn_train": TorchvisionSpec(
        "SVHN", ("train_32x32.mat", "test_32x32.mat"), ({"split": "train"},), {"split": "test"}, _SVHN, flip=False,
    ),
    "stl10": TorchvisionSpec(
        "STL10",
        tuple(map("stl10_binary/{}.bin".format, ("train_X", "train_y", "unlabeled_X", "test_X", "test_y"))),
        ({"split": "train"}, {"split": "unlabeled"}), {"split": "test"},
        ((112.4 / 255, 109.1 / 255, 98.6 / 255), (68.4 / 255, 66.6 / 255, 68.5 / 255)),
    ),
}  # fmt: skip


def load_named(
    name: str, *, root: str | None, download: bool, size: int | None, mode: str, cache: str | None
) -> Dataset:
    """The dataset called `name` (see `SOURCES`); the other arguments are those of `load`."""
    if name == "digits":
        return _digits(size, mode)
    home = Path(root).expanduser() if root else cache_folder(cache) / "datasets"
    if name == "fashion_mnist":
        train, test = _read_fashion_mnist(home, bool(root), download)
        return _resized(name, train, test, FASHION_CLASSES, size, mode)
    # Through the cache, because reading and checking the large sets takes minutes and memory.
    key = [name, find(name, home, download), size, mode]
    arrays, facts = cached(key, cache, lambda allocate: _decode_torchvision(name, home, size, mode, allocate))
    train, test = (Examples(arrays[part], np.array(facts["labels"][part], np.int64)) for part in ("train", "test"))
    classes, mean, std = (tuple(facts[fact]) for fact in ("classes", "mean", "std"))
    return Dataset(train, test, classes, mean, std, flip=SPECS[name].flip, name=name)


def _resized(
    name: str, train: Examples, test: Examples, classes: tuple[str, ...], size: int | None, mode: str, flip: bool = True
) -> Dataset:
    train_x, test_x = (np.empty(_resized_shape(part.x.shape, size, mode), np.uint8) for part in (train, test))
    refit(train.x, train_x)
    refit(test.x, test_x)
    mean, std = channel_mean_std(train_x)
    return Dataset(Examples(train_x, train.y), Examples(test_x, test.y), classes, mean, std, flip=flip, name=name)


def _resized_shape(shape: tuple[int, ...], size: int | None, mode: str) -> tuple[int, ...]:
    channels = {"rgb": 3, "gray": 1}.get(mode, shape[3])
    return (shape[0], *(height_width(size) or shape[1:3]), channels)


# --- digits


def _digits(size: int | None, mode: str) -> Dataset:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = np.rint(images * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)  # stored as 0…16
    y = labels.astype(np.int64)
    train, test = (Examples(x[rows], y[rows]) for rows in train_test_rows(y))
    classes = tuple(map(str, range(10)))
    return _resized("digits", train, test, classes, size, mode, flip=False)  # a mirrored digit is no digit


# --- torchvision


def find(name: str, root: Path, download: bool) -> list[tuple[str, int, int]]:
    """(name, size, time) of the files of a dataset; missing files are downloaded if `download`."""
    spec = SPECS[name]
    missing = [file for file in spec.files if not (root / file).is_file()]
    if missing and not download:
        raise UserError(f"{name}: {root / missing[0]} is missing; set root to its folder, or set download to true")
    if missing:
        for options in (*spec.train, spec.test):
            _open(name, root, options, download=True)
    stats = [(file, (root / file).stat()) for file in spec.files]
    return [(file, stat.st_size, stat.st_mtime_ns) for file, stat in stats]


def _open(name: str, root: Path, options: dict[str, Any], download: bool = False) -> Any:
    from torchvision import datasets

    try:
        return getattr(datasets, SPECS[name].factory)(str(root), download=download, **options)
    except (RuntimeError, OSError) as error:
        remedy = "try again later, or set root" if download else "remove them and set download to true"
        raise UserError(f"{name}: files in {root} are not usable ({error}); {remedy}") from error


def _decode_torchvision(name: str, root: Path, size: int | None, mode: str, allocate: Allocate) -> dict[str, Any]:
    spec = SPECS[name]
    sets = [_open(name, root, options) for options in (*spec.train, spec.test)]
    *parts, test = map(_examples, sets)
    shape = (sum(map(len, parts)), *parts[0].x.shape[1:])
    train_x = allocate("train", _resized_shape(shape, size, mode))
    start = 0
    for part in parts:
        refit(part.x, train_x[start : start + len(part)])
        start += len(part)
    refit(test.x, allocate("test", _resized_shape(test.x.shape, size, mode)))
    mean, std = spec.mean_std if train_x.shape == shape else channel_mean_std(train_x)
    labels = {"train": np.concatenate([part.y for part in parts]).tolist(), "test": test.y.tolist()}
    classes = tuple(getattr(sets[0], "classes", map(str, range(10))))
    return {"labels": labels, "classes": classes, "mean": mean, "std": std}


def _examples(part: Any) -> Examples:
    """CIFAR calls labels targets; the unlabeled part of STL-10 has none."""
    x = np.asarray(part.data)
    labels = getattr(part, "targets", None)
    labels = part.labels if labels is None else labels
    y = np.full(len(x), -1, np.int64) if labels is None else np.asarray(labels, np.int64)
    return Examples(x if x.shape[-1] == 3 else x.transpose(0, 2, 3, 1), y)


# --- Fashion-MNIST


def _read_fashion_mnist(home: Path, given: bool, download: bool) -> tuple[Examples, Examples]:
    """Training and test examples, from `home` if the user gave it, else from Debian's package or `home`."""
    folders = [home if given else DEBIAN, home / _FASHION_RAW]
    folder = next((f for f in folders if _idx_file(f, "train-images-idx3")), None)
    if folder is None and download:
        folder = _download_fashion_mnist(home)
    if folder is None:
        remedy = "apt-get install dataset-fashion-mnist, or set root to their folder, or set download to true"
        raise UserError(f"fashion_mnist: no IDX files in {folders[0]}; {remedy}")
    return _read_part(folder, "train"), _read_part(folder, "t10k")


def _download_fashion_mnist(home: Path) -> Path:
    from torchvision.datasets import FashionMNIST

    try:
        FashionMNIST(str(home), download=True)
    except (RuntimeError, OSError) as error:
        raise UserError(f"fashion_mnist: download to {home} failed ({error}); set root to its folder") from error
    return home / _FASHION_RAW


def _read_part(folder: Path, prefix: str) -> Examples:
    arrays = {}
    for stem in (f"{prefix}-images-idx3", f"{prefix}-labels-idx1"):
        path = _idx_file(folder, stem)
        if path is None:
            raise UserError(f"fashion_mnist: {folder} lacks {stem}-ubyte(.gz); set root to another folder")
        arrays[stem] = read_idx(path)
    images, labels = arrays.values()
    if images.ndim != 3 or labels.shape != (len(images),):
        raise UserError(f"fashion_mnist: {folder} has {labels.shape} labels for {images.shape} images; get new files")
    return Examples(images[..., None], labels.astype(np.int64))


def _idx_file(folder: Path, stem: str) -> Path | None:
    return next((p for p in (folder / f"{stem}-ubyte", folder / f"{stem}-ubyte.gz") if p.is_file()), None)


def read_idx(path: str | Path) -> np.ndarray:
    """The uint8 array stored in an IDX file, compressed or not."""
    raw = Path(path).read_bytes()
    try:
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip file ({error}); download it again") from error
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise UserError(f"{path}: not an IDX file of bytes: it starts with {raw[:4].hex()}, not 000008")
    start = 4 + 4 * raw[3]
    shape = tuple(np.frombuffer(raw[4:start], ">u4").astype(int).tolist()) if len(raw) >= start else ()
    expected = start + int(np.prod(shape, dtype=object))
    if len(shape) != raw[3] or len(raw) != expected:
        raise UserError(f"{path}: damaged IDX file ({len(raw)} bytes instead of {expected}); download it again")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)

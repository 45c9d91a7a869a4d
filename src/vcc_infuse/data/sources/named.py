"""The datasets that torchvision downloads and checks: CIFAR-10, CIFAR-100, SVHN and STL-10."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError
from ..dataset import Examples, MeanStd


@dataclass(frozen=True)
class TorchvisionSpec:
    """How torchvision stores a dataset, its training and test splits, its usual mean and std, whether to mirror it."""

    factory: str
    files: tuple[str, ...]
    train: tuple[dict[str, Any], ...]
    test: dict[str, Any]
    mean_std: MeanStd
    flip: bool = True


def _of_255(*values: float) -> tuple[float, ...]:
    return tuple(v / 255 for v in values)


_SVHN = ((0.4380, 0.4440, 0.4730), (0.1751, 0.1771, 0.1744))
_STL = tuple(f"stl10_binary/{f}.bin" for f in ("train_X", "train_y", "unlabeled_X", "test_X", "test_y"))
_CIFAR = (*(f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)), "cifar-10-batches-py/test_batch")

SPECS = {
    "cifar10": TorchvisionSpec(
        "CIFAR10", _CIFAR,
        ({"train": True},), {"train": False}, (_of_255(125.3, 123.0, 113.9), _of_255(63.0, 62.1, 66.7)),
    ),
    "cifar100": TorchvisionSpec(
        "CIFAR100", ("cifar-100-python/train", "cifar-100-python/test"),
        ({"train": True},), {"train": False}, (_of_255(129.3, 124.1, 112.4), _of_255(68.2, 65.4, 70.4)),
    ),
    "svhn": TorchvisionSpec(
        "SVHN", ("train_32x32.mat", "extra_32x32.mat", "test_32x32.mat"),
        ({"split": "train"}, {"split": "extra"}), {"split": "test"}, _SVHN, flip=False,
    ),
    "svhn_train": TorchvisionSpec(
        "SVHN", ("train_32x32.mat", "test_32x32.mat"), ({"split": "train"},), {"split": "test"}, _SVHN,
        flip=False,
    ),
    "stl10": TorchvisionSpec(
        "STL10", _STL, ({"split": "train"}, {"split": "unlabeled"}), {"split": "test"},
        (_of_255(112.4, 109.1, 98.6), _of_255(68.4, 66.6, 68.5)),
    ),
}  # fmt: skip


def find(name: str, root: Path, download: bool) -> list[tuple[str, int, int]]:
    """(name, size, time) of the files of a dataset; missing files are downloaded if `download`."""
    spec = SPECS[name]
    missing = [f for f in spec.files if not (root / f).is_file()]
    if missing and not download:
        raise UserError(f"{name}: {root / missing[0]} is missing; set root to its folder, or set download to true")
    if missing:
        for options in (*spec.train, spec.test):
            _open(name, root, options, download=True)
    stats = [(f, (root / f).stat()) for f in spec.files]
    return [(f, s.st_size, s.st_mtime_ns) for f, s in stats]


def read(name: str, root: Path) -> tuple[list[Examples], Examples, tuple[str, ...]]:
    """The training parts, the test part and the class names."""
    spec = SPECS[name]
    sets = [_open(name, root, options) for options in (*spec.train, spec.test)]
    parts = [Examples(_channels_last(np.asarray(s.data)), _labels(s, len(s.data))) for s in sets]
    return parts[:-1], parts[-1], tuple(getattr(sets[0], "classes", map(str, range(10))))


def _open(name: str, root: Path, options: dict[str, Any], download: bool = False) -> Any:
    from torchvision import datasets

    try:
        return getattr(datasets, SPECS[name].factory)(str(root), download=download, **options)
    except (RuntimeError, OSError) as error:
        remedy = "try again later, or set root" if download else "remove them and set download to true"
        raise UserError(f"{name}: files in {root} are not usable ({error}); {remedy}") from error


def _channels_last(x: np.ndarray) -> np.ndarray:
    return x if x.shape[-1] == 3 else x.transpose(0, 2, 3, 1)


def _labels(dataset: Any, n: int) -> np.ndarray:
    """CIFAR calls them targets, the others labels; the unlabeled part of STL-10 has −1."""
    labels = getattr(dataset, "targets", None)
    labels = dataset.labels if labels is None else labels
    return np.full(n, -1, np.int64) if labels is None else np.asarray(labels, np.int64)


CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
_TORCHVISION = Path("FashionMNIST", "raw")  # where torchvision puts the files


def read_fashion_mnist(root: str | None, fallback: Path, download: bool) -> tuple[Examples, Examples]:
    """Training and test examples, from `root` if given, else from Debian's package or the `fallback` folder."""
    home = Path(root).expanduser() if root else fallback
    folders = [home, home / _TORCHVISION] if root else [DEBIAN, home / _TORCHVISION]
    found = next((f for f in folders if _file(f, "train-images-idx3-ubyte")), None)
    if found is None and download:
        _download(home)
        found = home / _TORCHVISION
    if found is None:
        raise UserError(
            f"fashion_mnist: no IDX files in {folders[0]}; apt-get install dataset-fashion-mnist, "
            "or set root to their folder, or set download to true"
        )
    return _read(found, "train"), _read(found, "t10k")


def _read(folder: Path, prefix: str) -> Examples:
    arrays = []
    for kind in ("images-idx3", "labels-idx1"):
        path = _file(folder, f"{prefix}-{kind}-ubyte")
        if path is None:
            raise UserError(f"fashion_mnist: {folder} lacks {prefix}-{kind}-ubyte(.gz); set root to another folder")
        arrays.append(read_idx(path))
    images, labels = arrays
    if images.ndim != 3 or labels.shape != (len(images),):
        raise UserError(f"fashion_mnist: {folder} has {labels.shape} labels for {images.shape} images; get new files")
    return Examples(images[..., None], labels.astype(np.int64))


def _file(folder: Path, stem: str) -> Path | None:
    return next((p for p in (folder / stem, folder / f"{stem}.gz") if p.is_file()), None)


def _download(home: Path) -> None:
    from torchvision.datasets import FashionMNIST

    try:
        FashionMNIST(str(home), download=True)
    except (RuntimeError, OSError) as error:
        raise UserError(f"fashion_mnist: download to {home} failed ({error}); set root to its folder") from error


def read_idx(path: str | Path) -> np.ndarray:
    """The uint8 array stored in an IDX file."""
    raw = _bytes(Path(path))
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise UserError(f"{path}: not an IDX file of bytes: it starts with {raw[:4].hex()}, not 000008")
    start = 4 + 4 * raw[3]
    shape = tuple(np.frombuffer(raw[4:start], ">u4").astype(int).tolist()) if len(raw) >= start else ()
    expected = start + int(np.prod(shape, dtype=object))
    if len(shape) != raw[3] or len(raw) != expected:
        raise UserError(f"{path}: damaged IDX file ({len(raw)} bytes instead of {expected}); download it again")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def _bytes(path: Path) -> bytes:
    raw = path.read_bytes()
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip file ({error}); download it again") from error

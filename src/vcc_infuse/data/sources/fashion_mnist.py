"""Fashion-MNIST, from files in the IDX format of MNIST: magic number, dimensions, then the bytes; plain or gzipped."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from ...errors import UserError
from ..dataset import Examples

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

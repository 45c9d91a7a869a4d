"""Fashion-MNIST from its four IDX files."""

from pathlib import Path

import numpy as np

from ..errors import UserError
from .idx import read_idx

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_RAW = Path("FashionMNIST", "raw")  # where torchvision puts them
Part = tuple[np.ndarray, np.ndarray]


def read_fashion_mnist(root: str | None, fallback: Path, download: bool) -> tuple[Part, Part]:
    """Training and test parts, from `root` if given, else from Debian's package or the `fallback` folder."""
    home = Path(root).expanduser() if root else fallback
    folders = [home, home / _RAW] if root else [DEBIAN, home / _RAW]
    found = next((f for f in folders if _file(f, "train-images-idx3-ubyte")), None)
    if found is None and download:
        _download(home)
        found = home / _RAW
    if found is None:
        raise UserError(
            f"--data fashion_mnist: no IDX files in {folders[0]}; apt-get install dataset-fashion-mnist, "
            "or give their folder with --root, or add --download"
        )
    return _part(found, "train"), _part(found, "t10k")


def _file(folder: Path, stem: str) -> Path | None:
    return next((p for p in (folder / stem, folder / f"{stem}.gz") if p.is_file()), None)


def _part(folder: Path, prefix: str) -> Part:
    arrays = []
    for kind in ("images-idx3", "labels-idx1"):
        path = _file(folder, f"{prefix}-{kind}-ubyte")
        if path is None:
            raise UserError(f"--data fashion_mnist: {folder} lacks {prefix}-{kind}-ubyte(.gz); give --root")
        arrays.append(read_idx(path))
    images, labels = arrays
    if images.ndim != 3 or labels.shape != (len(images),):
        raise UserError(f"--data fashion_mnist: {folder} has {labels.shape} labels for {images.shape} images")
    return images[..., None], labels.astype(np.int64)


def _download(home: Path) -> None:
    from torchvision.datasets import FashionMNIST

    try:
        FashionMNIST(str(home), download=True)
    except (RuntimeError, OSError) as error:
        raise UserError(f"--data fashion_mnist: download to {home} failed ({error}); give --root") from error

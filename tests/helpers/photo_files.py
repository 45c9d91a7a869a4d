"""The same small drawn photos as a folder, zips, tars and Parquet files."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image


def draw(folder: Path, count: int = 12) -> list[Path]:
    """PNG files of several sizes."""
    rng = np.random.default_rng(0)
    paths = []
    for number in range(count):
        path = folder / "photos" / "ab"[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (4, 4, 3), np.uint8).repeat(5 + number % 3, 0).repeat(6, 1)
        Image.fromarray(pixels).save(path)
        paths.append(path)
    return sorted(paths)


def write_zip(path: Path, photos: list[Path]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for photo in photos:
            archive.write(photo, name_of(photo))
    return path


def write_tar(path: Path, photos: list[Path], mode: str = "w") -> Path:
    """As WebDataset has them: a class beside each photo."""
    with tarfile.open(path, mode) as archive:
        for photo in photos:
            archive.add(photo, name_of(photo))
            label = tarfile.TarInfo(name_of(photo).replace(".png", ".cls"))
            label.size = 1
            archive.addfile(label, io.BytesIO(b"0"))
    return path


def write_parquet(path: Path, photos: list[Path], *, nested: bool) -> Path:
    """`nested` as Hugging Face datasets write it: {bytes, path}."""
    import pyarrow
    from pyarrow.parquet import write_table

    contents = [photo.read_bytes() for photo in photos]
    names = [name_of(photo) for photo in photos]
    pairs = [{"bytes": content, "path": name} for content, name in zip(contents, names, strict=True)]
    columns = {"image": pairs} if nested else {"image": contents, "file": names}
    write_table(pyarrow.table({**columns, "label": [0] * len(photos)}), path)
    return path


def name_of(photo: Path) -> str:
    return f"{photo.parent.name}/{photo.name}"

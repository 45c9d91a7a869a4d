"""What a user shows a trained model: files, folders, zips, PIL images and arrays, as rows of the model's shape."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from ..errors import UserError
from .arrays import as_rows
from .images.convert import fit
from .images.decode import BROKEN, decode, refit, threads_for
from .images.file_store import Store, open_store
from .sources.layout import is_image

CHUNK = 64
CHANNELS = 4  # an array of three axes is one image if its last axis is at most this
Inputs = str | os.PathLike[str] | Image.Image | np.ndarray | Tensor | Iterable["Inputs"]


class Row(NamedTuple):
    """One image: its name, and its pixels or why there are none."""

    name: str
    x: np.ndarray | None
    error: str = ""


def read_rows(source: Inputs, shape: tuple[int, ...]) -> Iterator[Row]:
    """Every image of `source` as uint8 of `shape` (height, width, channels), one at a time and in order.

    Args:
        source: the path of an image, folder or zip; a PIL image; an array or tensor H×W, H×W×C, N×H×W or N×H×W×C of
            integers 0…255 or floats 0…1 (tensors also with channels first); or any iterable of these.
        shape: what the model was trained on. Other sizes are cut to its proportions and resized.

    Files are named by their path, in a single folder or zip by the path below it, and everything else by its number.
    An image that cannot be read has a reason instead of pixels.
    """
    if isinstance(source, str | os.PathLike):
        return _read_path(Path(source), shape, "")
    if isinstance(source, Image.Image | np.ndarray | Tensor):
        return _read_pixels(source, shape, 0)
    if not isinstance(source, Iterable):
        raise UserError(f"images must be paths, PIL images or arrays, got {type(source).__name__}")
    return _read_many(source, shape)


def _read_many(items: Iterable[Inputs], shape: tuple[int, ...]) -> Iterator[Row]:
    count = 0
    for item in items:
        if isinstance(item, str | os.PathLike):
            rows = _read_listed(Path(item), shape)
        elif isinstance(item, Image.Image | np.ndarray | Tensor):
            rows = _read_pixels(item, shape, count)
        else:
            raise UserError(f"images must be paths, PIL images or arrays, got {type(item).__name__} in the list")
        for row in rows:
            count += 1
            yield row


def _read_listed(path: Path, shape: tuple[int, ...]) -> Iterator[Row]:
    """As one of many: a path that leads nowhere costs only its own row."""
    folder = path.parent if is_image(path.name) and not path.is_dir() else path
    try:
        yield from _read_path(path, shape, "" if folder == Path() else f"{folder}/")
    except UserError as fault:
        yield Row(str(path), None, str(fault))


def _read_path(path: Path, shape: tuple[int, ...], prefix: str) -> Iterator[Row]:
    with open_store(path) as store:
        rows = _read_store(store, shape)
        first = next(rows, None)
        if first is None:
            raise UserError(f"{path} holds no images; give another folder, zip or image")
        for row in chain([first], rows):
            yield row._replace(name=f"{prefix}{row.name}")


def _read_store(store: Store, shape: tuple[int, ...]) -> Iterator[Row]:
    images = store.images()
    while names := tuple(islice(images, CHUNK)):
        x = np.empty((len(names), *shape), np.uint8)
        bad = decode(store, names, x, threads_for(prod(shape[:2])))
        yield from (Row(name, None if i in bad else x[i], bad.get(i, "")) for i, name in enumerate(names))


def _read_pixels(item: Image.Image | np.ndarray | Tensor, shape: tuple[int, ...], start: int) -> Iterator[Row]:
    if isinstance(item, Image.Image):
        try:
            own = item.copy()  # here PIL reads the pixels of a file
            own.format = item.format  # which tells whether it may store an orientation
            yield Row(str(start), fit(own, shape))
        except BROKEN as fault:
            yield Row(str(start), None, " ".join(str(fault).split()) or type(fault).__name__)
        return
    array = _batch(item)
    for first in range(0, len(array), CHUNK):
        rows = as_rows(array[first : first + CHUNK], "images")
        out = np.empty((len(rows), *shape), np.uint8)
        refit(rows, out)
        yield from (Row(str(start + first + i), pixels) for i, pixels in enumerate(out))


def _batch(item: np.ndarray | Tensor) -> np.ndarray:
    """N×H×W or N×H×W×C, of one image or many."""
    array = item.detach().cpu().numpy() if isinstance(item, Tensor) else item
    if array.ndim not in (2, 3, 4):
        raise UserError(f"images: an array of shape {array.shape}; give H×W, H×W×C, N×H×W or N×H×W×C")
    planes = isinstance(item, Tensor) and array.ndim > 2 and array.shape[-1] > CHANNELS >= array.shape[-3]
    array = np.moveaxis(array, -3, -1) if planes and (array.ndim == 4 or array.shape[0] in (1, 3)) else array
    return array[None] if array.ndim == 2 or (array.ndim == 3 and array.shape[-1] <= CHANNELS) else array

"""Files, folders, zips, PIL images and arrays as rows of the shape that a trained model takes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from ..data.images.decode import BROKEN, decode, fit, refit, threads_for
from ..data.images.high_bit_depth import Ranges
from ..data.images.store import Limits, is_image, open_store
from ..data.sources.arrays import as_rows
from ..errors import UserError

CHUNK = 64
CHANNELS = 4  # an array of three axes is one image if its last axis has at most this many
Inputs = str | os.PathLike[str] | Image.Image | np.ndarray | Tensor | Iterable["Inputs"]


class Target(NamedTuple):
    """What images are converted to: a shape, and the values that become 0 and 255 where they have more than 8 bits."""

    shape: tuple[int, ...]
    ranges: Ranges = ()
    limits: Limits | None = None


class Row(NamedTuple):
    """One image: its name, and its pixels or why there are none."""

    name: str
    x: np.ndarray | None
    error: str = ""


def read_rows(
    source: Inputs, shape: tuple[int, ...], ranges: Ranges = (), limits: Limits | None = None
) -> Iterator[Row]:
    """Every image of `source` as uint8 of `shape` (height, width, channels), one at a time and in order.

    The source is the path of an image, folder or zip; a PIL image; an array or tensor H×W, H×W×C, N×H×W or N×H×W×C of
    integers 0…255 or floats 0…1 (tensors also with channels first); or any iterable of these. Files are named by their
    path, in a single folder or zip by the path below it, and everything else by its number. An image that cannot be
    read has a reason instead of pixels.
    """
    target = Target(shape, ranges, limits)
    if isinstance(source, str | os.PathLike):
        return _read_path(Path(source), target, "")
    if isinstance(source, Image.Image | np.ndarray | Tensor):
        return _read_pixels(source, target, 0)
    if not isinstance(source, Iterable):
        raise UserError(f"images must be paths, PIL images or arrays, got {type(source).__name__}")
    return _read_many(source, target)


def _read_many(items: Iterable[Inputs], target: Target) -> Iterator[Row]:
    count = 0
    for item in items:
        if isinstance(item, str | os.PathLike):
            rows = _read_listed(Path(item), target)
        elif isinstance(item, Image.Image | np.ndarray | Tensor):
            rows = _read_pixels(item, target, count)
        else:
            raise UserError(f"images must be paths, PIL images or arrays, got {type(item).__name__} in the list")
        for row in rows:
            count += 1
            yield row


def _read_listed(path: Path, target: Target) -> Iterator[Row]:
    """Read one path of many: if it is missing, only its row has an error."""
    folder = path.parent if is_image(path.name) and not path.is_dir() else path
    try:
        yield from _read_path(path, target, "" if folder == Path() else f"{folder}/")
    except UserError as fault:
        yield Row(str(path), None, str(fault))


def _read_path(path: Path, target: Target, prefix: str) -> Iterator[Row]:
    empty = True
    with open_store(path, target.limits) as store:
        images = store.images()
        while names := tuple(islice(images, CHUNK)):
            empty = False
            x = np.empty((len(names), *target.shape), np.uint8)
            bad = decode(store, names, x, threads_for(prod(target.shape[:2])), ranges=target.ranges)
            for i, name in enumerate(names):
                yield Row(f"{prefix}{name}", None if i in bad else x[i], bad.get(i, ""))
    if empty:
        raise UserError(f"{path} holds no images; give another folder, zip or image")


def _read_pixels(item: Image.Image | np.ndarray | Tensor, target: Target, start: int) -> Iterator[Row]:
    if isinstance(item, Image.Image):
        try:
            picture = item.copy()  # here PIL reads the pixels of a file
            picture.format = item.format  # which tells whether it may store an orientation
            yield Row(str(start), fit(picture, target.shape, target.ranges))
        except BROKEN as fault:
            yield Row(str(start), None, " ".join(str(fault).split()) or type(fault).__name__)
        return
    array = _batch(item, target.shape[2])
    for first in range(0, len(array), CHUNK):
        rows = as_rows(array[first : first + CHUNK], "images", target.ranges)
        out = np.empty((len(rows), *target.shape), np.uint8)
        refit(rows, out)
        yield from (Row(str(start + first + i), pixels) for i, pixels in enumerate(out))


def _batch(item: np.ndarray | Tensor, channels: int) -> np.ndarray:
    """N×H×W or N×H×W×C, of one image or many."""
    array = item.detach().cpu().numpy() if isinstance(item, Tensor) else item
    if array.ndim not in (2, 3, 4):
        raise UserError(f"images: an array of shape {array.shape}; give H×W, H×W×C, N×H×W or N×H×W×C")
    most = max(CHANNELS, channels)
    planes = isinstance(item, Tensor) and array.ndim > 2 and array.shape[-1] > most >= array.shape[-3]
    array = np.moveaxis(array, -3, -1) if planes and (array.ndim == 4 or array.shape[0] in (1, 3, channels)) else array
    return array[None] if array.ndim == 2 or (array.ndim == 3 and array.shape[-1] <= most) else array

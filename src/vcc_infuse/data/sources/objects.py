"""Images and labels of other libraries: torch and torchvision datasets, Hugging Face, pandas, lists of files or images.

They are known by what they offer, not by their class, so that none of the libraries has to be installed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from ...errors import UserError
from ..arrays import class_numbers, encode
from ..dataset import Dataset, Examples, channel_mean_std
from ..images.convert import check_options, fit, height_width, is_gray, upright_size
from ..images.decode import BROKEN, Header, as_image, common_shape
from ..images.deep import Deep, is_deep, open_image, values
from ..images.intensity import Ranges, check_intensity, find_ranges, to_bytes
from .items import class_names, label_of, name_of, pairs


@dataclass
class Pictures:
    """What was read: a name, a header and pixels per image (values of deep images as they are), labels, failures."""

    names: list[str] = field(default_factory=list)
    headers: list[Header] = field(default_factory=list)
    pixels: list[np.ndarray] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def load_objects(
    data: Any,
    y: Sequence[Any] | None = None,
    test: Any = None,
    test_y: Sequence[Any] | None = None,
    *,
    columns: tuple[str, str] | None = None,
    classes: Sequence[str] | None = None,
    size: int | None = None,
    mode: str = "auto",
    intensity: str = "auto",
) -> Dataset:
    """A dataset in memory; the arguments are those of `SSLData.from_dataset`."""
    check_options(size, mode)
    check_intensity(intensity)
    if isinstance(data, Mapping) and "train" in data:
        data, test = data["train"], data.get("test") if test is None else test
    names = class_names(data, columns) if classes is None else tuple(map(str, classes))
    train = read_pictures(data, y, columns, size, mode)
    held = None if test is None else read_pictures(test, test_y, columns, size, mode, labeled=True)
    found, numbers = _numbers(train.labels, names, "y")
    shape = common_shape([*train.headers, *(held.headers if held else [])], size, mode)
    ranges = find_ranges((p for p, h in zip(train.pixels, train.headers, strict=True) if h.deep), intensity)
    x = _stacked(train, shape, ranges)
    skipped, kept = tuple(train.skipped), None
    if held is not None and held.pixels:
        held_y = _numbers(held.labels, found, "test_y", by_name=names is None)[1]
        kept = Examples(_stacked(held, shape, ranges), held_y, held.names)
        skipped += tuple(held.skipped)
    mean, std = channel_mean_std(x)
    return Dataset(Examples(x, numbers, train.names), kept, found, mean, std, skipped, fixed=True, ranges=ranges)


def read_pictures(
    data: Any, y: Sequence[Any] | None, columns: tuple[str, str] | None, size: int | None, mode: str,
    labeled: bool = False,
) -> Pictures:  # fmt: skip
    """Every image with its label; those that cannot be read are listed. `labeled` leaves out images without a label."""
    found, total = Pictures(), 0
    for number, (item, label) in enumerate(pairs(data, y, columns)):
        name = name_of(item, number)
        label = label_of(label)
        if labeled and label is None:
            continue
        total += 1
        try:
            if isinstance(item, Exception):
                raise item
            header, pixels = _read(_opened(item), size, mode)
        except BROKEN as fault:
            found.skipped.append((name, " ".join(str(fault).split()) or type(fault).__name__))
            continue
        found.names.append(name)
        found.headers.append(header)
        found.pixels.append(pixels)
        found.labels.append(label)
    if not total and not labeled:
        raise UserError("data: no images; at least one is needed")
    if 2 * len(found.skipped) > total:
        name, reason = found.skipped[0]
        raise UserError(f"data: {len(found.skipped)} of {total} images cannot be read, first {name} ({reason})")
    return found


def _numbers(
    labels: list[Any], classes: tuple[str, ...] | None, name: str, by_name: bool = False
) -> tuple[tuple[str, ...], np.ndarray]:
    """Class names and the number of each label, −1 where there is none; integers are numbers of classes or names."""
    array = np.empty(len(labels), dtype=object)
    array[:] = [-1 if label is None else label for label in labels]
    if classes is None:
        found, numbers = encode(array)
        return tuple(map(str, found)), numbers
    numbers_given = not by_name and all(isinstance(label, int) for label in array)
    return class_numbers(array.astype(np.int64) if numbers_given else array, classes, name)


def _opened(item: Any) -> Image.Image | Deep:
    """One image as Pillow or as an array of deep values."""
    if isinstance(item, Mapping) and ("bytes" in item or "path" in item):  # Hugging Face, not decoded
        item = io.BytesIO(item["bytes"]) if item.get("bytes") else item["path"]
    if isinstance(item, str | os.PathLike):
        item = io.BytesIO(Path(item).read_bytes())
    if isinstance(item, io.BytesIO):
        return open_image(item)
    if isinstance(item, Image.Image):
        own = item.copy()  # here Pillow reads the pixels of a file
        own.format = item.format  # which tells whether it may store an orientation
        return own
    return _from_array(item)


def _from_array(item: Any) -> Image.Image | Deep:
    """H×W or H×W×C; tensors have their channels first."""
    array = np.moveaxis(item.detach().cpu().numpy(), 0, -1) if _planes(item) else np.asarray(item)
    if array.dtype.kind not in "iufb" or array.ndim not in (2, 3) or not array.size:
        got = f"{array.dtype} of shape {array.shape}"
        raise UserError(f"data: an image is {got}; give paths, PIL images or numbers H×W or H×W×C")
    array = array[..., None] if array.ndim == 2 else array
    if array.dtype == np.uint8:
        return as_image(array)
    return Deep((array.shape[0], array.shape[1]), array.shape[2], False, lambda: array)


def _planes(item: Any) -> bool:
    return isinstance(item, Tensor) and item.ndim == 3


def _read(image: Image.Image | Deep, size: int | None, mode: str) -> tuple[Header, np.ndarray]:
    """Header and pixels: 8 bits at their final size, and deep values as they are until their range is known."""
    channels = image.channels if isinstance(image, Deep) and image.channels not in (1, 3) else 0
    header = Header(upright_size(image), is_gray(image), "", channels, is_deep(image))
    if header.deep:
        pixels = values(image)
        if pixels.dtype != np.uint8 and not np.isfinite(pixels).all():
            raise ValueError("holds NaN or infinite values")
        return header, pixels
    gray = mode == "gray" or (header.gray and mode != "rgb")
    return header, fit(image, (*(height_width(size) or header.size), 1 if gray else 3))


def _stacked(pictures: Pictures, shape: tuple[int, int, int], ranges: Ranges) -> np.ndarray:
    """All images as uint8 of one shape."""
    out = np.empty((len(pictures.pixels), *shape), np.uint8)
    for row, (pixels, header) in enumerate(zip(pictures.pixels, pictures.headers, strict=True)):
        ready = to_bytes(pixels, ranges) if header.deep else pixels
        try:
            out[row] = ready if ready.shape == shape else fit(as_image(ready), shape)
        except ValueError as fault:
            raise UserError(f"data: {pictures.names[row]} {fault}") from fault
    return out

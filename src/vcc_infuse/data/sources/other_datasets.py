"""Datasets of other libraries, DataFrames and lists of images, read into memory as one Dataset."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from ...errors import UserError
from ..dataset import Dataset, Examples, channel_mean_std
from ..images.decode import BROKEN, Header, as_image, check_options, common_shape, fit, height_width
from ..images.high_bit_depth import Deep, Ranges, find_ranges, open_image, to_bytes, values
from .arrays import class_numbers, encode

IMAGE_COLUMNS = ("image", "img", "pixels", "file", "path", "image_path", "filename")
LABEL_COLUMNS = ("label", "labels", "class", "target", "category", "fine_label")


class Picture(NamedTuple):
    """An image that was read; deep values are as they are until their range is known."""

    name: str
    header: Header
    pixels: np.ndarray
    label: Any


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
    check_options(size, mode, intensity)
    if isinstance(data, Mapping) and "train" in data:
        test = data.get("test") if test is None else test
        data = data["train"]
    known = class_names(data, columns) if classes is None else tuple(map(str, classes))
    train, skipped = read_pictures(data, y, columns, size, mode)
    tested: list[Picture] = []
    if test is not None:
        tested, test_skipped = read_pictures(test, test_y, columns, size, mode, labeled=True)
        skipped += test_skipped if tested else []
    names, numbers = _numbers(train, known, "y")
    shape = common_shape([picture.header for picture in (*train, *tested)], size, mode)
    ranges = find_ranges((picture.pixels for picture in train if picture.header.deep), intensity)
    examples = _examples(train, numbers, shape, ranges)
    test_examples = None
    if tested:
        _, test_numbers = _numbers(tested, names, "test_y", by_name=known is None)
        test_examples = _examples(tested, test_numbers, shape, ranges)
    mean, std = channel_mean_std(examples.x)
    return Dataset(examples, test_examples, names, mean, std, tuple(skipped), fixed=True, ranges=ranges)


def read_pictures(
    data: Any, y: Sequence[Any] | None, columns: tuple[str, str] | None, size: int | None, mode: str,
    labeled: bool = False,
) -> tuple[list[Picture], list[tuple[str, str]]]:  # fmt: skip
    """All images, without those that have no label if `labeled`; and names of those that cannot be read, with why."""
    pictures = []
    skipped = []
    for number, (item, given) in enumerate(pairs(data, y, columns)):
        name = name_of(item, number)
        label = label_of(given)
        if labeled and label is None:
            continue
        try:
            if isinstance(item, Exception):
                raise item
            pictures.append(Picture(name, *_read(_opened(item), size, mode), label))
        except BROKEN as fault:
            skipped.append((name, " ".join(str(fault).split()) or type(fault).__name__))
    total = len(pictures) + len(skipped)
    if not total and not labeled:
        raise UserError("data: no images; at least one is needed")
    if 2 * len(skipped) > total:
        name, reason = skipped[0]
        raise UserError(f"data: {len(skipped)} of {total} images cannot be read, first {name} ({reason})")
    return pictures, skipped


def _numbers(
    pictures: list[Picture], classes: tuple[str, ...] | None, name: str, by_name: bool = False
) -> tuple[tuple[str, ...], np.ndarray]:
    """Class names and the number of each label, −1 where there is none; integers are numbers of classes or names."""
    array = np.empty(len(pictures), dtype=object)
    array[:] = [-1 if picture.label is None else picture.label for picture in pictures]
    if classes is None:
        names, numbers = encode(array)
        return tuple(map(str, names)), numbers
    numbers_given = not by_name and all(isinstance(label, int) for label in array)
    return class_numbers(array.astype(np.int64) if numbers_given else array, classes, name)


# --- items: which part is the image, which the label, and what it is called


def class_names(data: Any, columns: tuple[str, str] | None) -> tuple[str, ...] | None:
    """The names that a dataset knows: `classes` as in torchvision, or those of Hugging Face's label column."""
    features = getattr(data, "features", None)
    if isinstance(features, Mapping):
        column = columns[1] if columns else next((c for c in LABEL_COLUMNS if c in features), "")
        known = getattr(features.get(column), "names", None)
        return tuple(map(str, known)) if known else None
    known = getattr(data, "classes", None)
    if known is None and getattr(data, "dataset", None) is not None:
        return class_names(data.dataset, columns)
    return tuple(map(str, known)) if known else None


def pairs(data: Any, y: Sequence[Any] | None, columns: tuple[str, str] | None) -> Iterator[tuple[Any, Any]]:
    """Images and labels of whatever was given; an item that cannot be read is its error."""
    if hasattr(data, "dataset") and hasattr(data, "collate_fn"):  # a DataLoader
        data = data.dataset
    if hasattr(data, "iloc") and hasattr(data, "columns"):  # a DataFrame
        image, label = _columns(list(data.columns), columns)
        y = list(data[label]) if y is None else y
        data = list(data[image])
    if hasattr(data, "iloc"):  # a Series
        data = list(data)
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__") or isinstance(data, str | bytes | Mapping):
        kind = type(data).__name__
        raise UserError(f"data is {kind}; give a dataset or list with a length, whose items are images with labels")
    if y is not None and len(y) != len(data):
        raise UserError(f"data has {len(data)} images and y {len(y)} labels; give one label per image")
    labels = None if y is None else list(y)
    for number in range(len(data)):
        try:
            item = data[number]
        except BROKEN as fault:
            yield fault, None if labels is None else labels[number]
            continue
        image, label = _image_and_label(item, columns, image_only=labels is not None)
        yield image, label if labels is None else labels[number]


def _image_and_label(item: Any, columns: tuple[str, str] | None, image_only: bool) -> tuple[Any, Any]:
    """Both parts of an item; with `image_only`, its label is given apart."""
    if isinstance(item, Mapping) and "bytes" not in item:
        image, label = _columns(list(item), columns, image_only)
        return item[image], item.get(label)
    if isinstance(item, tuple | list) and len(item) >= 2:
        return item[0], item[1]
    if image_only and not isinstance(item, tuple | list):
        return item, None
    kind = type(item).__name__
    raise UserError(f"data: an item is {kind}; it must be (image, label) or a row with both, or give the labels as y")


def _columns(known: list[Any], columns: tuple[str, str] | None, image_only: bool = False) -> tuple[Any, Any]:
    """The names of the image and the label column."""
    wanted = columns or tuple(
        next((c for c in usual if c in known), usual[0]) for usual in (IMAGE_COLUMNS, LABEL_COLUMNS)
    )
    missing = [name for name in wanted[: 1 if image_only else 2] if name not in known]
    if missing:
        names = ", ".join(map(str, known))
        raise UserError(f"data has no column {missing[0]!r}; name image and label: columns=(…, …), of {names}")
    return wanted[0], wanted[1]


def label_of(value: Any) -> Any:
    """A label as text or integer; None where there is none: None, NaN and −1."""
    value = value.item() if hasattr(value, "item") and getattr(value, "size", 1) != 0 else value
    if value is None or type(value).__name__ == "NAType" or value != value or (type(value) is int and value == -1):
        return None
    if isinstance(value, float) and value.is_integer():
        return None if value == -1 else int(value)  # a column of integers with missing values
    return value


def name_of(item: Any, number: int) -> str:
    """Its path, or its number."""
    path = item.get("path") if isinstance(item, Mapping) else item
    path = path if isinstance(path, str | os.PathLike) else getattr(item, "filename", None)
    return str(path) if path else f"item {number}"


# --- pixels


def _opened(item: Any) -> Image.Image | Deep:
    """One image as Pillow or as an array of deep values."""
    if isinstance(item, Mapping) and ("bytes" in item or "path" in item):  # Hugging Face, not decoded
        item = io.BytesIO(item["bytes"]) if item.get("bytes") else item["path"]
    if isinstance(item, str | os.PathLike):
        item = io.BytesIO(Path(item).read_bytes())
    if isinstance(item, io.BytesIO):
        return open_image(item)
    if isinstance(item, Image.Image):
        copied = item.copy()  # here Pillow reads the pixels of a file
        copied.format = item.format  # which tells whether it may store an orientation
        return copied
    # H×W or H×W×C; tensors have their channels first.
    planes = isinstance(item, Tensor) and item.ndim == 3
    array = np.moveaxis(item.detach().cpu().numpy(), 0, -1) if planes else np.asarray(item)
    if array.dtype.kind not in "iufb" or array.ndim not in (2, 3) or not array.size:
        got = f"{array.dtype} of shape {array.shape}"
        raise UserError(f"data: an image is {got}; give paths, PIL images or numbers H×W or H×W×C")
    array = array[..., None] if array.ndim == 2 else array
    if array.dtype == np.uint8:
        return as_image(array)
    return Deep((array.shape[0], array.shape[1]), array.shape[2], False, lambda: array)


def _read(image: Image.Image | Deep, size: int | None, mode: str) -> tuple[Header, np.ndarray]:
    """Header and pixels: 8 bits at their final size, and deep values as they are until their range is known."""
    header = Header.of(image)
    if header.deep:
        pixels = values(image)
        if pixels.dtype != np.uint8 and not np.isfinite(pixels).all():
            raise ValueError("holds NaN or infinite values")
        return header, pixels
    gray = mode == "gray" or (header.gray and mode != "rgb")
    return header, fit(image, (*(height_width(size) or header.size), 1 if gray else 3))


def _examples(pictures: list[Picture], y: np.ndarray, shape: tuple[int, int, int], ranges: Ranges) -> Examples:
    """All images as uint8 of one shape, with the numbers of their classes."""
    x = np.empty((len(pictures), *shape), np.uint8)
    for row, picture in enumerate(pictures):
        pixels = to_bytes(picture.pixels, ranges) if picture.header.deep else picture.pixels
        try:
            x[row] = pixels if pixels.shape == shape else fit(as_image(pixels), shape)
        except ValueError as fault:
            raise UserError(f"data: {picture.name} {fault}") from fault
    return Examples(x, y, [picture.name for picture in pictures])

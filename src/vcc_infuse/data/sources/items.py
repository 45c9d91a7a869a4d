"""Items of other libraries' datasets: which part of each is the image, which the label, and what it is called."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...errors import UserError
from ..images.decode import BROKEN

IMAGE_COLUMNS = ("image", "img", "pixels", "file", "path", "image_path", "filename")
LABEL_COLUMNS = ("label", "labels", "class", "target", "category", "fine_label")


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
        if labels is not None and not isinstance(item, tuple | list):
            yield (item[_columns(list(item), columns, image_only=True)[0]] if _row(item) else item), labels[number]
        else:
            yield _split(item, None if labels is None else labels[number], labels is None, columns)


def _row(item: Any) -> bool:
    return isinstance(item, Mapping) and "bytes" not in item


def _split(item: Any, label: Any, own: bool, columns: tuple[str, str] | None) -> tuple[Any, Any]:
    """The image and the label of one item."""
    if _row(item):
        image, name = _columns(list(item), columns)
        return item[image], item[name] if own else label
    if isinstance(item, tuple | list) and len(item) >= 2:
        return item[0], item[1] if own else label
    kind = type(item).__name__
    raise UserError(f"data: an item is {kind}; it must be (image, label) or a row with both, or give the labels as y")


def _columns(known: list[Any], columns: tuple[str, str] | None, image_only: bool = False) -> tuple[Any, Any]:
    """The names of the image and the label column."""
    wanted = columns or tuple(
        next((c for c in names if c in known), names[0]) for names in (IMAGE_COLUMNS, LABEL_COLUMNS)
    )
    missing = [name for name in wanted[: 1 if image_only else 2] if name not in known]
    if missing:
        there = ", ".join(map(str, known))
        raise UserError(f"data has no column {missing[0]!r}; name image and label: columns=(…, …), of {there}")
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

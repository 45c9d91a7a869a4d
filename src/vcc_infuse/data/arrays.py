"""Arrays and lists in memory: as a Dataset, and labels of any type as class numbers."""

from __future__ import annotations

import numbers
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ..errors import UserError
from .dataset import Dataset, Examples, channel_mean_std, check_examples

UNLABELED = -1


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    test_x: ArrayLike | None = None,
    test_y: ArrayLike | None = None,
    classes: Sequence[str] | None = None,
) -> Dataset:
    """Images N×H×W or N×H×W×C (0…255, or floats 0…1) or N×D vectors, with class numbers (−1 = unlabeled).

    Without `test_x` and `test_y` there is no test set.
    """
    train, test = Examples(as_rows(x, "x"), _labels(y, "y")), None
    if test_x is not None and test_y is not None:
        test = Examples(as_rows(test_x, "test_x"), _labels(test_y, "test_y"))
    elif test_x is not None or test_y is not None:
        raise UserError("test_x and test_y belong together; give both or neither")
    check_examples(train.x, train.y, None, "train")
    names = range(int(train.y.max()) + 1) if classes is None else classes
    return Dataset(train, test, tuple(str(c) for c in names), *channel_mean_std(train.x))


def _labels(y: ArrayLike, name: str) -> np.ndarray:
    array = np.asarray(y)
    if array.ndim != 1 or array.dtype.kind not in "iuf" or not np.array_equal(array, np.trunc(array)):
        raise UserError(f"{name}: labels must be integers from 0 (−1 = unlabeled), one per example")
    return array.astype(np.int64)


def as_rows(x: ArrayLike, name: str) -> np.ndarray:
    """`x` as training and prediction read it: uint8 N×H×W×C images or float32 N×D vectors."""
    array = np.asarray(x)
    if array.dtype.kind not in "iuf" or array.ndim not in (2, 3, 4):
        raise UserError(f"{name}: {array.dtype} of shape {array.shape}; give numbers N×H×W, N×H×W×C or N×D")
    if array.ndim == 2:
        return array.astype(np.float32, copy=False)
    array = array[..., None] if array.ndim == 3 else array
    if array.shape[3] not in (1, 3) and array.shape[1] in (1, 3):
        raise UserError(f"{name}: shape {array.shape} is channels-first; give x.transpose(0, 2, 3, 1)")
    return _as_bytes(array, name)


def _as_bytes(array: np.ndarray, name: str) -> np.ndarray:
    if array.dtype == np.uint8 or not array.size:
        return array.astype(np.uint8, copy=False)
    top = 1 if array.dtype.kind == "f" else 255
    low, high = array.min(), array.max()
    if not (low >= 0 and high <= top):  # written so that NaN fails too
        raise UserError(f"{name}: {array.dtype} images hold values {low}…{high}; they must lie in 0…{top}")
    return np.rint(array * 255).astype(np.uint8) if top == 1 else array.astype(np.uint8)


def has_label(y: np.ndarray) -> np.ndarray:
    """Which rows have a label: all except those that hold the number −1."""
    if y.dtype.kind in "US":
        return np.ones(len(y), dtype=bool)
    if y.dtype.kind == "O":
        return np.array([not (isinstance(v, numbers.Real) and v == UNLABELED) for v in y], dtype=bool)
    return np.asarray(y != UNLABELED)


def encode(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sorted classes, and for every row the number of its class or −1."""
    known = has_label(y)
    if not known.any():
        raise UserError("y: every label is −1, which means unlabeled; label some examples of each class")
    classes, found = np.unique(_checked(y[known]), return_inverse=True)
    if len(classes) < 2:
        raise UserError(f"y has 1 class ({classes[0]}) and −1 means unlabeled; label examples of 2 or more")
    codes = np.full(len(y), UNLABELED, dtype=np.int64)
    codes[known] = found
    return classes, codes


def _checked(labels: np.ndarray) -> np.ndarray:
    """Labels that can be compared and sorted; a value that looks like a missing label is refused, not made a class."""
    if labels.dtype.kind in "USO":
        _refuse_missing(labels.tolist())
    if labels.dtype.kind == "O":
        labels = _uniform(labels)
    if labels.dtype.kind not in "biufUSO":
        raise UserError(f"Unknown label type: y is {labels.dtype}; give integers or text")
    if labels.dtype.kind == "f" and (labels != np.trunc(labels)).any():
        raise UserError("Unknown label type: y holds fractions; a classifier needs integers or text")
    return labels


def _refuse_missing(labels: list[object]) -> None:
    for value in labels:
        if value is None or value in ("", "-1", b"", b"-1"):
            remedy = "mark unlabeled rows with the number −1, beside text in an array of dtype=object"
            raise UserError(f"y holds {value!r}; {remedy}")


def _uniform(labels: np.ndarray) -> np.ndarray:
    """Text stays an array of objects, numbers become an array of numbers."""
    text = [isinstance(v, str) for v in labels]
    if all(text):
        return labels
    if any(text) or not all(isinstance(v, numbers.Real | np.bool_) for v in labels):
        kinds = ", ".join(sorted({type(v).__name__ for v in labels}))
        raise UserError(f"Unknown label type: y mixes {kinds}; give only integers or only text beside −1")
    return np.array(labels.tolist())

"""Arrays and lists in memory: as a Dataset, and labels of any type as class numbers."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from ...errors import OptionError, UserError, check_integer
from ...utils.suggest import did_you_mean
from ..dataset import CHANNELS, CHUNK, Dataset, Examples, channel_mean_std, check_examples
from ..images.high_bit_depth import Ranges, check_intensity, find_ranges, to_bytes

UNLABELED = -1


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    test_x: ArrayLike | None = None,
    test_y: ArrayLike | None = None,
    classes: Sequence[str] | None = None,
    slots: tuple[int, int] | None = None,
    intensity: str = "auto",
) -> Dataset:
    """Images N×H×W or N×H×W×C, N×D vectors or N×V×D views, with class numbers or text (−1 = unlabeled).

    Images have 1 to 16 channels. Integers 0…255 and floats 0…1 are taken as they are; of others, `intensity` says which
    values become black and white, as for files. Without `classes` they are those in `y`; with `classes`, `y` holds
    their numbers or names.
    `slots` says how many weak and strong views follow the plain one in each row of `x`. Without it `x` of three axes
    is read as views if it is as `are_views` describes, and half of the views after the plain one are weak. The test
    set of views may be N×V×D or N×D. Without `test_x` and `test_y` there is no test set.
    """
    if (test_x is None) != (test_y is None):
        raise UserError("test_x and test_y belong together; give both or neither")
    views = slots is not None or are_views(np.asarray(x))
    ranges = () if views else array_ranges(np.asarray(x), check_intensity(intensity))
    read = as_views if views else partial(as_rows, ranges=ranges)
    names, numbers = class_numbers(y, classes, "y")
    train, test = Examples(read(x, "x"), numbers), None
    if test_x is not None and test_y is not None:
        if classes is None and (np.asarray(y).dtype.kind in "USO") != (np.asarray(test_y).dtype.kind in "USO"):
            raise UserError("y and test_y must both hold text or both integers")
        test = Examples(
            read(test_x, "test_x"), class_numbers(test_y, names if classes is None else classes, "test_y")[1]
        )
    check_examples(train.x, train.y, None, "train")
    if not views:
        return Dataset(train, test, names, *channel_mean_std(train.x), ranges=ranges)
    found = check_slots(slots, train.x.shape[1])
    return Dataset(train, test, names, *channel_mean_std(train.x[:, 0]), slots=found)


def are_views(array: np.ndarray) -> bool:
    """Whether N×V×D floats are views and not gray images: fewer views than features, and values below 0."""
    floats = array.ndim == 3 and array.dtype.kind == "f"
    return floats and 0 < array.shape[1] < array.shape[2] and bool(array.min(initial=0) < 0)


def as_views(x: ArrayLike, name: str) -> np.ndarray:
    """`x` as float N×V×D views; N×D vectors are a single view each."""
    array = np.asarray(x)
    if array.dtype.kind not in "iuf" or array.ndim not in (2, 3):
        raise UserError(f"{name}: {array.dtype} of shape {array.shape}; give numbers N×V×D (views) or N×D")
    array = array if array.dtype == np.float16 else array.astype(np.float32, copy=False)
    return array[:, None] if array.ndim == 2 else array


def check_slots(slots: tuple[int, int] | None, views: int) -> tuple[int, int]:
    """How many weak and strong views follow the plain one; if not given, the first half of them is weak."""
    if slots is None:
        return (views - 1) // 2, views - 1 - (views - 1) // 2
    weak, strong = (check_integer("slots", count, 0) for count in slots)
    if 1 + weak + strong != views:
        rule = f"must be the weak and strong views after the plain one, which are {views - 1} in x"
        raise OptionError("slots", slots, rule)
    return weak, strong


def class_numbers(y: ArrayLike, classes: Sequence[str] | None, name: str) -> tuple[tuple[str, ...], np.ndarray]:
    """Class names, and the number of each label; labels are numbers of the classes, or their names."""
    array = np.asarray(y)
    if array.dtype.kind not in "USO" or array.ndim != 1:
        numbers = _labels(array, name)
        if classes is None and numbers.max(initial=-1) >= max(1, len(numbers)):
            many = f"labels go up to {numbers.max()}, and {len(numbers)} examples cannot fill so many classes"
            raise UserError(f"{name}: {many}; number the classes from 0 without gaps, or give their names as text")
        found = range(int(numbers.max(initial=-1)) + 1) if classes is None else classes
        return tuple(map(str, found)), numbers
    known = has_label(array)
    if classes is None:
        labels, numbers = encode(array)
        return tuple(map(str, labels)), numbers
    place = {str(label): number for number, label in enumerate(classes)}
    unknown = [str(label) for label in array[known] if str(label) not in place]
    if unknown:
        hint = did_you_mean(unknown[0], place) or f"; the classes are {', '.join(place)}"
        raise UserError(f"{name}: {len(unknown)} labels are not in classes, first {unknown[0]!r}{hint}")
    return tuple(place), np.array(
        [place[str(v)] if k else UNLABELED for v, k in zip(array, known, strict=True)], np.int64
    )


def array_ranges(array: np.ndarray, intensity: str) -> Ranges:
    """Which values of images N×H×W or N×H×W×C become 0 and 255; none are needed for 0…255 or floats 0…1."""
    if array.ndim not in (3, 4) or array.dtype == np.uint8 or array.dtype.kind not in "iuf" or not array.size:
        return ()
    low, high, top = array.min(), array.max(), 1 if array.dtype.kind == "f" else 255
    plain = low >= 0 and high <= top and intensity != "percentile"
    views = top == 1 and array.ndim == 3 and low < 0  # more likely than gray images with negative values
    if plain or views or not np.isfinite(array).all():
        return ()
    images = array[..., None] if array.ndim == 3 else array
    return find_ranges(images, intensity) or ((0.0, 65535.0 if array.dtype.kind != "f" else 1.0),)


def _labels(y: ArrayLike, name: str) -> np.ndarray:
    array = np.asarray(y)
    if array.ndim != 1 or array.dtype.kind not in "iuf" or not np.array_equal(array, np.trunc(array)):
        raise UserError(f"{name}: labels must be integers from 0 (−1 = unlabeled), one per example")
    return array.astype(np.int64)


def as_rows(x: ArrayLike, name: str, ranges: Ranges = ()) -> np.ndarray:
    """`x` as training and prediction read it: uint8 N×H×W×C images or float32 N×D vectors."""
    array = np.asarray(x)
    if array.dtype.kind not in "iuf" or array.ndim not in (2, 3, 4):
        raise UserError(f"{name}: {array.dtype} of shape {array.shape}; give numbers N×H×W, N×H×W×C or N×D")
    if array.ndim == 2:
        return array.astype(np.float32, copy=False)
    array = array[..., None] if array.ndim == 3 else array
    if array.shape[3] not in (1, 3) and (array.shape[1] in (1, 3) or min(array.shape[2:]) > CHANNELS >= array.shape[1]):
        raise UserError(f"{name}: shape {array.shape} is channels-first; give x.transpose(0, 2, 3, 1)")
    if ranges and array.dtype != np.uint8 and np.isfinite(array).all():
        return np.concatenate([to_bytes(array[i : i + CHUNK], ranges) for i in range(0, len(array), CHUNK)])
    return _as_bytes(array, name)


def _as_bytes(array: np.ndarray, name: str) -> np.ndarray:
    if array.dtype == np.uint8 or not array.size:
        return array.astype(np.uint8, copy=False)
    top = 1 if array.dtype.kind == "f" else 255
    low, high = array.min(), array.max()
    if not (low >= 0 and high <= top):  # written so that NaN fails too
        hint = "; for N×V×D views give slots=(weak, strong)" if top == 1 and array.shape[3] == 1 else ""
        raise UserError(f"{name}: {array.dtype} images hold values {low}…{high}; they must lie in 0…{top}{hint}")
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

"""Arrays and lists in memory: as a Dataset, and labels of any type as class numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike

from ...errors import OptionError, UserError, check_choice, check_integer
from ...utils.suggest import did_you_mean
from ..dataset import CHANNELS, CHUNK, UNLABELED, Dataset, Examples, channel_mean_std, check_examples
from ..images.high_bit_depth import INTENSITIES, Ranges, find_ranges, to_bytes


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    test_x: ArrayLike | None = None,
    test_y: ArrayLike | None = None,
    *,
    classes: Sequence[str] | None = None,
    slots: tuple[int, int] | None = None,
    intensity: str = "auto",
) -> Dataset:
    """A dataset of images or vectors or, with `slots`, of views; the arguments are those of `SSLData.from_arrays`."""
    if (test_x is None) != (test_y is None):
        raise UserError("test_x and test_y belong together; give both or neither")
    ranges = () if slots else array_ranges(np.asarray(x), check_choice("intensity", intensity, INTENSITIES))
    read = as_views if slots else partial(as_rows, ranges=ranges)
    names, numbers = class_numbers(y, classes, "y")
    train = Examples(read(x, "x"), numbers)
    test = None
    if test_x is not None and test_y is not None:
        if classes is None and (np.asarray(y).dtype.kind in "USO") != (np.asarray(test_y).dtype.kind in "USO"):
            raise UserError("y and test_y must both hold text or both integers")
        _, test_numbers = class_numbers(test_y, names if classes is None else classes, "test_y")
        test = Examples(read(test_x, "test_x"), test_numbers)
    check_examples(train.x, train.y, None, "train")
    if slots:
        slots = (check_integer("slots", slots[0], 0), check_integer("slots", slots[1], 0))
        if 1 + sum(slots) != train.x.shape[1]:
            rule = f"must be the weak and strong views after the plain one, which are {train.x.shape[1] - 1} in x"
            raise OptionError("slots", slots, rule)
    mean, std = channel_mean_std(train.x[:, 0] if slots else train.x)
    return Dataset(train, test, names, mean, std, ranges=ranges, slots=slots)


def as_views(x: ArrayLike, name: str) -> np.ndarray:
    """`x` as float N×V×D views; N×D vectors are a single view each."""
    array = np.asarray(x)
    if array.dtype.kind not in "iuf" or array.ndim not in (2, 3):
        raise UserError(f"{name}: {array.dtype} of shape {array.shape}; give numbers N×V×D (views) or N×D")
    array = array if array.dtype == np.float16 else array.astype(np.float32, copy=False)
    return array[:, None] if array.ndim == 2 else array


def class_numbers(y: ArrayLike, classes: Sequence[str] | None, name: str) -> tuple[tuple[str, ...], np.ndarray]:
    """Class names, and the number of each label; labels are numbers of the classes, or their names."""
    array = np.asarray(y)
    if array.dtype.kind not in "USO" or array.ndim != 1:
        if array.ndim != 1 or array.dtype.kind not in "iuf" or not np.array_equal(array, np.trunc(array)):
            raise UserError(f"{name}: labels must be integers from 0 (−1 = unlabeled), one per example")
        numbers = array.astype(np.int64)
        if classes is None and numbers.max(initial=-1) >= max(1, len(numbers)):
            many = f"labels go up to {numbers.max()}, and {len(numbers)} examples cannot fill that many classes"
            raise UserError(f"{name}: {many}; number the classes from 0 without gaps, or give their names as text")
        names = range(int(numbers.max(initial=-1)) + 1) if classes is None else classes
        return tuple(map(str, names)), numbers
    if classes is None:
        labels, numbers = encode(array)
        return tuple(map(str, labels)), numbers
    known = has_label(array)
    place = {str(label): number for number, label in enumerate(classes)}
    unknown = [str(label) for label in array[known] if str(label) not in place]
    if unknown:
        hint = did_you_mean(unknown[0], place) or f"; the classes are {', '.join(place)}"
        raise UserError(f"{name}: {len(unknown)} labels are not in classes, first {unknown[0]!r}{hint}")
    numbers = np.full(len(array), UNLABELED, np.int64)
    numbers[known] = [place[str(label)] for label in array[known]]
    return tuple(place), numbers


def array_ranges(array: np.ndarray, intensity: str) -> Ranges:
    """Which values of images N×H×W or N×H×W×C become 0 and 255; none are needed for 0…255 or floats 0…1."""
    if array.ndim not in (3, 4) or array.dtype == np.uint8 or array.dtype.kind not in "iuf" or not array.size:
        return ()
    floats = array.dtype.kind == "f"
    low = array.min()
    plain = low >= 0 and array.max() <= (1 if floats else 255) and intensity != "percentile"
    views = floats and array.ndim == 3 and low < 0  # more likely than gray images with negative values; refused later
    if plain or views or not np.isfinite(array).all():
        return ()
    images = array[..., None] if array.ndim == 3 else array
    return find_ranges(images, intensity) or ((0.0, 1.0 if floats else 65535.0),)


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
    if array.dtype == np.uint8 or not array.size:
        return array.astype(np.uint8, copy=False)
    if ranges and np.isfinite(array).all():
        return np.concatenate([to_bytes(array[i : i + CHUNK], ranges) for i in range(0, len(array), CHUNK)])
    top = 1 if array.dtype.kind == "f" else 255
    low = array.min()
    high = array.max()
    if not (low >= 0 and high <= top):  # written so that NaN fails too
        hint = "; for N×V×D views give slots=(weak, strong)" if top == 1 and array.shape[3] == 1 else ""
        raise UserError(f"{name}: {array.dtype} images hold values {low}…{high}; they must lie in 0…{top}{hint}")
    return np.rint(array * 255).astype(np.uint8) if top == 1 else array.astype(np.uint8)


def has_label(y: np.ndarray) -> np.ndarray:
    """Which rows have a label: all except those that hold the number −1."""
    if y.dtype.kind in "US":
        return np.ones(len(y), dtype=bool)
    if y.dtype.kind == "O":
        return np.array([not (isinstance(label, Real) and label == UNLABELED) for label in y], dtype=bool)
    return np.asarray(y != UNLABELED)


def encode(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sorted classes, and for every row the number of its class or −1."""
    known = has_label(y)
    if not known.any():
        raise UserError("y: every label is −1, which means unlabeled; label some examples of each class")
    classes, numbers = np.unique(_checked(y[known]), return_inverse=True)
    if len(classes) < 2:
        raise UserError(f"y has 1 class ({classes[0]}) and −1 means unlabeled; label examples of 2 or more")
    codes = np.full(len(y), UNLABELED, dtype=np.int64)
    codes[known] = numbers
    return classes, codes


def _checked(labels: np.ndarray) -> np.ndarray:
    """Labels that can be compared and sorted; a value that looks like a missing label is refused, not made a class."""
    for label in labels.tolist() if labels.dtype.kind in "USO" else ():
        if label is None or label in ("", "-1", b"", b"-1"):
            remedy = "mark unlabeled rows with the number −1, beside text in an array of dtype=object"
            raise UserError(f"y holds {label!r}; {remedy}")
    text = [isinstance(label, str) for label in labels] if labels.dtype.kind == "O" else [True]
    if not all(text):
        if any(text) or not all(isinstance(label, Real | np.bool_) for label in labels):
            kinds = ", ".join(sorted({type(label).__name__ for label in labels}))
            raise UserError(f"Unknown label type: y mixes {kinds}; give only integers or only text beside −1")
        labels = np.array(labels.tolist())  # numbers, which text beside −1 made objects
    if labels.dtype.kind not in "biufUSO":
        raise UserError(f"Unknown label type: y is {labels.dtype}; give integers or text")
    if labels.dtype.kind == "f" and (labels != np.trunc(labels)).any():
        raise UserError("Unknown label type: y holds fractions; a classifier needs integers or text")
    return labels

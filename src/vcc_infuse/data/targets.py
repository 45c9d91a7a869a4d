"""Labels of any kind (numbers or text, −1 = unlabelled) as sorted classes and class numbers."""

import numbers

import numpy as np

from ..errors import UserError

UNLABELLED = -1


def has_label(y: np.ndarray) -> np.ndarray:
    """Which rows have a label: all but those that hold the number −1."""
    if y.dtype.kind in "US":
        return np.ones(len(y), dtype=bool)
    if y.dtype.kind == "O":
        return np.array([not (isinstance(v, numbers.Real) and v == UNLABELLED) for v in y], dtype=bool)
    return np.asarray(y != UNLABELLED)


def encode(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The classes in ascending order, and for every row the number of its class or −1."""
    known = has_label(y)
    if not known.any():
        raise UserError("y: every label is −1, which means unlabelled; label some examples of each class")
    classes, found = np.unique(_checked(y[known]), return_inverse=True)
    if len(classes) < 2:
        raise UserError(f"y has 1 class ({classes[0]}) and −1 means unlabelled; label examples of 2 or more")
    codes = np.full(len(y), UNLABELLED, dtype=np.int64)
    codes[known] = found
    return classes, codes


def _checked(labels: np.ndarray) -> np.ndarray:
    """Labels that can be told apart and sorted; what looks like a missing label is refused, not made a class."""
    if labels.dtype.kind in "USO":
        _refuse_missing(labels.tolist())
    if labels.dtype.kind == "O":
        labels = _uniform(labels)
    if labels.dtype.kind not in "biufUSO":
        raise UserError(f"Unknown label type: y is {labels.dtype}; give whole numbers or text")
    if labels.dtype.kind == "f" and (labels != np.trunc(labels)).any():
        raise UserError("Unknown label type: y holds fractions; a classifier needs whole numbers or text")
    return labels


def _refuse_missing(labels: list[object]) -> None:
    for value in labels:
        if value is None or value in ("", "-1", b"", b"-1"):
            remedy = "mark unlabelled rows with the number −1, beside text in an array of dtype=object"
            raise UserError(f"y holds {value!r}; {remedy}")


def _uniform(labels: np.ndarray) -> np.ndarray:
    """Text stays an array of objects, numbers become an array of numbers."""
    text = [isinstance(v, str) for v in labels]
    if all(text):
        return labels
    if any(text) or not all(isinstance(v, numbers.Real | np.bool_) for v in labels):
        kinds = ", ".join(sorted({type(v).__name__ for v in labels}))
        raise UserError(f"Unknown label type: y mixes {kinds}; give only whole numbers or only text beside −1")
    return np.array(labels.tolist())

"""What all questions about a pool share: checked arrays, rows of unit length, and work in blocks of bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import UserError, check_integer

BLOCK = 4096  # rows at a time: the largest temporary is a block of float32 against the labels or another block
LEAST = 1e-3  # shorter distances between unit rows are rounding errors of float32
SAMPLE = 4096  # rows that main directions are taken from
FLOOR = 1e-3  # a feature that hardly varies, relative to the others, must not be blown up to unit variance


def check_features(name: str, features: Any) -> np.ndarray:
    """`features` as an array of shape (rows, width) that holds finite numbers; it is not copied if it is one."""
    array = np.asarray(features)
    if array.dtype.kind not in "fiu":
        raise UserError(f"{name} must hold numbers, got dtype {array.dtype}")
    if array.ndim != 2:
        raise UserError(f"{name} must have shape (rows, width), got shape {array.shape}")
    if array.size == 0:
        raise UserError(f"{name} must hold at least one row and one column, got shape {array.shape}")
    bad = sum(int((~np.isfinite(array[part])).any(1).sum()) for part in blocks(len(array)))
    if bad:
        raise UserError(f"{name} must be finite, but {bad} of {len(array)} rows hold NaN or infinity; leave those out")
    return array


def check_labels(name: str, labels: Any, rows: int, *, low: int = 0, classes: int | None = None) -> np.ndarray:
    """`labels` as integers of shape (rows,), from `low` (−1: unlabeled) to `classes` − 1."""
    array = np.asarray(labels)
    if array.shape != (rows,):
        raise UserError(f"{name} must have one entry per row, shape ({rows},), got shape {array.shape}")
    if array.dtype.kind not in "iu" and (array.dtype.kind != "f" or (array != np.round(array)).any()):
        raise UserError(f"{name} must hold integers, the class numbers, got dtype {array.dtype}")
    if rows and (array.min() < low or (classes is not None and array.max() >= classes)):
        high = "" if classes is None else f" to {classes - 1}"
        raise UserError(f"{name} must hold classes from {low}{high}, got {array.min()} to {array.max()}")
    return array.astype(np.int64)


def check_classes(labels: np.ndarray, classes: int | None) -> int:
    """The number of classes: as given, or one more than the largest label."""
    if classes is None:
        return int(labels.max(initial=-1)) + 1
    return check_integer("classes", classes)


def check_probs(name: str, probs: Any, classes: int | None = None) -> np.ndarray:
    """`probs` as float64 of shape (rows, classes), rows summing to 1."""
    array = check_features(name, probs).astype(np.float64)
    if classes is not None and array.shape[1] != classes:
        raise UserError(f"{name} must have {classes} columns, one per class, got shape {array.shape}")
    if array.min() < -1e-5 or np.abs(array.sum(1) - 1).max() > 1e-3:
        raise UserError(f"{name} must be probabilities, each row summing to 1; apply a softmax to logits")
    array = np.clip(array, 1e-12, None)
    return np.asarray(array / array.sum(1, keepdims=True))


def blocks(rows: int, size: int = BLOCK) -> Iterator[slice]:
    """Slices that cover `rows` rows."""
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def unit(features: np.ndarray) -> np.ndarray:
    """Rows scaled to unit length, as float32; a row of zeros, all that is left of copies alone, becomes one of ones."""
    rows = features.astype(np.float32)
    rows[~rows.any(1)] = 1
    length = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    scaled: np.ndarray = rows / np.maximum(length, 1e-12)[:, None]
    return scaled


def unit_rows(features: Any, reference: Any = None) -> np.ndarray:
    """Standardize features and scale each row to unit length, as heads on frozen features expect.

    Args:
        features: of shape (rows, width).
        reference: rows whose mean and standard deviation are used, by default `features`. Give the whole pool here
            when `features` are only the labeled or only some new images.

    Returns:
        An array of the same shape, float32.

    >>> unit_rows([[0.0, 0.0], [2.0, 4.0]]).round(3)
    array([[-0.707, -0.707],
           [ 0.707,  0.707]], dtype=float32)
    """
    rows = check_features("features", features)
    base = rows if reference is None else check_features("reference", reference)
    if base.shape[1] != rows.shape[1]:
        raise UserError(f"reference must have the width of features, {rows.shape[1]}, got {base.shape[1]}")
    mean, std = _moments(base)
    result = np.empty(rows.shape, np.float32)
    for part in blocks(len(rows)):
        result[part] = unit((rows[part].astype(np.float32) - mean) / std)
    return result


def main_directions(rows: np.ndarray, count: int) -> np.ndarray:
    """An orthonormal basis of the directions in which rows of unit length differ most, the last column of the most.

    Args:
        rows: of shape (rows, width).
        count: of directions; at most one per row and one per dimension are found.

    Returns:
        An array of shape (width, directions).
    """
    from scipy.linalg import eigh  # here, because it takes a while to import

    sample = unit(rows[:: -(-len(rows) // SAMPLE)])
    width = sample.shape[1]
    if len(sample) < width:  # a few labels: the whole of width² products would take most of a second
        directions = np.linalg.svd(sample, full_matrices=False)[2][:count]
        return np.ascontiguousarray(directions[::-1].T)
    _, basis = eigh(sample.T @ sample, subset_by_index=[max(width - count, 0), width - 1])
    return np.asarray(basis)


def distances(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Euclidean distances between rows of unit length, of shape (rows, others)."""
    squared = 2 - 2 * (rows @ others.T)
    far: np.ndarray = np.sqrt(np.where(squared < LEAST**2, 0, squared))
    return far


def _moments(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = np.zeros(rows.shape[1])
    squares = np.zeros(rows.shape[1])
    for part in blocks(len(rows)):
        block = rows[part].astype(np.float64)
        total += block.sum(0)
        squares += np.square(block).sum(0)
    mean = total / len(rows)
    variance = np.maximum(squares / len(rows) - mean**2, 0)
    least = max(FLOOR * float(np.sqrt(variance.mean())), 1e-12)
    return mean.astype(np.float32), np.maximum(np.sqrt(variance), least).astype(np.float32)

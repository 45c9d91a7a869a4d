"""What must hold for any dataset, with one line for the user where it does not."""

from collections.abc import Sequence

import numpy as np

from ..errors import UserError


def check_examples(x: np.ndarray, y: np.ndarray, names: Sequence[str] | None, part: str) -> None:
    """Images or vectors of a known kind, finite, one label (and name) each."""
    if not len(x):
        raise UserError(f"{part}: no examples; at least one is needed")
    if (x.ndim, x.dtype) not in ((4, np.uint8), (2, np.float32)):
        raise UserError(f"{part}: x is {x.dtype} {x.shape}; give uint8 N×H×W×C images or float32 N×D vectors")
    if x.ndim == 4 and x.shape[3] not in (1, 3):
        raise UserError(f"{part}: images of shape {x.shape[1:]}; the last axis must be 1 (grey) or 3 (RGB)")
    if not x.size:
        raise UserError(f"{part}: examples of shape {x.shape[1:]} are empty; give at least one value each")
    if y.shape != (len(x),):
        raise UserError(f"{part}: {len(x)} examples but labels of shape {y.shape}; give one label for each")
    if names is not None and len(names) != len(x):
        raise UserError(f"{part}: {len(x)} examples but {len(names)} names; give one name for each")
    if x.ndim == 2 and not all(np.isfinite(x[i : i + 4096]).all() for i in range(0, len(x), 4096)):
        raise UserError(f"{part}: x holds NaN or infinite values; remove or fill them first")


def check_same_shape(train: np.ndarray, test: np.ndarray) -> None:
    """Test examples look like training examples."""
    if train.shape[1:] != test.shape[1:]:
        raise UserError(f"test has shape {test.shape[1:]}, train {train.shape[1:]}: make the examples equal")


def check_labels(train: np.ndarray, test: np.ndarray | None, classes: Sequence[str]) -> None:
    """Class numbers in range (−1 = unlabelled, in training only), and a labelled example of every class."""
    k = len(classes)
    if k < 2:
        raise UserError(f"only {k} class found ({', '.join(classes) or 'none'}); at least 2 are needed")
    for part, y, lowest in (("train", train, -1), ("test", test, 0)):
        if y is None:
            continue
        if y.dtype != np.int64 or y.min() < lowest or y.max() >= k:
            found = f"{y.dtype} {y.min()}…{y.max()}"
            raise UserError(f"{part}: labels are {found}; they must be int64 from {lowest} to {k - 1}")
    empty = np.flatnonzero(np.bincount(train[train >= 0], minlength=k) == 0)
    if len(empty):
        raise UserError(f"class {classes[empty[0]]!r} has no labelled training example; add some")

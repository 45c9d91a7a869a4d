"""Rows that belong together, such as photos of one scene: no split may tear them apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import OptionError

BY_DATA = ("auto", "none")  # values of `group_by` that read neither names nor tables


def named_groups(group_by: str, names: Sequence[str] | None, column: Mapping[str, str] | None = None) -> np.ndarray:
    """The group number of each row, by a column of a table or by what a regular expression finds in file names.

    Rows without a value, or without a match, are groups of their own.

    Args:
        group_by: a regular expression; its first group counts if it has one. Only named if `column` is given.
        names: of the rows.
        column: values of a table's column, by name of the row.

    Example:
        >>> named_groups(r"^\\w+?_", ["a_1.png", "b_1.png", "a_2.png", "c.png"]).tolist()
        [0, 1, 0, 3]
    """
    if names is None:
        raise OptionError("group_by", group_by, "needs names of files, and these data have none", "use auto or none")
    keys = [column.get(name) if column is not None else _matched(group_by, name) for name in names]
    if not any(keys):
        raise OptionError("group_by", group_by, "matches no file name and is not a column of the label file")
    first: dict[str, int] = {}
    return np.array([row if not key else first.setdefault(key, row) for row, key in enumerate(keys)])


def check_group_by(group_by: str) -> None:
    """Refuse what is neither a word nor a regular expression."""
    try:
        re.compile(group_by)
    except (re.error, TypeError) as fault:
        remedy = "give auto, none, a regular expression or a column of the label file"
        raise OptionError("group_by", group_by, f"is not a regular expression ({fault})", remedy) from fault


def _matched(pattern: str, name: str) -> str | None:
    found = re.search(pattern, name)
    return None if found is None else found.group(1 if found.re.groups else 0)


def sample_groups(y: np.ndarray, groups: np.ndarray, wanted: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
    """Rows of whole groups, ascending: of each class as nearly the `wanted` number as groups allow, never all.

    Args:
        y: class numbers, (rows,).
        groups: (rows,).
        wanted: rows of each class, (classes,).
        rng: draws the order in which groups are tried.
    """
    number, table = _class_table(y, groups, len(wanted))
    left = table.sum(0)
    missing = wanted.astype(np.int64)
    taken = np.zeros(len(table), bool)
    for group in rng.permutation(len(table)):
        size = table[group]
        nearer = np.abs(missing - size).sum() < np.abs(missing).sum()
        if nearer and (left > size)[size > 0].all():
            taken[group] = True
            missing = missing - size
            left = left - size
    return np.flatnonzero(taken[number])


def group_folds(y: np.ndarray, groups: np.ndarray, most: int, seed: int) -> np.ndarray:
    """The fold of each row, the same for rows of a group; −1 for rows without which a class would be unseen.

    Large groups are dealt out first, each to the fold with the smallest part of its classes. There are `most` folds, or
    as many as the usual class has groups.
    """
    number, table = _class_table(y, groups, int(y.max()) + 1)
    total = table.sum(0)
    parts = (table > 0).sum(0)
    folds = int(np.clip(np.median(parts[parts > 0]), 2, most))
    fold = np.full(len(table), -1)
    filled = np.zeros((folds, table.shape[1]))
    order = np.random.default_rng(seed).permutation(len(table))
    for group in order[np.argsort(-table[order].sum(1), kind="stable")]:
        size = table[group]
        fold[group] = np.lexsort((filled.sum(1), (filled / np.maximum(total, 1)) @ size))[0]
        filled[fold[group]] += size
    for label in np.flatnonzero(total):
        members = table[:, label] > 0
        if len(np.unique(fold[members])) == 1:
            fold[members] = -1
    used = np.unique(fold[fold >= 0])
    numbers: np.ndarray = np.where(fold < 0, -1, np.searchsorted(used, fold))[number]
    return numbers


def _class_table(y: np.ndarray, groups: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """The number of each row's group, and how many rows of each class a group has, (groups, classes)."""
    _, number = np.unique(groups, return_inverse=True)
    table = np.zeros((number.max(initial=-1) + 1, classes), np.int64)
    np.add.at(table, (number, y), 1)
    return number, table

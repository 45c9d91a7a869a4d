"""A dataset from a folder or zip of images, with classes from its folders or a table; unreadable files are listed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import UserError
from ...utils.suggest import did_you_mean
from ..cache import Allocate, cached
from ..dataset import Dataset, Examples, channel_mean_std
from ..groups import BY_DATA, named_groups
from ..images.decode import Header, Size, common_shape, decode, ranges_of, read_headers, threads_for
from ..images.high_bit_depth import read_heif
from ..images.store import EXTENSIONS, HEIF, Limits, Store, is_image, open_store, parts
from ..split import train_test_rows
from .label_table import Item, Layout, find_label_file, label_layout, table_column

# Folder names are the user's, so both spellings count.
_ROLES = {"train": "train", "test": "test", "labeled": "labeled", "labelled": "labeled"}
_ROLES |= {"unlabeled": "unlabeled", "unlabelled": "unlabeled"}
Paths = list[tuple[str, tuple[str, ...]]]  # name in the store, its folders and file name
Groups = dict[str, list[Item]]
Skipped = list[tuple[str, str]]  # name, reason
Options = tuple[Size, str, str]  # size, mode, intensity


class DecodedGroups(NamedTuple):
    """What was decoded."""

    arrays: dict[str, np.ndarray]  # of every group
    groups: Groups  # the items of its rows
    skipped: Skipped
    ranges: list[tuple[float, float]]


def load_folder(
    path: str | Path,
    *,
    size: int | None = None,
    mode: str = "auto",
    cache: str | None = None,
    progress: bool = False,
    label_file: str | None = None,
    intensity: str = "auto",
    limits: Limits | None = None,
    group_by: str = "none",
) -> Dataset:
    """A dataset from train/<class>, labeled/<class> + unlabeled, both with or without test/<class>, or <class>.

    A `label_file` replaces the layout: images in any folders, with their labels in a table. Class folders alone give
    one fifth of every class to the test set, the same fifth for every seed. Images are decoded once and kept in the
    cache folder; unreadable ones are listed in `skipped`. The options are those of `load_ssl`.
    """
    with open_store(Path(path), limits) as store:
        table = None if label_file is None else find_label_file(store, label_file)
        labels = None if table is None else (table[0], hashlib.sha256(table[1]).hexdigest())
        heif = read_heif() if any(name.lower().endswith(HEIF) for name in store.stamps) else None
        limited = (store.limits.image_mb, store.limits.file_mb)
        key = [type(store).__name__, store.fingerprint(), size, mode, intensity, labels, heif, limited]
        grouped = group_by not in BY_DATA
        key += [group_by] if grouped and table is None else []  # it decides which class folders' images are for testing
        column = table_column(store, *table, group_by, str(path)) if grouped and table else None

        def build(allocate: Allocate) -> dict[str, Any]:
            layout = label_layout(store, *table, str(path)) if table else read_layout(store.stamps, str(path), group_by)
            groups = {"train": layout.train} | ({"test": layout.test} if layout.test else {})
            read = read_groups(store, groups, str(path), (size, mode, intensity), allocate, progress)
            mean, std = channel_mean_std(read.arrays["train"])
            number = {None: -1} | {name: number for number, name in enumerate(layout.classes)}
            rows = {group: [(name, number[label]) for name, label in items] for group, items in read.groups.items()}
            facts = {"classes": layout.classes, "fixed": layout.fixed, "mean": mean, "std": std, "ranges": read.ranges}
            validation = [row for row, (name, _) in enumerate(rows["train"]) if name in layout.validation]
            return rows | facts | {"skipped": [*layout.missing, *read.skipped], "validation": validation}

        arrays, facts = cached(key, cache, build)
    dataset = Dataset(
        _examples(arrays["train"], facts["train"]),
        _examples(arrays["test"], facts["test"]) if "test" in facts else None,
        tuple(facts["classes"]),
        tuple(facts["mean"]),
        tuple(facts["std"]),
        name=Path(path).resolve().name.removesuffix(".zip"),
        skipped=tuple((name, reason) for name, reason in facts["skipped"]),
        fixed=facts["fixed"],
        ranges=tuple((low, high) for low, high in facts.get("ranges", ())),
    )
    if grouped:
        dataset = replace(dataset, groups=named_groups(group_by, dataset.train.names, column))
    rows = np.array(facts.get("validation", []), np.int64)
    return dataset.with_validation(rows) if len(rows) else dataset


def decode_size(
    path: str | Path, side: int, *, cache: str | None = None, limits: Limits | None = None, progress: bool = False
) -> int | None:
    """The size at which images for a network of `side` pixels are decoded: `side`, or None for their own.

    Their own if it is the same for all, and not larger.
    """
    with open_store(Path(path), limits) as store:

        def build(_: Allocate) -> dict[str, Any]:
            headers = read_headers(store, list(store.images()), progress)
            return {"sizes": sorted({header.size for header in headers if not header.reason})[:2]}

        key = ["sizes", type(store).__name__, store.fingerprint(), (store.limits.image_mb, store.limits.file_mb)]
        sizes = cached(key, cache, build)[1]["sizes"]
    larger = len(sizes) == 1 and min(sizes[0]) >= side and max(sizes[0]) > side
    return side if len(sizes) > 1 or larger else None


def _examples(x: np.ndarray, rows: list[tuple[str, int]]) -> Examples:
    """The array may be longer than `rows`, by the images that could not be decoded."""
    names, y = zip(*rows, strict=True)
    return Examples(x[: len(rows)], np.array(y, np.int64), names)


def read_groups(
    store: Store, groups: Groups, path: str, options: Options, allocate: Allocate, progress: bool = False
) -> DecodedGroups:
    """Decode each group into its own array; all groups get the same size and mode, and the range of the first group."""
    headers: list[Header] = []
    read = DecodedGroups({}, {}, [], [])
    for group, items in groups.items():
        names = [name for name, _ in items]
        group_headers = read_headers(store, names, progress)
        if not headers:
            read.ranges.extend(ranges_of(store, names, group_headers, options[2]))
        headers += group_headers
        bad = {row: header.reason for row, header in enumerate(group_headers) if header.reason}
        read.groups[group] = _drop(items, bad, read.skipped)
    _check_enough(groups, read, path)
    shape = common_shape(headers, *options[:2])
    threads = threads_for(sum(h.size[0] * h.size[1] for h in headers) / len(headers))
    for group, items in read.groups.items():
        out = allocate(group, (len(items), *shape))
        bad = decode(store, [name for name, _ in items], out, threads, progress, tuple(read.ranges))
        read.groups[group] = _drop(items, bad, read.skipped)
        if bad:  # close the gaps in place, because the array may be a file larger than memory
            for new, old in enumerate(row for row in range(len(out)) if row not in bad):
                out[new] = out[old]
        read.arrays[group] = out[: len(out) - len(bad)]
    _check_enough(groups, read, path)
    read.skipped.sort()
    return read


def _drop(items: list[Item], bad: dict[int, str], skipped: Skipped) -> list[Item]:
    skipped += [(items[row][0], reason) for row, reason in bad.items()]
    return [item for row, item in enumerate(items) if row not in bad]


def _check_enough(before: Groups, read: DecodedGroups, path: str) -> None:
    """A few unreadable files are skipped; losing a whole class or most files is an error."""
    total = sum(map(len, before.values()))
    if not total:
        raise UserError(f"{path}: no images found (looked for {' '.join(EXTENSIONS)})")
    if 2 * len(read.skipped) > total:
        name, reason = read.skipped[0]
        raise UserError(f"{path}: {len(read.skipped)} of {total} images cannot be read, first {name} ({reason})")
    for group in before:
        left = {label for _, label in read.groups[group]}
        for _, label in before[group]:
            if label not in left:
                raise UserError(f"{path}: no {label or 'unlabeled'!r} image ({group}) can be read; replace them")


# --- the layout


def read_layout(names: Iterable[str], path: str, group_by: str = "none") -> Layout:
    """Read train/<class>, labeled/<class> + unlabeled, both with or without test/<class>, or <class> alone."""
    paths = _unwrap([(name, parts(name)) for name in names])
    if not any(is_image(name) for name, _ in paths):
        raise UserError(f"{path}: no images found (looked for {' '.join(EXTENSIONS)})")
    roles: dict[str, Paths] = {}
    for name, (top, *below) in paths:
        if top.lower() in _ROLES:
            roles.setdefault(_ROLES[top.lower()], []).append((name, tuple(below)))
    if not roles:
        items, classes = _by_class(paths, path)
        groups = None if group_by in BY_DATA else named_groups(group_by, [name for name, _ in items])
        train, test = train_test_rows(np.array([classes.index(str(c)) for _, c in items]), groups=groups)
        return Layout([items[i] for i in train], [items[i] for i in test], classes, fixed=False)
    base = _base(set(roles), path)
    items, classes = _by_class(roles[base], path)
    tested, test_classes = _by_class(roles.get("test", []), path, may_be_empty=True)
    if "test" in roles and not tested:
        raise UserError(f"{path}: test/ holds no images; fill it or remove it")
    unknown = [name for name in test_classes if name not in classes]
    if unknown:
        hint = did_you_mean(unknown[0], classes) or f"; the classes are {', '.join(classes)}"
        raise UserError(f"{path}: test/{unknown[0]} has no counterpart in {base}/{hint}")
    unlabeled: list[Item] = [(name, None) for name, _ in roles.get("unlabeled", []) if is_image(name)]
    return Layout(items + unlabeled, tested, classes, fixed=base == "labeled")


def _unwrap(paths: Paths) -> Paths:
    """Remove a single folder that contains everything else."""
    tops = {p[0] for name, p in paths if is_image(name)}
    top = next(iter(tops), "")
    wrapped = len(tops) == 1 and top.lower() not in _ROLES and any(len(p) > 2 for _, p in paths)
    return [(name, p[1:]) for name, p in paths if p[0] == top and len(p) > 1] if wrapped else paths


def _base(roles: set[str], path: str) -> str:
    """The folder of the labeled training images; folders that do not fit together are an error."""
    if {"train", "labeled"} <= roles:
        raise UserError(f"{path}: both train/ and labeled/ exist; keep one of them")
    base = "labeled" if roles & {"labeled", "unlabeled"} and "train" not in roles else "train"
    needed = {"labeled", "unlabeled"} if base == "labeled" else {"train"}
    missing = sorted(needed - roles)
    if missing:
        remedy = "give labeled/<class> and unlabeled, or train/<class>, and test/<class> to measure the error"
        table = "; or give the labels of these images as a table: label_file" if missing == ["labeled"] else ""
        raise UserError(f"{path}: {missing[0]}/ is missing; {remedy}{table}")
    return base


def _by_class(paths: Paths, path: str, may_be_empty: bool = False) -> tuple[list[Item], tuple[str, ...]]:
    """The images under a role with their class, and the sorted classes; a class folder without images is an error."""
    for name, p in paths:
        if len(p) == 1 and is_image(name):
            raise UserError(f"{path}: {name} is in no class folder; move it into one, or give a table as label_file")
    items: list[Item] = [(name, p[0]) for name, p in paths if is_image(name)]
    folders = {p[0] for name, p in paths if len(p) > 1 or (len(p) == 1 and name.endswith("/"))}
    filled = {str(label) for _, label in items}
    if folders > filled and not may_be_empty:
        raise UserError(f"{path}: class folder {min(folders - filled)!r} holds no images; fill it or remove it")
    return items, tuple(sorted(filled))

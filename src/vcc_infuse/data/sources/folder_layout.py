"""The layout of a folder or zip: which files are images, and the role and class their folders give them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ...errors import UserError
from ...utils.suggest import did_you_mean
from ..split import train_test_rows

HEIF = (".avif", ".heic", ".heif")
EXTENSIONS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp", *HEIF)
# Folder names are the user's, so both spellings count.
_ROLES = {"train": "train", "test": "test", "labeled": "labeled", "labelled": "labeled"}
_ROLES |= {"unlabeled": "unlabeled", "unlabelled": "unlabeled"}
Item = tuple[str, str | None]  # name in the store, class (None = unlabeled)
Paths = list[tuple[str, tuple[str, ...]]]  # name in the store, its folders and file name


def is_image(name: str) -> bool:
    """Whether the file name is that of an image."""
    return name.lower().endswith(EXTENSIONS)


def parts(name: str) -> tuple[str, ...]:
    """The folders and the file name of a path inside a folder or zip, also if written with backslashes."""
    return tuple(part for part in name.replace("\\", "/").split("/") if part not in ("", "."))


def is_hidden(name: str) -> bool:
    """Whether the file, or a folder above it, is hidden or made by the operating system."""
    return any(part.startswith(".") or part == "__MACOSX" for part in parts(name))


@dataclass(frozen=True)
class Layout:
    """Training and test items (maybe none), the sorted class names, and whether the source decides what is labeled.

    `validation`: training items that are kept out of training; `missing`: files that are named but not there, with the
    reason.
    """

    train: list[Item]
    test: list[Item]
    classes: tuple[str, ...]
    fixed: bool
    validation: frozenset[str] = frozenset()
    missing: tuple[tuple[str, str], ...] = ()


def read_layout(names: Iterable[str], path: str) -> Layout:
    """Read train/<class>, labeled/<class> + unlabeled, both with or without test/<class>, or <class> alone."""
    paths = _unwrap([(name, parts(name)) for name in names])
    if not any(is_image(name) for name, _ in paths):
        raise UserError(f"{path}: no images found (looked for {' '.join(EXTENSIONS)})")
    roles: dict[str, Paths] = {}
    for name, (top, *below) in paths:
        if top.lower() in _ROLES:
            roles.setdefault(_ROLES[top.lower()], []).append((name, tuple(below)))
    if not roles:
        return _class_folders(paths, path)
    base = _base(set(roles), path)
    train = _by_class(roles[base], path)
    test = _by_class(roles.get("test", []), path)
    classes = _classes(train, base, path)
    if "test" in roles and not _images(test):
        raise UserError(f"{path}: test/ holds no images; fill it or remove it")
    unknown = sorted(set(_classes(test, "test", path)) - set(classes))
    if unknown:
        hint = did_you_mean(unknown[0], classes) or f"; the classes are {', '.join(classes)}"
        raise UserError(f"{path}: test/{unknown[0]} has no counterpart in {base}/{hint}")
    unlabeled: list[Item] = [(name, None) for name, _ in roles.get("unlabeled", []) if is_image(name)]
    return Layout(_images(train) + unlabeled, _images(test), classes, fixed=base == "labeled")


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


def _by_class(paths: Paths, path: str) -> list[Item]:
    """Every file and folder under a role with its class; folders are kept so that empty classes are noticed."""
    for name, p in paths:
        if len(p) == 1 and is_image(name):
            raise UserError(f"{path}: {name} is in no class folder; move it into one, or give a table as label_file")
    return [(name, p[0]) for name, p in paths if len(p) > 1 or (len(p) == 1 and name.endswith("/"))]


def _classes(items: list[Item], role: str, path: str) -> tuple[str, ...]:
    filled = {c for name, c in items if is_image(name)}
    empty = sorted({str(c) for _, c in items} - filled)
    if empty and role != "test":
        raise UserError(f"{path}: class folder {empty[0]!r} holds no images; fill it or remove it")
    return tuple(sorted(str(c) for c in filled))


def _images(items: list[Item]) -> list[Item]:
    return [item for item in items if is_image(item[0])]


def _class_folders(paths: Paths, path: str) -> Layout:
    items = _by_class(paths, path)
    classes = _classes(items, "", path)
    items = _images(items)
    train, test = train_test_rows(np.array([classes.index(str(c)) for _, c in items]))
    return Layout([items[i] for i in train], [items[i] for i in test], classes, fixed=False)

"""The rows of a label file and the images of a folder or zip, brought together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from ...errors import OptionError, UserError
from ...utils.suggest import did_you_mean, did_you_mean_path
from ..images.file_store import Store
from .label_file import LabelRow, read_label_file
from .layout import Item, Layout, is_image, parts

UPLOAD = re.compile(r"^[0-9a-f]{8}-")  # Label Studio puts it before the name of an uploaded file
SHOWN = 3


def find_label_file(store: Store, label_file: str) -> tuple[str, bytes]:
    """Name and content of a label file, which is beside the images or among them."""
    path = Path(label_file).expanduser()
    if path.is_file():
        return path.name, path.read_bytes()
    if label_file in store.stamps:
        with store.open(label_file) as file:
            return label_file, file.read()
    hint = did_you_mean_path(label_file).removeprefix("; ") or "check the path"
    raise OptionError("label_file", label_file, "must be a CSV or JSON file with labels", hint)


def label_layout(store: Store, name: str, content: bytes, path: str) -> Layout:
    """What the table says of the images; images that it does not name are unlabeled."""
    images = [image for image in store.stamps if is_image(image)]
    if not images:
        raise UserError(f"{path}: no images found")
    rows = _one_label_each(_matched(read_label_file(content, name), images, name, path), name)
    missing = [(row.file, f"named in {name}, but not in {path}") for image, row in rows if image is None]
    kept = {image: row for image, row in rows if image is not None}
    if 2 * len(missing) > len(rows):
        raise UserError(f"{name}: {_listed([file for file, _ in missing])} of {len(rows)} are not in {path}")
    _check_classes([row for _, row in rows], list(kept.values()), name, path)
    split = {image: kept[image].split if image in kept else "unlabeled" for image in images}
    tested = "test" in split.values()
    skipped = missing + [(i, f"in the split {split[i]} of {name}, but without a label") for i in images
                         if split[i] in ("test", "validation") and kept[i].label is None]  # fmt: skip
    out = {file for file, _ in skipped} | ({i for i in images if split[i] == "validation"} if tested else set())
    items: list[Item] = [(i, kept[i].label if i in kept else None) for i in images if i not in out]
    return Layout(
        [item for item in items if split[item[0]] != "test"],
        [item for item in items if split[item[0]] == "test"],
        _ordered(label for i, label in items if label is not None and split[i] == "train"),
        fixed=True,
        validation=frozenset(i for i, _ in items if split[i] == "validation"),
        missing=tuple(skipped),
    )


def _matched(rows: list[LabelRow], images: list[str], name: str, path: str) -> list[tuple[str | None, LabelRow]]:
    """Each row with the image it means: the same path, a longer or a shorter one, or only the file's name."""
    by_name: dict[str, list[tuple[str, ...]]] = {}
    spelled = {parts(image): image for image in images}
    for folders in spelled:
        by_name.setdefault(folders[-1], []).append(folders)
    found: list[tuple[str | None, LabelRow]] = []
    for row in rows:
        wanted = parts(row.file) or ("",)
        candidates = _candidates(wanted, by_name) or _candidates((UPLOAD.sub("", wanted[-1]),), by_name)
        if len(candidates) > 1:
            shown = ", ".join(spelled[c] for c in candidates[:SHOWN])
            raise UserError(f"{name}: {row.file} may be {shown} in {path}; write the path instead of the name")
        found.append((spelled[candidates[0]] if candidates else None, row))
    return found


def _candidates(wanted: tuple[str, ...], by_name: dict[str, list[tuple[str, ...]]]) -> list[tuple[str, ...]]:
    """Images whose path ends like the wanted one; if the wanted path is longer, only the longest of them."""
    near = by_name.get(wanted[-1], [])
    if wanted in near:
        return [wanted]
    inside = [c for c in near if c[-len(wanted) :] == wanted]
    around = sorted((c for c in near if wanted[-len(c) :] == c), key=len)
    return inside or around[-1:]


def _one_label_each(rows: list[tuple[str | None, LabelRow]], name: str) -> list[tuple[str | None, LabelRow]]:
    """Every image once; a file with two labels is a mistake."""
    kept: dict[str, tuple[str | None, LabelRow]] = {}
    twice = dict[str, list[str]]()
    for image, row in rows:
        _, first = kept.setdefault(image or row.file, (image, row))
        if first.label != row.label:
            twice.setdefault(row.file, [str(first.label)]).append(str(row.label))
    if twice:
        file, labels = next(iter(twice.items()))
        raise UserError(f"{name}: {len(twice)} files have more than one label, first {file} ({', '.join(labels)})")
    return list(kept.values())


def _check_classes(all_rows: list[LabelRow], kept: list[LabelRow], name: str, path: str) -> None:
    """Every class of the table must have training images, and other splits no other classes."""
    train = {row.label for row in kept if row.label is not None and row.split == "train"}
    lost = Counter(row.label for row in all_rows if row.label is not None and row.split == "train").keys() - train
    if lost:
        raise UserError(
            f"{name}: no file with the label {min(map(str, lost))!r} is in {path}; add it or remove its rows"
        )
    unknown = sorted({row.label for row in kept if row.label is not None} - train)
    if unknown:
        hint = did_you_mean(unknown[0], map(str, train)) or "; label some training images of it"
        raise UserError(f"{name}: the label {unknown[0]!r} is only in the splits test and validation{hint}")


def _ordered(labels: Iterable[str]) -> tuple[str, ...]:
    """The classes, sorted; numbers by their value."""
    found = set(labels)
    numbers = all(label.lstrip("-").isdecimal() for label in found)
    return tuple(sorted(found, key=(lambda label: (int(label), label)) if numbers else None))


def _listed(files: list[str]) -> str:
    more = f" and {len(files) - SHOWN} more" if len(files) > SHOWN else ""
    return f"{len(files)} files ({', '.join(files[:SHOWN])}{more})"

"""A table with the labels of images in any folders: which image each row means, and what it says of it.

Tables are CSV, TSV, JSON lines, and the exports of Label Studio and COCO (one label per image).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from ...errors import OptionError, UserError
from ...utils.io import table_cell
from ...utils.suggest import did_you_mean, did_you_mean_path
from ..images.store import Store, is_image, parts

FILE_COLUMNS = ("file", "filename", "file_name", "path", "image", "image_path", "name")
LABEL_COLUMNS = ("label", "class", "choice", "category")
SPLITS = {"": "train", "train": "train", "training": "train", "labeled": "train", "unlabeled": "unlabeled"}
SPLITS |= {"test": "test", "validation": "validation", "valid": "validation", "val": "validation"}
UPLOAD = re.compile(r"^[0-9a-f]{8}-")  # Label Studio puts it before the name of an uploaded file
SHOWN = 3  # names in a message
FORMATS = "CSV, TSV, JSON lines, or a JSON export of Label Studio or COCO"
Item = tuple[str, str | None]  # name in the store, class (None = unlabeled)


class Layout(NamedTuple):
    """What the folders of images, or a table, say of them."""

    train: list[Item]
    test: list[Item]  # may be empty
    classes: tuple[str, ...]
    fixed: bool  # whether the source decides what is labeled
    validation: frozenset[str] = frozenset()  # training items that are kept out of training
    missing: tuple[tuple[str, str], ...] = ()  # files that are named but not there, with the reason


class LabelRow(NamedTuple):
    """A file as the table names it, its label (None: unlabeled) and its split."""

    file: str
    label: str | None
    split: str = "train"
    columns: Mapping[str, Any] | None = None  # all of the row, by lower-case name


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
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        files = f"{len(missing)} files ({', '.join(file for file, _ in missing[:SHOWN])}{more})"
        raise UserError(f"{name}: {files} of {len(rows)} are not in {path}")
    _check_classes([row for _, row in rows], list(kept.values()), name, path)
    split = {image: kept[image].split if image in kept else "unlabeled" for image in images}
    measured = [image for image in images if split[image] in ("test", "validation")]
    unlabeled = [image for image in measured if kept[image].label is None]
    skipped = missing + [(i, f"in the split {split[i]} of {name}, but without a label") for i in unlabeled]
    unused = [image for image in measured if split[image] == "validation" and "test" in split.values()]
    left_out = {*unlabeled, *unused}
    items: list[Item] = [(i, kept[i].label if i in kept else None) for i in images if i not in left_out]
    labels = {label for i, label in items if label is not None and split[i] == "train"}
    numbers = all(label.lstrip("-").isdecimal() for label in labels)  # which are sorted by their value
    return Layout(
        [item for item in items if split[item[0]] != "test"],
        [item for item in items if split[item[0]] == "test"],
        tuple(sorted(labels, key=(lambda label: (int(label), label)) if numbers else None)),
        fixed=True,
        validation=frozenset(i for i, _ in items if split[i] == "validation"),
        missing=tuple(skipped),
    )


def table_column(store: Store, name: str, content: bytes, column: str, path: str) -> dict[str, str] | None:
    """The values of a column by the image that each row means; None if the table has no such column."""
    rows = read_label_file(content, name)
    key = column.strip().lower()
    if not any(key in (row.columns or {}) for row in rows):
        return None
    images = [image for image in store.stamps if is_image(image)]
    values = [(image, _text((row.columns or {}).get(key))) for image, row in _matched(rows, images, name, path)]
    return {image: value for image, value in values if image is not None and value is not None}


def _matched(rows: list[LabelRow], images: list[str], name: str, path: str) -> list[tuple[str | None, LabelRow]]:
    """Each row with the image it means: the same path, a longer or a shorter one, or only the file's name."""
    files = FileNames(images)
    matched: list[tuple[str | None, LabelRow]] = []
    for row in rows:
        candidates = files.find(row.file)
        if len(candidates) > 1:
            shown = ", ".join(candidates[:SHOWN])
            raise UserError(f"{name}: {row.file} may be {shown} in {path}; write the path instead of the name")
        matched.append((candidates[0] if candidates else None, row))
    return matched


class FileNames:
    """Finds images by paths that may begin elsewhere."""

    def __init__(self, images: Iterable[str]) -> None:
        self._spelled = {parts(image): image for image in images}
        self._by_name: dict[str, list[tuple[str, ...]]] = {}
        for folders in self._spelled:
            self._by_name.setdefault(folders[-1], []).append(folders)

    def find(self, file: str) -> list[str]:
        """The images that a path may mean, usually one."""
        wanted = parts(file) or ("",)
        candidates = _candidates(wanted, self._by_name) or _candidates((UPLOAD.sub("", wanted[-1]),), self._by_name)
        return [self._spelled[candidate] for candidate in candidates]


def _candidates(wanted: tuple[str, ...], by_name: dict[str, list[tuple[str, ...]]]) -> list[tuple[str, ...]]:
    """Images whose path ends like the wanted one; if the wanted path is longer, only the longest of them."""
    near = by_name.get(wanted[-1], [])
    if wanted in near:
        return [wanted]
    longer = [path for path in near if path[-len(wanted) :] == wanted]
    shorter = sorted((path for path in near if wanted[-len(path) :] == path), key=len)
    return longer or shorter[-1:]


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
    lost = {row.label for row in all_rows if row.label is not None and row.split == "train"} - train
    if lost:
        raise UserError(f"{name}: no file with the label {min(lost)!r} is in {path}; add it or remove its rows")
    unknown = sorted({row.label for row in kept if row.label is not None} - train)
    if unknown:
        hint = did_you_mean(unknown[0], train) or "; label some training images of it"
        raise UserError(f"{name}: the label {unknown[0]!r} is only in the splits test and validation{hint}")


# --- the formats


def read_label_file(content: bytes, name: str) -> list[LabelRow]:
    """The rows of a label file; the format is recognized by the file's name and content."""
    try:
        text = content.decode("utf-8-sig")
        rows = list(_read(text, name.lower()))
    except (UnicodeDecodeError, csv.Error, json.JSONDecodeError, RecursionError) as fault:
        raise UserError(f"{name} cannot be read ({fault}); give {FORMATS}, in UTF-8") from fault
    except (KeyError, IndexError, TypeError, AttributeError) as fault:
        raise UserError(f"{name} is not a label file of a known format; give {FORMATS}") from fault
    if not rows:
        raise UserError(f"{name} holds no rows; give one line per labeled image: file,label")
    for number, row in enumerate(rows, 1):
        if row.split not in SPLITS.values():
            raise UserError(f"{name}, row {number}: split is {row.split!r}; it must be train, validation or test")
    return rows


def _read(text: str, name: str) -> Iterator[LabelRow]:
    if name.endswith((".jsonl", ".ndjson")):
        return _table((json.loads(line) for line in text.splitlines() if line.strip()), name)
    if name.endswith(".json"):
        content = json.loads(text)
        if isinstance(content, Mapping) and {"images", "annotations", "categories"} <= content.keys():
            return _coco(content)
        if not isinstance(content, list):
            raise TypeError("neither a list nor an export")
        return _label_studio(content) if content and "data" in content[0] else _table(content, name)
    separator = max(",;\t", key=text.partition("\n")[0].count)
    rows = list(_table(csv.DictReader(io.StringIO(text), delimiter=separator, strict=True), name))
    for cell in (cell or "" for row in rows for cell in (row.file, row.label)):
        # As `table_cell` writes it; taken as it is, it would silently be another file or class.
        if cell.startswith("'") and table_cell(cell) != cell:
            why = "its apostrophe keeps spreadsheets from running it"
            raise UserError(f"{cell!r} in the label file: {why}; remove it, or use JSON lines, which need none")
    return iter(rows)


def _table(rows: Iterable[Mapping[str, Any]], name: str) -> Iterator[LabelRow]:
    """Rows with named columns; names may be in any case."""
    for number, row in enumerate(rows, 1):
        lower = {str(key).strip().lower(): value for key, value in row.items() if key is not None}
        file, label = (next((c for c in known if c in lower), None) for known in (FILE_COLUMNS, LABEL_COLUMNS))
        if file is None or label is None:
            columns = ", ".join(lower) or "none"
            raise UserError(f"{name}, row {number}: columns are {columns}; they must be file, label and maybe split")
        if not _text(lower[file]):
            raise UserError(f"{name}, row {number}: no file is named; fill the column {file} or remove the row")
        word = (_text(lower.get("split")) or "").lower()
        split = SPLITS.get(word, word)
        yield LabelRow(_local(str(lower[file])), None if split == "unlabeled" else _text(lower[label]), split, lower)


def _label_studio(tasks: list[Any]) -> Iterator[LabelRow]:
    """Tasks with annotations."""
    for task in tasks:
        file = studio_file(task["data"])
        results = [r for a in task.get("annotations", []) if not a.get("was_cancelled") for r in a.get("result", [])]
        choices = dict.fromkeys(c for result in results for c in result.get("value", {}).get("choices", []))
        for choice in choices or [None]:
            yield LabelRow(file, _text(choice))


def studio_file(data: Mapping[str, Any]) -> str:
    """The path of the image in the data of a task, which hold at least one text."""
    paths = [_local(value) for value in data.values() if isinstance(value, str)]
    return next((path for path in paths if is_image(path)), None) or paths[0]


def _coco(export: Mapping[str, Any]) -> Iterator[LabelRow]:
    """Images, each with the categories of its annotations."""
    names = {category["id"]: str(category["name"]) for category in export["categories"]}
    labels: dict[Any, dict[str, None]] = {image["id"]: {} for image in export["images"]}
    for annotation in export["annotations"]:
        labels[annotation["image_id"]][names[annotation["category_id"]]] = None
    for image in export["images"]:
        for label in labels[image["id"]] or [None]:
            yield LabelRow(_local(image["file_name"]), label)


def _text(value: Any) -> str | None:
    """A label as text; None where there is none."""
    if isinstance(value, list | dict):
        raise TypeError("a label that is not text")
    return None if value is None or value != value else str(value).strip() or None


def _local(path: str) -> str:
    """The path inside an address, such as that of an uploaded or a local file in Label Studio."""
    path = path.strip()
    if "://" not in path and not path.startswith("/data/"):
        return path
    address = urlsplit(path)
    inside = parse_qs(address.query).get("d", [unquote(address.path)])[0]
    return inside.lstrip("/")

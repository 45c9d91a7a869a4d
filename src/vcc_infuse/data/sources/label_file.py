"""Labels in a table: CSV, TSV, JSON lines, and the exports of Label Studio and COCO (one label per image)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from ...errors import UserError
from ...utils.io import table_cell
from .layout import is_image

FILE_COLUMNS = ("file", "filename", "file_name", "path", "image", "image_path", "name")
LABEL_COLUMNS = ("label", "class", "choice", "category")
SPLITS = {"": "train", "train": "train", "training": "train", "labeled": "train", "unlabeled": "unlabeled"}
SPLITS |= {"test": "test", "validation": "validation", "valid": "validation", "val": "validation"}
FORMATS = "CSV, TSV, JSON lines, or a JSON export of Label Studio or COCO"


class LabelRow(NamedTuple):
    """A file as the table names it, its label (None: unlabeled) and its split."""

    file: str
    label: str | None
    split: str = "train"


def read_label_file(content: bytes, name: str) -> list[LabelRow]:
    """The rows of a label file; the format is recognized by the file's name and content."""
    try:
        text = content.decode("utf-8-sig")
        rows = list(_read(text, name.lower()))
    except (UnicodeDecodeError, csv.Error, json.JSONDecodeError, RecursionError) as fault:
        raise UserError(f"{name} cannot be read ({fault}); give {FORMATS}, in UTF-8") from fault
    except (KeyError, IndexError, TypeError, AttributeError) as fault:
        raise UserError(f"{name} is no label file that is known here; give {FORMATS}") from fault
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
        return _json(json.loads(text), name)
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    return map(_unmarked, _table(csv.DictReader(io.StringIO(text), delimiter=separator, strict=True), name))


def _unmarked(row: LabelRow) -> LabelRow:
    """Refuse a name as `table_cell` writes it: taken as it is, it would silently be another file or class."""
    for cell in (row.file, row.label or ""):
        if cell.startswith("'") and table_cell(cell) != cell:
            why = "its apostrophe keeps spreadsheets from running it"
            raise UserError(f"{cell!r} in the label file: {why}; remove it, or use JSON lines, which need none")
    return row


def _json(found: Any, name: str) -> Iterator[LabelRow]:
    if isinstance(found, Mapping) and {"images", "annotations", "categories"} <= found.keys():
        return _coco(found)
    if isinstance(found, list) and found and "data" in found[0]:
        return _label_studio(found)
    if isinstance(found, list):
        return _table(found, name)
    raise TypeError("neither a list nor an export")


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
        yield LabelRow(_local(str(lower[file])), None if split == "unlabeled" else _text(lower[label]), split)


def _label_studio(tasks: list[Any]) -> Iterator[LabelRow]:
    """Tasks with annotations; the image is the first text of the task's data that is the path of one."""
    for task in tasks:
        paths = [_local(value) for value in task["data"].values() if isinstance(value, str)]
        file = next((path for path in paths if is_image(path)), None) or paths[0]
        results = [r for a in task.get("annotations", []) if not a.get("was_cancelled") for r in a.get("result", [])]
        choices = dict.fromkeys(c for result in results for c in result.get("value", {}).get("choices", []))
        yield from [LabelRow(file, _text(choice)) for choice in choices] or [LabelRow(file, None)]


def _coco(export: Mapping[str, Any]) -> Iterator[LabelRow]:
    """Images, each with the categories of its annotations."""
    names = {category["id"]: str(category["name"]) for category in export["categories"]}
    found: dict[Any, dict[str, None]] = {image["id"]: {} for image in export["images"]}
    for annotation in export["annotations"]:
        found[annotation["image_id"]][names[annotation["category_id"]]] = None
    for image in export["images"]:
        labels = found[image["id"]]
        yield from [LabelRow(_local(image["file_name"]), label) for label in labels] or [
            LabelRow(_local(image["file_name"]), None)
        ]


def _text(value: Any) -> str | None:
    """A label as text; None where there is none."""
    if isinstance(value, list | dict):
        raise TypeError("a label that is no text")
    return None if value is None or value != value else str(value).strip() or None


def _local(path: str) -> str:
    """The path inside an address, such as that of an uploaded or a local file in Label Studio."""
    path = path.strip()
    if "://" not in path and not path.startswith("/data/"):
        return path
    address = urlsplit(path)
    inside = parse_qs(address.query).get("d", [unquote(address.path)])[0]
    return inside.lstrip("/")

"""What a person has said so far: classes, labels, skipped and foreign images, replayed from the journal.

Every action changes a few entries of arrays and tables and remembers what they held before, so that any number of
actions can be undone, after a restart too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..errors import UserError
from .bounds import Batch

PERSON = 1
CONFIRMED = 2
SOURCES = ("", "person", "confirmed")
SKIPPED = 1
FOREIGN = 2
ACTIONS = "label skip foreign unlabel new_class rename key merge grid import undo redo".split()
LONGEST_NAME = 100
MOST_CLASSES = 1000
MISSING = object()
Change = tuple[Any, Any, Any]  # an array or dictionary, a key, and what it held, or MISSING
LONGEST_ACTION = 60.0  # seconds that count for one action: somebody who went away was not labeling


@dataclass(frozen=True)
class LabelClass:
    """A class; `into` is the class that it was merged into."""

    name: str
    key: str = ""
    into: int | None = None


@dataclass(frozen=True)
class GridBatch:
    """Images that the model put in one class, and what a person found on the random part that was looked at.

    Attributes:
        cls: the class.
        images: all of them, in no order.
        looked_at: those that were tiles of a grid.
        wrong: those of the tiles that were clicked as wrong.
        looks: how many grids.
        promised: whether so few were wrong that the others count as confirmed, too.
    """

    cls: int
    images: frozenset[int]
    looked_at: frozenset[int] = frozenset()
    wrong: frozenset[int] = frozenset()
    looks: int = 0
    promised: bool = False

    def after(self, tiles: frozenset[int], wrong: frozenset[int]) -> GridBatch:
        """The batch after one more grid; tiles of other batches do not count."""
        inside = tiles & self.images
        return replace(
            self, looked_at=self.looked_at | inside, wrong=self.wrong | (wrong & inside), looks=self.looks + 1
        )

    def counts(self) -> Batch:
        """What a bound needs."""
        return Batch(len(self.images), len(self.looked_at), len(self.wrong), self.looks, self.promised)


@dataclass
class LabelState:
    """The labels of `size` images.

    Attributes:
        label: class numbers, of shape (size,); −1 where there is none.
        source: 0, PERSON or CONFIRMED, of shape (size,).
        status: 0, SKIPPED or FOREIGN, of shape (size,).
        audit: whether the image was drawn at random and judged without a suggestion, of shape (size,).
        refused: (image, class) pairs of which a person said: not this class.
        classes: by number, which is never used again.
        batches: of grids, by their number.
        version: grows with every action, those undone included.
    """

    size: int
    version: int = 0
    seconds: float = 0.0
    answers: int = 0  # single images answered
    classes: dict[int, LabelClass] = field(default_factory=dict)
    refused: dict[tuple[int, int], bool] = field(default_factory=dict)
    batches: dict[int, GridBatch] = field(default_factory=dict)
    clients: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.label = np.full(self.size, -1, np.int32)
        self.source = np.zeros(self.size, np.int8)
        self.status = np.zeros(self.size, np.int8)
        self.audit = np.zeros(self.size, bool)
        self._done: list[tuple[dict[str, Any], list[Change]]] = []
        self._undone: list[dict[str, Any]] = []
        self._restore: list[Change] = []
        self._next_class = 0

    @property
    def undo_depth(self) -> int:
        """How many actions can be undone."""
        return len(self._done)

    @property
    def redo_depth(self) -> int:
        """How many undone actions can be done again."""
        return len(self._undone)

    @property
    def undone(self) -> dict[str, Any] | None:
        """The action that was undone last and can be done again."""
        return self._undone[-1] if self._undone else None

    def open_classes(self) -> dict[int, LabelClass]:
        """The classes that were not merged into others."""
        return {number: item for number, item in self.classes.items() if item.into is None}

    def judged(self) -> np.ndarray:
        """Whether a person has said something of each image, of shape (size,)."""
        return (self.label >= 0) | (self.status > 0)

    # --- actions

    def check(self, action: Mapping[str, Any]) -> None:
        """Refuse an action that cannot be done, before anything is written; what is accepted does not fail later."""
        name = action.get("action")
        if name not in ACTIONS:
            raise UserError(f"action must be one of {', '.join(ACTIONS)}, got {str(name)[:50]!r}")
        getattr(self, f"_check_{name}")(action)

    def apply(self, action: dict[str, Any]) -> None:
        """Do an action that was checked."""
        self._restore = []
        name = action["action"]
        getattr(self, f"_do_{name}")(action)
        if name not in ("undo", "redo", "import"):  # a table is not taken back by a key too many
            self._done.append((action, self._restore))
            self._undone.clear()
        self.version += 1
        self.seconds += min(max(float(action.get("seconds") or 0), 0.0), LONGEST_ACTION)
        if action.get("client"):
            self.clients.add(str(action["client"]))

    def _put(self, table: Any, key: Any, value: Any) -> None:
        """Set an entry of an array or a dictionary, and remember what it was."""
        before = table.get(key, MISSING) if isinstance(table, dict) else table[key]
        before = before.copy() if isinstance(before, np.ndarray) else before
        self._restore.append((table, key, before))
        table[key] = value

    def _judge(self, image: int, *, label: int = -1, source: int = 0, status: int = 0, audit: bool = False) -> None:
        said = ((self.label, label), (self.source, source), (self.status, status), (self.audit, audit))
        for column, value in said:
            if column[image] != value:  # nobody undoes what stays
                self._put(column, image, value)

    def _count_answer(self, by: int = 1) -> None:
        self._put(vars(self), "answers", self.answers + by)

    # --- one function per action, after the one that checks it

    def _check_skip(self, action: Mapping[str, Any]) -> None:
        self.image(action.get("image"))

    _check_foreign = _check_unlabel = _check_skip

    def _check_label(self, action: Mapping[str, Any]) -> None:
        self.image(action.get("image"))
        self.open_class(action.get("class"))
        suggested = action.get("suggested")
        if suggested is not None and (type(suggested) is not int or suggested not in self.classes):
            raise UserError("suggested must be the number of a class, or null")

    def _do_label(self, action: Mapping[str, Any]) -> None:
        audit = bool(action.get("audit")) or bool(self.audit[action["image"]])
        self._judge(action["image"], label=action["class"], source=PERSON, audit=audit)
        self._count_answer()

    def _do_skip(self, action: Mapping[str, Any]) -> None:
        self._judge(action["image"], status=SKIPPED)
        self._count_answer()

    def _do_foreign(self, action: Mapping[str, Any]) -> None:
        self._judge(action["image"], status=FOREIGN)
        self._count_answer()

    def _do_unlabel(self, action: Mapping[str, Any]) -> None:
        self._judge(action["image"])

    def _check_new_class(self, action: Mapping[str, Any]) -> None:
        self._check_name(action.get("name"))
        self._check_free_key(action.get("key", ""))
        if len(self.classes) >= MOST_CLASSES:
            raise UserError(f"there can be at most {MOST_CLASSES} classes; merge some")

    def _do_new_class(self, action: dict[str, Any]) -> None:
        self._add_class(action, str(action["name"]).strip(), str(action.get("key") or ""))

    def _add_class(self, action: dict[str, Any], name: str, key: str = "") -> int:
        """Numbers are never used again, but an action that is done again gets the ones that it had."""
        number: int = action.setdefault("numbers", {}).setdefault(name, self._next_class)
        self._next_class = max(self._next_class, number + 1)
        self._put(self.classes, number, LabelClass(name, key))
        return number

    def _check_rename(self, action: Mapping[str, Any]) -> None:
        self._check_name(action.get("name"), besides=self.open_class(action.get("class")))

    def _do_rename(self, action: Mapping[str, Any]) -> None:
        number = action["class"]
        self._put(self.classes, number, replace(self.classes[number], name=str(action["name"]).strip()))

    def _check_key(self, action: Mapping[str, Any]) -> None:
        self._check_free_key(action.get("key", ""), besides=self.open_class(action.get("class")))

    def _do_key(self, action: Mapping[str, Any]) -> None:
        number = action["class"]
        self._put(self.classes, number, replace(self.classes[number], key=str(action.get("key") or "")))

    def _check_merge(self, action: Mapping[str, Any]) -> None:
        if self.open_class(action.get("class")) == self.open_class(action.get("into")):
            raise UserError("a class cannot be merged into itself; choose another one")

    def _do_merge(self, action: Mapping[str, Any]) -> None:
        number = action["class"]
        into = action["into"]
        self._put(self.label, np.flatnonzero(self.label == number), into)
        self._put(self.classes, number, replace(self.classes[number], into=into, key=""))
        for image, cls in [pair for pair in self.refused if pair[1] == into]:  # it may be of the merged class
            self._put(self.refused, (image, cls), False)

    def _check_grid(self, action: Mapping[str, Any]) -> None:
        self.open_class(action.get("class"))
        tiles = action.get("tiles")
        if not isinstance(tiles, list) or not all(isinstance(tile, Mapping) for tile in tiles) or not tiles:
            raise UserError("tiles must be a list of objects with id, right and class, and not empty")
        if len({self.image(tile.get("id")) for tile in tiles}) < len(tiles):
            raise UserError("tiles must name each image once")
        batch = self.batches.get(action["batch"]) if type(action.get("batch")) is int else None
        if batch is None and not action.get("members"):
            raise UserError("this grid is no longer known; load it again")
        if batch is not None and batch.cls != action["class"]:
            raise UserError("this grid belongs to another class; load it again")
        for tile in tiles:
            if not isinstance(tile.get("right"), bool):
                raise UserError("right must be true or false for every tile")
            if not tile["right"] and tile.get("class") is not None:
                self.open_class(tile["class"])

    def _do_grid(self, action: Mapping[str, Any]) -> None:
        """Confirm the tiles that are right and, if the bound allows it (`promised`), the rest of the batch."""
        cls = action["class"]
        tiles = action["tiles"]
        wrong = frozenset(tile["id"] for tile in tiles if not tile["right"])
        batch = self.batches.get(action["batch"]) or GridBatch(cls, frozenset(action["members"]))
        batch = batch.after(frozenset(tile["id"] for tile in tiles), wrong)
        self._put(self.batches, action["batch"], replace(batch, promised=bool(action.get("promised"))))
        for tile in tiles:
            if tile["right"]:
                self._judge(tile["id"], label=cls, source=CONFIRMED, audit=bool(self.audit[tile["id"]]))
                continue
            self._put(self.refused, (tile["id"], cls), True)
            if tile.get("class") is not None:
                self._judge(tile["id"], label=tile["class"], source=PERSON)
        if action.get("promised"):
            self._confirm_rest(batch)

    def _confirm_rest(self, batch: GridBatch) -> None:
        judged = self.judged()
        rest = [i for i in batch.images if not judged[i] and not self.refused.get((i, batch.cls))]
        rows = np.array(sorted(rest), np.int64)
        self._put(self.label, rows, batch.cls)
        self._put(self.source, rows, CONFIRMED)

    def _do_nothing(self, action: Mapping[str, Any]) -> None:
        """In place of an action on images that are gone, so that undoing counts right."""

    def _check_import(self, action: Mapping[str, Any]) -> None:
        raise UserError("labels are imported with --label_file")

    def _do_import(self, action: dict[str, Any]) -> None:
        """Labels of a table: [[image, class name], …]."""
        numbers = {item.name: number for number, item in self.open_classes().items()}
        for image, name in action["labels"]:
            if name not in numbers:
                numbers[name] = self._add_class(action, name)
            self._judge(image, label=numbers[name], source=PERSON)

    def _check_undo(self, action: Mapping[str, Any]) -> None:
        if not self._done:
            raise UserError("there is nothing to undo")

    def _do_undo(self, action: Mapping[str, Any]) -> None:
        before, restore = self._done.pop()
        for table, key, value in reversed(restore):
            if value is MISSING:
                del table[key]
            else:
                table[key] = value
        self._undone.append(before)

    def _check_redo(self, action: Mapping[str, Any]) -> None:
        if not self._undone:
            raise UserError("there is nothing to do again")

    def _do_redo(self, action: Mapping[str, Any]) -> None:
        again = self._undone.pop()
        getattr(self, f"_do_{again['action']}")(again)
        self._done.append((again, self._restore))

    # --- checks

    def image(self, value: Any) -> int:
        """The number of an image."""
        if type(value) is not int or not 0 <= value < self.size:
            raise UserError(f"image must be a number from 0 to {self.size - 1}, got {str(value)[:50]!r}")
        return value

    def open_class(self, value: Any) -> int:
        """The number of a class that was not merged."""
        if type(value) is not int or value not in self.classes or self.classes[value].into is not None:
            raise UserError(f"class must be the number of a class, got {str(value)[:50]!r}; reload the page")
        return value

    def _check_name(self, name: Any, besides: int | None = None) -> None:
        text = name.strip() if isinstance(name, str) else ""
        if not 0 < len(text) <= LONGEST_NAME or not text.isprintable():
            raise UserError(f"name must be 1 to {LONGEST_NAME} printable characters, got {str(name)[:50]!r}")
        if any(item.name == text for number, item in self.open_classes().items() if number != besides):
            raise UserError(f"there is a class {text!r} already; use it, or choose another name")

    def _check_free_key(self, key: Any, besides: int | None = None) -> None:
        if key in ("", None):
            return
        if not isinstance(key, str) or len(key) != 1 or not key.isalnum():
            raise UserError(f"key must be one letter or digit, or empty, got {str(key)[:50]!r}")
        if any(item.key == key for number, item in self.open_classes().items() if number != besides):
            raise UserError(f"the key {key} belongs to another class; choose another one")

"""Sharded banks: features of any number of images in files that any number of processes map into memory.

A folder holds shard-00000.safetensors, … and index.json, which lists their rows and checksums. Only one process writes
to it. A file appears under its name when it is complete, and counts once the index lists it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from safetensors.numpy import save

from ..augment.recipe import Augment
from ..augment.views import ImageViews
from ..data.sources.remote import Piece
from ..errors import UserError, check_integer
from ..utils.io import json_bytes, lock_file, read_json, reading, write_atomic
from ..utils.manifest import describe
from .bank import recipe_digest

INDEX = "index.json"
LOCK = ".lock"
FILE = re.compile(r"shard-\d{5,}\.safetensors")
FORMAT = 1
SAVE = 2.0  # seconds between two versions of the index while shards come in
SHARE = 20  # the index takes at most one part in so many of the time
MAPPED = 10_000  # files at a time
TYPES = {"F16": np.float16, "U8": np.uint8, "I64": np.int64}


@dataclass(frozen=True)
class ShardRecipe:
    """How the images of a sharded bank were embedded.

    Attributes:
        network: digest of the network, its weights, and the size and normalization of its images.
        model: name, weights and input_size of the network.
        shape: (height, width, channels) of the images.
        width: features per view.
        weak: weak views per image.
        strong: strong views per image.
        seed: of the views.
        augment: how they were made.
        flip: whether they were mirrored.
    """

    network: str
    model: dict[str, Any]
    shape: tuple[int, int, int]
    width: int
    weak: int = 0
    strong: int = 0
    seed: int = 0
    augment: Augment = "natural"
    flip: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The view in each slot of a row."""
        return ("plain", *["weak"] * self.weak, *["strong"] * self.strong)

    def differences(self, other: ShardRecipe) -> list[str]:
        """One phrase per option in which they differ. The name of the network matters less than its weights."""
        before, now = (json.loads(json_bytes(asdict(recipe))) for recipe in (self, other))
        changed = [key for key in now if key != "model" and before[key] != now[key]]
        return [f"{key} was {before[key]}, is {now[key]}" for key in sorted(changed, key="network".__eq__)]


def network_digest(encoder: Any, views: ImageViews, shape: tuple[int, ...]) -> str:
    """What tells whether features are those of a network."""
    return recipe_digest(["shards", FORMAT, tuple(shape)], encoder, views)


class Shard(NamedTuple):
    """One file of a sharded bank, as the index describes it."""

    file: str
    start: int  # number of its first row
    rows: int
    bytes: int
    sha256: str
    source: str  # key of the images
    url: str  # where they were
    skipped: int  # images that could not be read


class Shards:
    """A sharded bank that `embed_shards` has finished.

    A shard is compared with its checksum when it is first read.

    Args:
        folder: what was given to `embed_shards`, or to `vcc-infuse embed --shards`.

    >>> shards = Shards("bank")  # doctest: +SKIP
    >>> len(shards), shards.names[0], shards.features(0).shape  # doctest: +SKIP
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        index = read_index(self.folder)
        if index is None:
            raise UserError(f"{folder} has no {INDEX}; give the folder that `vcc-infuse embed --shards` has written")
        if not index.complete:
            raise UserError(f"{folder} is not complete; run the command that embeds it again")
        self.recipe = index.recipe
        self.parts = index.shards
        self._starts = [part.start for part in self.parts]
        self._checked: set[int] = set()
        self._mapped: dict[int, dict[str, np.ndarray]] = {}

    def __len__(self) -> int:
        return self.parts[-1].start + self.parts[-1].rows

    @property
    def names(self) -> Sequence[str]:
        """Names of all rows; one is read when it is asked for."""
        return _Names(self)

    def features(self, number: int) -> np.ndarray:
        """The rows of one shard, `(rows, views, features)`, mapped into memory."""
        return self._tensors(number)["features"]

    def blocks(self, size: int = 4096) -> Iterator[tuple[int, np.ndarray]]:
        """All rows in their order, at most `size` at a time: the number of the first, and a copy of them."""
        for number, part in enumerate(self.parts):
            for first in range(0, part.rows, size):
                yield part.start + first, np.array(self.features(number)[first : first + size])

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Some rows, `(numbers, views, features)`; ascending numbers are read fastest."""
        x = np.empty((len(numbers), len(self.recipe.names), self.recipe.width), np.float16)
        owner = np.searchsorted(self._starts, numbers, "right") - 1
        for number in np.unique(owner).tolist():
            mine = owner == number
            x[mine] = self.features(number)[numbers[mine] - self.parts[number].start]
        return x

    def sample(self, count: int | None, seed: int = 0) -> np.ndarray:
        """Ascending numbers of `count` rows drawn at random; of all rows if there are no more, or none is given."""
        if count is None or check_integer("sample", count) >= len(self):
            return np.arange(len(self))
        return np.sort(np.random.default_rng(seed).choice(len(self), count, replace=False))

    def name(self, row: int) -> str:
        """The name of one row."""
        number = bisect_right(self._starts, row) - 1
        tensors = self._tensors(number)
        place = row - self.parts[number].start
        first = int(tensors["ends"][place - 1]) if place else 0
        return bytes(tensors["names"][first : int(tensors["ends"][place])]).decode("utf-8", "surrogateescape")

    def _tensors(self, number: int) -> dict[str, np.ndarray]:
        if number not in self._mapped:
            part = self.parts[number]
            if number not in self._checked and not intact(self.folder, part):
                raise UserError(f"{self.folder / part.file} is not as it was written; run `vcc-infuse embed` again")
            self._checked.add(number)
            if len(self._mapped) == MAPPED:
                self._mapped.pop(next(iter(self._mapped)))
            self._mapped[number] = _map(self.folder / part.file)
        return self._mapped[number]


class _Names(Sequence[str]):
    """Names of a sharded bank, without all of them in memory."""

    def __init__(self, shards: Shards) -> None:
        self.shards = shards

    def __len__(self) -> int:
        return len(self.shards)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self.shards.name(place) for place in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        return self.shards.name(row % len(self))


def intact(folder: Path, part: Shard) -> bool:
    """Whether a file is what the index says."""
    path = folder / part.file
    if not path.is_file() or path.stat().st_size != part.bytes:
        return False
    return bool(describe(path)["sha256"] == part.sha256)


def _map(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file in one mapping, of which a process may have some 65,000; safetensors would copy them."""
    with reading(path):
        raw = np.memmap(path, np.uint8, "r")
        begin = 8 + int.from_bytes(raw[:8].tobytes(), "little")
        header = json.loads(raw[8:begin].tobytes())
        tensors = {}
        for name in ("features", "ends", "names"):
            first, last = (begin + offset for offset in header[name]["data_offsets"])
            kind = TYPES[header[name]["dtype"]]
            tensors[name] = raw[first:last].view(kind).reshape(header[name]["shape"])
        return tensors


# --- the index


class Index(NamedTuple):
    """The content of index.json."""

    recipe: ShardRecipe
    complete: bool
    shards: tuple[Shard, ...]
    unused: tuple[Shard, ...]  # of images that are no longer part of the data


def read_index(folder: Path) -> Index | None:
    """The index of a folder; None if there is none."""
    with reading(folder / INDEX, "run `vcc-infuse embed` with another --shards"):
        stored = read_json(folder / INDEX)
        if stored is None:
            return None
        if stored["format"] != FORMAT:
            raise UserError(f"{folder / INDEX} is of another version ({stored['format']}); embed the images again")
        if stored.pop("sha256") != _seal(stored):
            raise ValueError("its checksum is another one")
        recipe = ShardRecipe(**{**stored["recipe"], "shape": tuple(stored["recipe"]["shape"])})
        shards, unused = (tuple(Shard(**part) for part in stored[key]) for key in ("shards", "unused"))
        if any(not FILE.fullmatch(part.file) for part in (*shards, *unused)):
            raise ValueError("a shard has a name that none can have")
        return Index(recipe, bool(stored["complete"]), shards, unused)


def _seal(index: dict[str, Any]) -> str:
    """A checksum of the index: a digit that has become another one is still JSON."""
    return hashlib.sha256(json_bytes(index)).hexdigest()


class ShardWriter:
    """Adds shards to a folder; those that are there already stay, with their numbers.

    Args:
        folder: made if it does not exist.
        recipe: how the images are embedded; shards of another recipe are refused.
    """

    def __init__(self, folder: Path, recipe: ShardRecipe) -> None:
        self.folder = folder
        self.recipe = recipe
        self.shards: dict[int, Shard] = {}  # by the number in the name of the file
        self._due = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        if (before := read_index(folder)) is not None:
            if changes := before.recipe.differences(recipe):
                raise UserError(f"{folder} was embedded otherwise ({changes[0]}); give another folder")
            self.shards = {int(part.file[6:-12]): part for part in (*before.shards, *before.unused)}

    def missing(self, pieces: Sequence[Piece]) -> list[tuple[int, Piece]]:
        """What is to be embedded, with its number: pieces without a shard, and those whose shard is damaged."""
        for number, part in list(self.shards.items()):
            if not intact(self.folder, part):
                print(f"{self.folder / part.file} is damaged or gone, and embedded again", file=sys.stderr)
                del self.shards[number]
        there = {part.source for part in self.shards.values()}
        free = (number for number in range(len(self.shards) + len(pieces)) if number not in self.shards)
        return [(number, piece) for piece in pieces if piece.key not in there for number in [next(free)]]

    def add(self, number: int, piece: Piece, names: Sequence[str], features: np.ndarray, skipped: int) -> None:
        """Write the shard of a piece."""
        texts = [name.encode("utf-8", "surrogateescape") for name in names]
        ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
        joined = np.frombuffer(b"".join(texts), np.uint8)
        content = save({"features": np.ascontiguousarray(features), "ends": ends, "names": joined})
        file = f"shard-{number:05d}.safetensors"
        write_atomic(self.folder / file, lambda temporary: temporary.write_bytes(content))
        digest = hashlib.sha256(content).hexdigest()
        self.shards[number] = Shard(file, 0, len(texts), len(content), digest, piece.key, piece.url, skipped)
        if time.monotonic() >= self._due:
            self.save()

    def save(self, pieces: Sequence[Piece] | None = None) -> None:
        """Write the index; the final one, if the pieces are given that it is to list, in the order of their numbers."""
        began = time.monotonic()
        wanted = None if pieces is None else {piece.key for piece in pieces}
        listed: dict[str, list[dict[str, Any]]] = {"shards": [], "unused": []}
        start = 0
        for number in sorted(self.shards):
            used = wanted is None or self.shards[number].source in wanted
            listed["shards" if used else "unused"].append(self.shards[number]._replace(start=start)._asdict())
            start += self.shards[number].rows if used else 0
        about = {"format": FORMAT, "complete": wanted is not None, "rows": start, "recipe": asdict(self.recipe)}
        index = {**about, **listed}
        content = json_bytes({**index, "sha256": _seal(index)})
        write_atomic(self.folder / INDEX, lambda temporary: temporary.write_bytes(content))
        self._due = time.monotonic() + max(SAVE, SHARE * (time.monotonic() - began))


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Refuse a folder that another process is writing to."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK, "a") as handle:
        try:
            lock_file(handle.fileno())
        except BlockingIOError as fault:
            raise UserError(f"{folder} is being written by another process; wait until it ends") from fault
        yield

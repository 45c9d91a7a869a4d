"""The best rows of a stream, all together or class by class: memory does not grow with the stream."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np

from .infuse.harmless import LOTTERY, lots
from .ranking import Quota, Scored, joined, known, shared

SLACK = 65_536


class Top:
    """The best `keep` rows so far. It holds up to `slack` or a quarter more, so that it need not sort at each chunk."""

    def __init__(self, keep: int, slack: int = SLACK) -> None:
        self.keep, self.room = keep, keep + max(keep // 4, slack)
        self.held: list[Scored] = []
        self.count = 0
        self.worst: Scored | None = None

    def add(self, chunk: Scored) -> None:
        """Look at more rows."""
        chunk = chunk if self.worst is None else chunk.take(_may_enter(chunk, self.worst))
        self.held.append(chunk)
        self.count += len(chunk.ids)
        if self.count > self.room:
            self.held = [self.rows()]
            self.count = len(self.held[0].ids)
            self.worst = self.held[0].take(np.array([-1])) if self.keep else None

    def rows(self) -> Scored:
        """The best of all that was seen, best first."""
        return joined(self.held).take(np.arange(min(self.keep, self.count)))


def top_stream(chunks: Iterable[Scored], keep: int, slack: int = SLACK) -> Scored:
    """The best `keep` rows of a stream, best first."""
    top = Top(keep, slack)
    for chunk in chunks:
        top.add(chunk)
    if not top.held:
        raise ValueError("an empty stream has no best rows")
    return top.rows()


def best_stream(chunks: Iterable[Scored], budget: int, quota: Quota, classes: int, slack: int = SLACK) -> Scored:
    """What `quota.best` keeps of the whole table, best first; `chunks` is gone through twice if there is a quota."""
    if quota == "none":
        return top_stream(chunks, budget, slack)
    counts = np.zeros(classes, dtype=np.int64)
    for chunk in chunks:
        counts += np.bincount(chunk.labels[chunk.selected], minlength=classes)
    places = shared(quota, counts, budget)
    # The last one is for what the algorithm does not select: it fills the places that are left.
    tops = [Top(int(places_), slack // classes) for places_ in (*places, budget - places.sum())]
    for chunk in chunks:
        part = np.where(chunk.selected, chunk.labels, classes)
        for number in np.unique(part):
            tops[number].add(chunk.take(np.flatnonzero(part == number)))
    return joined([top.rows() for top in tops if top.held])


class Lots:
    """A stream with lots for scores, the same lots whenever it is gone through."""

    def __init__(self, chunks: Iterable[Scored], seed: int) -> None:
        self.chunks, self.seed = chunks, seed

    def __iter__(self) -> Iterator[Scored]:
        for number, chunk in enumerate(self.chunks):
            yield lots(chunk, np.random.default_rng([self.seed, LOTTERY, number]))


def _may_enter(chunk: Scored, worst: Scored) -> np.ndarray:
    """Rows not plainly below the worst row kept so far: most of a long stream is turned away by one comparison."""
    if not worst.selected[0]:
        return np.flatnonzero(chunk.selected | (chunk.confidence >= worst.confidence[0]))
    return np.flatnonzero(chunk.selected & (known(chunk.scores) >= known(worst.scores)[0]))


ROW = np.dtype([("id", "i8"), ("score", "f4"), ("selected", "?"), ("confidence", "f8"), ("label", "i4")])


def scratch(folder: Path | None) -> IO[bytes]:
    """A file without a name that is gone when closed, beside the output, where there must be room anyway."""
    return tempfile.TemporaryFile(dir=folder)


class DiskTable:
    """Rows that are read back in blocks, as often as needed.

    Ranking them as they come would hold small arrays between the large ones of the network, which breaks up the heap.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.count, self.selected = file, 0, 0

    def add(self, chunk: Scored) -> None:
        """Write down some rows."""
        rows = np.empty(len(chunk.ids), ROW)
        for name, column in zip(ROW.names or (), chunk, strict=True):
            rows[name] = column
        self.file.write(rows.tobytes())
        self.count, self.selected = self.count + len(rows), self.selected + int(chunk.selected.sum())

    def __iter__(self) -> Iterator[Scored]:
        self.file.seek(0)
        while data := self.file.read(65_536 * ROW.itemsize):
            rows = np.frombuffer(data, ROW)
            yield Scored(*(rows[name] for name in ROW.names or ()))


class Names:
    """A growing list of names in a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self._ends = file, array("q", [0])

    def extend(self, names: Iterable[str]) -> None:
        """Write down some names."""
        self.file.seek(self._ends[-1])
        for name in names:
            data = name.encode("utf-8", "surrogateescape")
            self.file.write(data)
            self._ends.append(self._ends[-1] + len(data))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, place: int) -> str:
        if not 0 <= place < len(self):
            raise IndexError(place)
        self.file.seek(self._ends[place])
        return self.file.read(self._ends[place + 1] - self._ends[place]).decode("utf-8", "surrogateescape")

"""Ranking a pool that does not fit in memory: rows and names go to disk, and the best rows are found in a stream."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np

from .infuse.robust import HARMLESS_DRAW, random_scores
from .ranking import Quota, Scored, merge, nan_to_worst, places_per_class

ROW = np.dtype([("id", "i8"), ("score", "f4"), ("selected", "?"), ("confidence", "f8"), ("label", "i4")])
SLACK = 65_536


def temp_file(folder: Path | None) -> IO[bytes]:
    """An unnamed file that is deleted when closed, in the folder of the output, where there must be space anyway."""
    return tempfile.TemporaryFile(dir=folder)


class DiskTable:
    """Rows in a file. Iterating yields them in blocks, any number of times.

    Ranking rows as they arrive would keep small arrays between the large ones of the network, which fragments memory.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.count, self.selected = file, 0, 0

    def add(self, chunk: Scored) -> None:
        """Append rows."""
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


class DiskNames:
    """A growing list of file names, stored in a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self._ends = file, array("q", [0])

    def extend(self, names: Iterable[str]) -> None:
        """Append names."""
        self.file.seek(self._ends[-1])
        for name in names:
            data = name.encode("utf-8", "surrogateescape")
            self.file.write(data)
            self._ends.append(self._ends[-1] + len(data))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(index)
        self.file.seek(self._ends[index])
        return self.file.read(self._ends[index + 1] - self._ends[index]).decode("utf-8", "surrogateescape")


class RandomScores:
    """A stream with random scores for the harmless rows, the same scores in every iteration."""

    def __init__(self, chunks: Iterable[Scored], seed: int) -> None:
        self.chunks, self.seed = chunks, seed

    def __iter__(self) -> Iterator[Scored]:
        for number, chunk in enumerate(self.chunks):
            yield random_scores(chunk, np.random.default_rng([self.seed, HARMLESS_DRAW, number]))


class TopRows:
    """The best `keep` rows so far. It buffers `slack` or a quarter more rows, so that it need not sort every chunk."""

    def __init__(self, keep: int, slack: int = SLACK) -> None:
        self.keep, self.capacity = keep, keep + max(keep // 4, slack)
        self.buffer: list[Scored] = []
        self.count = 0
        self.worst: Scored | None = None

    def add(self, chunk: Scored) -> None:
        """Take in more rows."""
        chunk = chunk if self.worst is None else chunk.take(_candidates(chunk, self.worst))
        self.buffer.append(chunk)
        self.count += len(chunk.ids)
        if self.count > self.capacity:
            self.buffer = [self.rows()]
            self.count = len(self.buffer[0].ids)
            self.worst = self.buffer[0].take(np.array([-1])) if self.keep else None

    def rows(self) -> Scored:
        """The best of all rows added, best first."""
        return merge(self.buffer).take(np.arange(min(self.keep, self.count)))


def top_of_stream(chunks: Iterable[Scored], keep: int, slack: int = SLACK) -> Scored:
    """The best `keep` rows of a stream, best first."""
    top = TopRows(keep, slack)
    for chunk in chunks:
        top.add(chunk)
    if not top.buffer:
        raise ValueError("an empty stream has no best rows")
    return top.rows()


def best_of_stream(chunks: Iterable[Scored], budget: int, quota: Quota, classes: int, slack: int = SLACK) -> Scored:
    """The rows that `ranking.best` keeps of the whole table, best first; a quota needs two passes over `chunks`."""
    if quota == "none":
        return top_of_stream(chunks, budget, slack)
    counts = np.zeros(classes, dtype=np.int64)
    for chunk in chunks:
        counts += np.bincount(chunk.labels[chunk.selected], minlength=classes)
    places = places_per_class(quota, counts, budget)
    # One list per class, and a last one for unselected rows, which fill the remaining places.
    tops = [TopRows(int(count), slack // classes) for count in (*places, budget - places.sum())]
    for chunk in chunks:
        part = np.where(chunk.selected, chunk.labels, classes)
        for number in np.unique(part):
            tops[number].add(chunk.take(np.flatnonzero(part == number)))
    return merge([top.rows() for top in tops if top.buffer])


def _candidates(chunk: Scored, worst: Scored) -> np.ndarray:
    """Rows that may rank above the worst row kept so far: one comparison rejects most of a long stream."""
    if not worst.selected[0]:
        return np.flatnonzero(chunk.selected | (chunk.confidence >= worst.confidence[0]))
    return np.flatnonzero(chunk.selected & (nan_to_worst(chunk.scores) >= nan_to_worst(worst.scores)[0]))

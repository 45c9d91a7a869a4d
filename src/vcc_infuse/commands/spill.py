"""Spill: scored rows on disk, so that ranking a pool takes no more memory than what is kept of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from ..selectors.ranking import Scored

ROW = np.dtype([("id", "i8"), ("score", "f4"), ("selected", "?"), ("confidence", "f8"), ("label", "i4")])


def scratch(folder: Path | None) -> IO[bytes]:
    """A file without a name that is gone when closed, beside the output, where there must be room anyway."""
    return tempfile.TemporaryFile(dir=folder)


class Spill:
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

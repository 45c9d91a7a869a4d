"""Many small things in one file: thumbnails, or features, each under a key of 16 bytes, only ever added to.

Thousands of small files would be slow to write and to copy. A process that is killed leaves at most one record that is
cut short, which the next one overwrites.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

HEAD = struct.Struct("<16sI")


class Place(NamedTuple):
    """Where the content of a record is in the file."""

    offset: int
    length: int


class Records:
    """The writer of such a file; `places` are the records by their keys."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.places = dict(scan(self._file))
        self._end = max((sum(place) for place in self.places.values()), default=0)
        os.ftruncate(self._file, self._end)

    def add(self, key: bytes, content: bytes) -> Place:
        """Add a record; an empty one says that there is nothing to store under the key."""
        place = Place(self._end + HEAD.size, len(content))
        os.pwrite(self._file, HEAD.pack(key, len(content)) + content, self._end)
        self.places[key] = place
        self._end = sum(place)
        return place

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def scan(file: int, start: int = 0) -> Iterator[tuple[bytes, Place]]:
    """The complete records of an open file from a position on."""
    end = os.fstat(file).st_size
    while start + HEAD.size <= end:
        key, length = HEAD.unpack(os.pread(file, HEAD.size, start))
        place = Place(start + HEAD.size, length)
        start = sum(place)
        if start > end:
            return
        yield key, place


class Reader:
    """Reads records that another process writes, by places that it was told."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._places: dict[int, Place] = {}

    def tell(self, places: Iterable[tuple[int, Place]]) -> None:
        """Where the records of some images are."""
        self._places.update(places)

    def get(self, image: int) -> bytes | None:
        """The record of an image; None if it is not written yet."""
        place = self._places.get(image)
        if place is None or not place.length:
            return None
        if self._file is None:
            self._file = os.open(self._path, os.O_RDONLY)
        return os.pread(self._file, place.length, place.offset)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

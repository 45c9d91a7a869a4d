"""Many small things in one file: thumbnails, or features, each under a key of 16 bytes, only ever added to.

Thousands of small files would be slow to write and to copy. A process that is killed leaves at most one record that is
cut short, which the next one overwrites. Records that are not as they were written count as missing.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

from ..utils.io import lock_file

HEAD = struct.Struct("<16sIII")  # key, length, checksum of the content, checksum of these three


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
        lock_file(self._file, wait=True)  # the process of a server that was killed may still write for a moment
        self.places: dict[bytes, Place] = {}
        self._end = 0
        for key, place, content in scan(self._file):
            self._end = sum(place)
            if content is not None:
                self.places[key] = place
        os.ftruncate(self._file, self._end)

    def add(self, key: bytes, content: bytes) -> Place:
        """Add a record; an empty one says that there is nothing to store under the key."""
        place = Place(self._end + HEAD.size, len(content))
        os.pwrite(self._file, _head(key, content) + content, self._end)
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


def _head(key: bytes, content: bytes) -> bytes:
    told = HEAD.pack(key, len(content), zlib.crc32(content), 0)[:-4]
    return told + zlib.crc32(told).to_bytes(4, "little")


def scan(file: int, start: int = 0) -> Iterator[tuple[bytes, Place, bytes | None]]:
    """The complete records of an open file from a position on; no content where it is damaged.

    Where the head of a record is damaged, nobody knows where the next one begins, and this ends.
    """
    end = os.fstat(file).st_size
    while start + HEAD.size <= end:
        head = os.pread(file, HEAD.size, start)
        key, length, check, of_head = HEAD.unpack(head)
        place = Place(start + HEAD.size, length)
        start = sum(place)
        if start > end or zlib.crc32(head[:-4]) != of_head:
            return
        content = os.pread(file, length, place.offset)
        yield key, place, content if zlib.crc32(content) == check else None


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

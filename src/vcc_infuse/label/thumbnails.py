"""Many small things in one file: thumbnails, or features, each under a key of 16 bytes, only ever added to.

Thousands of small files would be slow to write and to copy. A process that is killed leaves at most one record that is
cut short, which the next one overwrites. Records that are not as they were written count as missing.

Keys and places are kept in arrays: Python's dictionaries take ten times the memory, which a million photos would feel.
"""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from ..utils.io import lock_file

HEAD = struct.Struct("<16sIII")  # key, length, checksum of the content, checksum of these three
AT_ONCE = 2**16  # keys that are looked for together
KEY = "S16"  # NumPy leaves out zeros at the end of what it hands out; writing adds them again


class Place(NamedTuple):
    """Where the content of a record is in the file."""

    offset: int
    length: int


class Places(NamedTuple):
    """Where the records of some images are; equal lengths."""

    images: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, images: Sequence[int], places: Sequence[Place]) -> Self:
        """Those of a few images."""
        columns = np.array(places, np.int64).reshape(-1, 2)
        return cls(np.array(images, np.int64), columns[:, 0], columns[:, 1].astype(np.uint32))


class KeyIndex:
    """Finds keys in an array of them, by eight bytes per key beside it."""

    def __init__(self, keys: np.ndarray) -> None:
        self._keys = keys
        self._order = np.argsort(keys, kind="stable")

    def find(self, wanted: np.ndarray) -> np.ndarray:
        """The place of each key, of equal ones the last; −1 where it is not there."""
        found = np.full(len(wanted), -1)
        for start in range(0, len(wanted) if len(self._keys) else 0, AT_ONCE):
            part = wanted[start : start + AT_ONCE]
            rising = np.argsort(part)  # so that one search begins where the last one ended
            near = self._order[np.searchsorted(self._keys, part[rising], "right", self._order) - 1]
            found[start + rising] = np.where(self._keys[near] == part[rising], near, -1)
        return found


class Records:
    """The writer of such a file.

    Attributes:
        keys: of the records that were in the file when it was opened.
        offsets: where their contents begin.
        lengths: of their contents.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        lock_file(self._file, wait=True)  # the process of a server that was killed may still write for a moment
        self._end = 0
        self.keys, self.offsets, self.lengths = self._read()
        os.ftruncate(self._file, self._end)

    def _read(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        keys = bytearray()
        offsets = array("q")
        lengths = array("I")
        for key, place, content in scan(self._file):
            self._end = sum(place)
            if content is not None:
                keys += key
                offsets.append(place.offset)
                lengths.append(place.length)
        return np.frombuffer(keys, KEY), np.frombuffer(offsets, np.int64), np.frombuffer(lengths, np.uint32)

    def add(self, key: bytes, content: bytes) -> Place:
        """Add a record; an empty one says that there is nothing to store under the key."""
        place = Place(self._end + HEAD.size, len(content))
        os.pwrite(self._file, _head(key, content) + content, self._end)
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
    """Reads records of so many images, which another process writes, by places that it was told."""

    def __init__(self, path: Path, images: int) -> None:
        self._path = path
        self._file: int | None = None
        self._offsets = np.zeros(images, np.int64)
        self._lengths = np.zeros(images, np.uint32)

    def tell(self, places: Places) -> None:
        """Where the records of some images are."""
        self._offsets[places.images] = places.offsets
        self._lengths[places.images] = places.lengths

    def get(self, image: int) -> bytes | None:
        """The record of an image; None if it is empty, or not written yet."""
        length = int(self._lengths[image])
        if not length:
            return None
        if self._file is None:
            self._file = os.open(self._path, os.O_RDONLY)
        return os.pread(self._file, length, int(self._offsets[image]))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

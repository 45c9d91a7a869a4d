"""Images of a folder or zip in a stream: a chunk of pixels at a time, a bar on a terminal, unreadable ones counted."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm.auto import tqdm

from ..errors import UserError
from .images.decode import decode
from .images.file_store import Store, open_store

SHOWN = 5


@contextmanager
def open_images(path: str) -> Iterator[Store]:
    """A folder, zip or picture that holds at least one image."""
    with open_store(Path(path)) as store:
        if next(store.images(), None) is None:
            raise UserError(f"{path} holds no images")
        yield store


class Broken:
    """How many images could not be read, and the first few: an archive of rubbish must not fill the memory."""

    def __init__(self) -> None:
        self.count, self.first = 0, list[str]()

    def add(self, names: Sequence[str], reasons: Mapping[int, str]) -> None:
        """Note the rows of a chunk that have a reason."""
        self.count += len(reasons)
        told = (f"skipped {names[row]}: {reason}" for row, reason in reasons.items())
        self.first += islice(told, SHOWN - len(self.first))

    def tell(self) -> None:
        """Which images were left out, and why."""
        lines = [*self.first, f"… and {self.count - SHOWN} more broken images"]
        for line in lines[: min(self.count, SHOWN + 1)]:
            print(line, file=sys.stderr)


class Decoded(NamedTuple):
    """A chunk of images: the place of the first in the store, all names, rows that could be read, their pixels."""

    start: int
    names: tuple[str, ...]
    rows: np.ndarray
    x: np.ndarray


def decoded(store: Store, shape: tuple[int, ...], broken: Broken, size: int) -> Iterator[Decoded]:
    """The images of a store, a chunk at a time; unreadable ones go to `broken`."""
    images, start = store.images(), 0
    # How many there are is not known: a folder is read as it is walked. So the bar has a rate but no end.
    with tqdm(unit="image", disable=not sys.stderr.isatty(), dynamic_ncols=True) as bar:
        while names := tuple(islice(images, size)):
            x = np.zeros((len(names), *shape), np.uint8)
            bad = decode(store, names, x)
            broken.add(names, bad)
            good = np.array([row for row in range(len(names)) if row not in bad], dtype=np.int64)
            yield Decoded(start, names, good, x[good])
            start += len(names)
            bar.update(len(names))

"""Stream the images of a folder or zip in chunks, with a progress bar on a terminal; unreadable files are counted."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm.auto import tqdm

from ...errors import UserError
from .decode import decode
from .high_bit_depth import Ranges
from .store import Limits, Store, open_store

SHOWN = 5  # messages kept


@contextmanager
def open_images(path: str, limits: Limits | None = None) -> Iterator[Store]:
    """Open a folder, zip or image file that holds at least one image."""
    with open_store(Path(path), limits) as store:
        if next(store.images(), None) is None:
            raise UserError(f"{path} holds no images; give another folder, zip or image")
        yield store


class SkippedImages:
    """The number of unreadable images, and the first few messages: a huge damaged archive must not fill the memory."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def add(self, names: Sequence[str], reasons: Mapping[int, str]) -> None:
        """Add the rows of a chunk that have a reason."""
        self.count += len(reasons)
        messages = (f"skipped {names[row]}: {reason}" for row, reason in reasons.items())
        self.first += islice(messages, SHOWN - len(self.first))

    def report(self) -> None:
        """Print which images were skipped, and why, to stderr."""
        lines = [*self.first, f"… and {self.count - SHOWN} more unreadable images"]
        for line in lines[: min(self.count, SHOWN + 1)]:
            print(line, file=sys.stderr)


class ImageChunk(NamedTuple):
    """Position of the first image in the store, all names, the rows that could be read, and their pixels."""

    start: int
    names: tuple[str, ...]
    rows: np.ndarray
    x: np.ndarray


def image_chunks(
    store: Store, shape: tuple[int, ...], skipped: SkippedImages, size: int, ranges: Ranges = ()
) -> Iterator[ImageChunk]:
    """The images of a store, `size` at a time; unreadable ones are added to `skipped`."""
    images = store.images()
    start = 0
    # A folder is read while it is walked, so the total is unknown: the bar shows a rate but no end.
    with tqdm(unit="image", disable=not sys.stderr.isatty(), dynamic_ncols=True) as bar:
        while names := tuple(islice(images, size)):
            x = np.zeros((len(names), *shape), np.uint8)
            bad = decode(store, names, x, ranges=ranges)
            skipped.add(names, bad)
            good = np.array([row for row in range(len(names)) if row not in bad], dtype=np.int64)
            yield ImageChunk(start, names, good, x[good])
            start += len(names)
            bar.update(len(names))

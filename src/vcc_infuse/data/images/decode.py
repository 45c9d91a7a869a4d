"""Decode images in parallel: first all headers, then the pixels straight into the final array."""

from __future__ import annotations

import io
import os
import struct
import threading
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import Image, UnidentifiedImageError

from ...errors import OptionError
from ...utils.progress import Progress
from ..sources.folder_layout import HEIF
from .convert import Size, fit, height_width, is_gray, upright_size
from .high_bit_depth import SAMPLED_IMAGES, Deep, Ranges, decoded_bytes, find_ranges, is_deep, open_image, values
from .store import Store

T = TypeVar("T")
CHUNK = 64
LARGE = 128 * 128  # pixels
HUGE = 32 * 2**20  # bytes
# What Pillow and zipfile raise on damaged files.
BROKEN = (
    OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError,
    NotImplementedError, struct.error, zlib.error, zipfile.BadZipFile, Image.DecompressionBombError,
)  # fmt: skip


class Header(NamedTuple):
    """Size and color of an image; `reason` is set if the header cannot be read.

    `channels` is their number if they are neither gray nor RGB, else 0; `deep` images may have more than 8 bits.
    """

    size: tuple[int, int] = (0, 0)
    gray: bool = False
    reason: str = ""
    channels: int = 0
    deep: bool = False

    @classmethod
    def of(cls, image: Image.Image | Deep) -> Header:
        """The header of an opened image."""
        channels = image.channels if isinstance(image, Deep) and image.channels not in (1, 3) else 0
        return cls(upright_size(image), is_gray(image), "", channels, is_deep(image))


def read_headers(store: Store, names: Sequence[str], progress: bool = False) -> list[Header]:
    """The header of every image, in order."""

    def read(row: int) -> Header:
        try:
            with store.open(names[row]) as file:
                return Header.of(open_image(file, store.limits))
        except BROKEN as error:
            return Header(reason=_reason(error, names[row]))

    return run(read, len(names), "reading headers", progress)


def common_shape(headers: Iterable[Header], size: Size, mode: str) -> tuple[int, int, int]:
    """The common (H, W, C) of all images; mixed sizes need `size`."""
    sizes = Counter(h.size for h in headers if not h.reason)
    if size is None and len(sizes) > 1:
        shown = ", ".join(f"{w}×{h} ({n} files)" for (h, w), n in sizes.most_common(3))
        more = f" and {len(sizes) - 3} more sizes" if len(sizes) > 3 else ""
        reason = f"must be set, because the images have different sizes: {shown}{more}"
        raise OptionError("size", None, reason, "160 or 224 suit photographs; vcc_infuse.train resizes by itself")
    several = Counter(h.channels for h in headers if not h.reason)
    several.pop(0, None)
    gray = mode == "gray" or (mode == "auto" and all(h.gray for h in headers if not h.reason))
    channels = several.most_common(1)[0][0] if several and mode == "auto" else 1 if gray else 3
    return (*(height_width(size) or next(iter(sizes))), channels)


def ranges_of(store: Store, names: Sequence[str], headers: Sequence[Header], intensity: str) -> Ranges:
    """Which values of the deep images become 0 and 255."""
    deep = [name for name, header in zip(names, headers, strict=True) if header.deep]
    step = max(1, len(deep) // SAMPLED_IMAGES) if intensity == "percentile" else 1
    return find_ranges(_read_values(store, deep[::step]), intensity) if deep else ()


def _read_values(store: Store, names: Iterable[str]) -> Iterator[np.ndarray]:
    for name in names:
        with suppress(*BROKEN), store.open(name) as file:  # a broken file is noticed when it is decoded
            yield values(open_image(io.BytesIO(file.read()), store.limits))


def decode(
    store: Store, names: Sequence[str], out: np.ndarray, threads: int = 1, progress: bool = False, ranges: Ranges = ()
) -> dict[int, str]:
    """Fill row i of `out` with image i; returns the reason for each row that could not be decoded."""

    large = threading.RLock()

    def in_turn(size: int) -> AbstractContextManager[object]:
        """Large images are decoded one after another, because each may need a good part of the memory."""
        return large if size > HUGE else nullcontext()

    def read(row: int) -> str:
        try:
            with in_turn(store.size(names[row])), store.open(names[row]) as file:
                image = open_image(io.BytesIO(file.read()), store.limits)
                with in_turn(decoded_bytes(image)):
                    pixels = fit(image, out.shape[1:], ranges)
        except BROKEN as error:
            return _reason(error, names[row])
        out[row] = pixels
        return ""

    reasons = run(read, len(names), "decoding", progress, threads)
    return {row: reason for row, reason in enumerate(reasons) if reason}


def refit(x: np.ndarray, out: np.ndarray) -> None:
    """Copy the uint8 images `x` into `out`, converted to its size and number of channels."""
    if x.shape == out.shape:
        for i in range(0, len(x), 4096):
            out[i : i + 4096] = x[i : i + 4096]
        return

    def copy(row: int) -> None:
        out[row] = fit(as_image(x[row]), out.shape[1:])

    run(copy, len(x), "resizing", False, threads_for(x.shape[1] * x.shape[2]))


def as_image(x: np.ndarray) -> Image.Image | Deep:
    """A uint8 H×W×C array as an image."""
    if x.shape[2] not in (1, 3):
        return Deep((x.shape[0], x.shape[1]), x.shape[2], False, lambda: x)
    return Image.fromarray(np.ascontiguousarray(x[..., 0] if x.shape[2] == 1 else x))


def threads_for(pixels: float) -> int:
    """One for small images, where Python's lock makes two slower than one; else one per core."""
    return 1 if pixels < LARGE else os.cpu_count() or 1


def run(work: Callable[[int], T], n: int, title: str, progress: bool, threads: int = 1) -> list[T]:
    """work(0) … work(n−1), in order; `progress` shows how far it is."""
    with ThreadPoolExecutor(threads) as pool, Progress(title, n, "images", progress) as bar:

        def chunk(rows: range) -> list[T]:
            results = [work(row) for row in rows]
            bar.advance(len(rows))
            return results

        chunks = [range(i, min(i + CHUNK, n)) for i in range(0, n, CHUNK)]
        done = map(chunk, chunks) if threads == 1 else pool.map(chunk, chunks)
        return [result for results in done for result in results]


def _reason(error: BaseException, name: str) -> str:
    if isinstance(error, UnidentifiedImageError) and name.lower().endswith(HEIF):
        return "HEIC or AVIF, which needs: pip install 'vcc-infuse[heif]'"
    if isinstance(error, UnidentifiedImageError):
        return "not an image file"  # Pillow's message contains a memory address
    return " ".join(str(error).split()) or type(error).__name__

"""Decode images to 8 bits, a given size and channels: first all headers, then the pixels into the final array."""

from __future__ import annotations

import io
import os
import struct
import sys
import threading
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from tqdm.auto import tqdm

from ...errors import OptionError, UserError, check_choice, check_integer
from ...utils.progress import Progress
from .high_bit_depth import (
    BAND,
    INTENSITIES,
    SAMPLED_IMAGES,
    Deep,
    Ranges,
    decoded_bytes,
    find_ranges,
    open_image,
    to_bytes,
    values,
)
from .store import HEIF, Limits, Store, open_store

T = TypeVar("T")
Size = int | tuple[int, int] | None  # side of a square, or (height, width)
LARGEST_SIDE = 8192
CHUNK = 64
LARGE = 128 * 128  # pixels
HUGE = 32 * 2**20  # bytes
SHOWN = 5  # messages of skipped images
_GRAY = {"1", "L", "LA", "La", "I", "F"}
_ROTATED = {"AVIF", "JPEG", "MPO", "TIFF", "WEBP"}  # camera formats, which may store an orientation
# What Pillow and zipfile raise on damaged files.
BROKEN = (
    OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, OverflowError,
    NotImplementedError, struct.error, zlib.error, zipfile.BadZipFile, Image.DecompressionBombError,
)  # fmt: skip


def check_options(size: Size, mode: str, intensity: str) -> None:
    """Refuse an impossible size, an unknown mode or an unknown rule for more than 8 bits."""
    check_choice("mode", mode, ("auto", "rgb", "gray"))
    check_choice("intensity", intensity, INTENSITIES)
    for side in height_width(size) or ():
        check_integer("size", side, 1, LARGEST_SIDE)


def height_width(size: Size) -> tuple[int, int] | None:
    """`size` as (height, width), or None to keep the size."""
    return size if size is None or isinstance(size, tuple) else (size, size)


class Header(NamedTuple):
    """What the header of an image says."""

    size: tuple[int, int] = (0, 0)  # (height, width) as a viewer shows it
    gray: bool = False
    reason: str = ""  # why the header cannot be read
    channels: int = 0  # their number if they are neither gray nor RGB
    deep: bool = False  # values may need more than 8 bits

    @classmethod
    def of(cls, image: Image.Image | Deep) -> Header:
        """The header of an opened image."""
        if isinstance(image, Deep):
            return cls(image.size, image.channels == 1, "", 0 if image.channels in (1, 3) else image.channels, True)
        # Pillow turns TIFF files by itself, also their size.
        rotated = image.format in _ROTATED - {"TIFF"} and image.getexif().get(0x0112, 1) >= 5
        size = (image.width, image.height) if rotated else (image.height, image.width)
        return cls(size, image.mode in _GRAY or image.mode.startswith("I;16"), deep=image.mode[0] in "IF")


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

    def read() -> Iterator[np.ndarray]:
        for name in deep[::step]:
            with suppress(*BROKEN), store.open(name) as file:  # a broken file is noticed when it is decoded
                yield values(open_image(io.BytesIO(file.read()), store.limits))

    return find_ranges(read(), intensity) if deep else ()


def decode(
    store: Store, names: Sequence[str], out: np.ndarray, threads: int = 1, progress: bool = False, ranges: Ranges = ()
) -> dict[int, str]:
    """Fill row i of `out` with image i; returns the reason for each row that could not be decoded."""

    large = threading.RLock()  # decoded one after another, because each may need a good part of the memory

    def in_turn(size: int) -> AbstractContextManager[object]:
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


def fit(image: Image.Image | Deep, shape: tuple[int, ...], ranges: Ranges = ()) -> np.ndarray:
    """uint8 H×W×C: upright, alpha over white, the largest centered crop, antialiased bilinear.

    `ranges` says which values of a deep image become 0 and 255.
    """
    height, width, channels = shape
    if isinstance(image, Deep):
        return _fit_deep(image, shape, ranges)
    if channels not in (1, 3):
        raise ValueError(f"is gray or RGB, and {channels} channels are needed")
    image.draft(None, (2 * width, 2 * height))  # large JPEGs are decoded at a fraction of their size
    if image.format in _ROTATED:
        ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I") or image.mode == "F":
        image = Image.fromarray(to_bytes(values(image), ranges)[..., 0])
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = _over_white(image)
    wanted = "L" if channels == 1 else "RGB"
    image = image if image.mode == wanted else image.convert(wanted)
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(shape)


def _fit_deep(image: Deep, shape: tuple[int, ...], ranges: Ranges) -> np.ndarray:
    """Channels become gray or RGB only where there are as many; of more than three, RGB takes the first three."""
    pixels = image.read()
    bytes_ = to_bytes(pixels[..., : image.channels], ranges)
    if shape[2] == 3 and image.channels > 3:
        bytes_ = bytes_[..., :3]
    if shape[2] in (1, 3) and bytes_.shape[2] in (1, 3):
        alpha = [to_bytes(pixels[..., image.channels :], ())] if image.alpha else []
        joined = np.concatenate([bytes_, *alpha], 2)
        return fit(Image.fromarray(joined[..., 0] if joined.shape[2] == 1 else joined), shape)
    if bytes_.shape[2] != shape[2]:
        raise ValueError(f"has {bytes_.shape[2]} channels instead of {shape[2]}")
    planes = (Image.fromarray(np.ascontiguousarray(plane)) for plane in np.moveaxis(bytes_, 2, 0))
    return np.concatenate([fit(plane, (*shape[:2], 1)) for plane in planes], 2)


def _over_white(image: Image.Image) -> Image.Image:
    """RGB without alpha, a band at a time: whole copies of a large image would need several times its memory."""
    out = Image.new("RGB", image.size)
    for top in range(0, image.height, BAND):
        band = image.crop((0, top, image.width, min(top + BAND, image.height))).convert("RGBA")
        out.paste(Image.alpha_composite(Image.new("RGBA", band.size, "white"), band).convert("RGB"), (0, top))
    return out


def refit(x: np.ndarray, out: np.ndarray) -> None:
    """Copy the uint8 images `x` into `out`, converted to its size and number of channels."""
    if x.shape == out.shape:
        np.copyto(out, x)
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


# --- streams: images in chunks, of which unreadable ones are counted


@contextmanager
def open_images(path: str, limits: Limits | None = None) -> Iterator[Store]:
    """Open a folder, zip or image file that holds at least one image."""
    with open_store(Path(path), limits) as store:
        if next(store.images(), None) is None:
            raise UserError(f"{path} holds no images; give another folder, zip or image")
        yield store


@dataclass
class SkippedImages:
    """The number of unreadable images, and the first few messages: a huge damaged archive must not fill the memory."""

    count: int = 0
    first: list[str] = field(default_factory=list)

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

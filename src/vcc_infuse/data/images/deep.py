"""Images with more than 8 bits per value, or with other channels than gray and RGB: TIFF and PNG of instruments."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import cache
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from .limits import Limits

CHANNELS = 16
FORMATS = ("AVIF", "BMP", "DIB", "GIF", "HEIF", "JPEG", "MPO", "PNG", "PPM", "TIFF", "WEBP")
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
# Without a handler Python prints tifffile's remarks on odd tags.
logging.getLogger("tifffile").addHandler(logging.NullHandler())


class Deep(NamedTuple):
    """An image that Pillow cannot hold: (height, width), channels without alpha, and how to read H×W×C values."""

    size: tuple[int, int]
    channels: int
    alpha: bool
    read: Callable[[], np.ndarray]
    nbytes: int = 0


@cache
def read_heif() -> bool:
    """Whether HEIC can be read; AVIF is read by Pillow itself where it was built so."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return False
    register_heif_opener()
    return True


@cache
def formats() -> tuple[str, ...]:
    """What Pillow may take a file for. It knows dozens of formats, rarely used and as rarely checked for faults."""
    read_heif()
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def open_image(file: BinaryIO, limits: Limits | None = None) -> Image.Image | Deep:
    """The image in a file, without its pixels: as Pillow opens it, or as Deep where Pillow would lose something."""
    image = _open(file)
    (limits or Limits()).check_pixels(decoded_bytes(image))
    return image


def decoded_bytes(image: Image.Image | Deep) -> int:
    """Bytes of the pixels, at least as many as those of RGB, which they may become."""
    if isinstance(image, Deep):
        return image.nbytes
    each = {"I": 4, "F": 4}.get(image.mode[0], 1)
    return int(image.width) * int(image.height) * each * max(3, len(image.getbands()))


def _open(file: BinaryIO) -> Image.Image | Deep:
    try:
        image = Image.open(file, formats=formats())
    except UnidentifiedImageError:
        file.seek(0)
        if file.read(4) not in TIFF:
            raise
        found = _tiff(file)
        if found is None:
            raise
        return found
    return _deep_png(image, file) or _deep_tiff(image, file) or image


def is_deep(image: Image.Image | Deep) -> bool:
    """Whether the values may need more than 8 bits."""
    return isinstance(image, Deep) or image.mode[0] in "IF"


def values(image: Image.Image | Deep) -> np.ndarray:
    """H×W×C values of a deep image, without alpha."""
    if isinstance(image, Deep):
        return image.read()[..., : image.channels]
    return np.atleast_3d(np.asarray(image))


def _deep_png(image: Image.Image, file: BinaryIO) -> Deep | None:
    """16-bit color, of which Pillow keeps the upper 8 bits."""
    tile = getattr(image, "tile", None) if image.format == "PNG" else None
    raw = str(tile[0][3]) if tile else ""
    kind = raw.removesuffix(";16B")
    if kind not in ("RGB", "RGBA", "LA") or kind == raw:
        return None

    def read() -> np.ndarray:
        import torch
        from torchvision.io import ImageReadMode, decode_png

        file.seek(0)
        content = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
        pixels: np.ndarray = decode_png(content, ImageReadMode.UNCHANGED).permute(1, 2, 0).numpy()
        return pixels

    alpha = kind.endswith("A")
    nbytes = 2 * image.height * image.width * len(kind)
    return Deep((image.height, image.width), len(kind) - alpha, alpha, read, nbytes)


def _deep_tiff(image: Image.Image, file: BinaryIO) -> Deep | None:
    """Several channels of which Pillow keeps the upper 8 bits or the first page only."""
    if image.format != "TIFF":
        return None
    tags = image.tag_v2  # type: ignore[attr-defined]
    bits, samples, extra = max(tags.get(258) or (1,)), tags.get(277, 1), tags.get(338) or ()
    spread = tags.get(284) == 2 and tags.get(262) in (0, 1)  # gray planes
    several = samples > 1 and (bits > 8 or 0 in extra or spread)
    return _tiff(file) if several or getattr(image, "n_frames", 1) > 1 else None


def _tiff(file: BinaryIO) -> Deep | None:
    """The channels of a TIFF, as samples or as pages that are said to be channels; None for pages of another kind."""
    import tifffile

    file.seek(0)
    with tifffile.TiffFile(file) as tiff:
        series, extra = tiff.series[0], tiff.pages.first.extrasamples
        nbytes = math.prod(series.shape) * series.dtype.itemsize
        sizes = {axis: size for axis, size in zip(series.axes, series.shape, strict=True) if size > 1 or axis in "YX"}
    axis = "".join(axis for axis in sizes if axis not in "YX")
    if axis not in ("C", "S") or not {"Y", "X"} <= sizes.keys():
        return None
    if sizes[axis] > CHANNELS:
        raise ValueError(f"has {sizes[axis]} channels, and at most {CHANNELS} are read")
    alpha = axis == "S" and any(kind in (1, 2) for kind in extra)
    order = [list(sizes).index(name) for name in ("Y", "X", axis)]

    def read() -> np.ndarray:
        file.seek(0)
        with tifffile.TiffFile(file) as tiff:
            array: np.ndarray = tiff.series[0].asarray().squeeze()
        return array.reshape([*sizes.values()]).transpose(order)

    return Deep((sizes["Y"], sizes["X"]), sizes[axis] - alpha, alpha, read, nbytes)

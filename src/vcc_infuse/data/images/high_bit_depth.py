"""Images of more than 8 bits: reading them where Pillow would lose bits or channels, and scaling them to bytes.

All images of a dataset are scaled by one range, so that they compare.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from ..dataset import CHANNELS
from .store import Limits

FORMATS = ("AVIF", "BMP", "DIB", "GIF", "HEIF", "JPEG", "MPO", "PNG", "PPM", "TIFF", "WEBP")
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
INTENSITIES = ("auto", "full", "percentile")
DEPTHS = (8, 10, 12, 14, 16)
PERCENTILES = (0.5, 99.5)
SAMPLED_PIXELS = 4096  # of an image, for the percentiles
SAMPLED_IMAGES = 1000
BAND = 256  # rows
Ranges = tuple[tuple[float, float], ...]
"""(lowest, highest) for all channels or for each; empty: 0…65535 for integers and 0…1 for floats."""
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
    """The formats that Pillow may open. It knows dozens more, which are rarely used and rarely checked for faults."""
    read_heif()
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def open_image(file: BinaryIO, limits: Limits | None = None) -> Image.Image | Deep:
    """The image in a file, without its pixels: as Pillow opens it, or as Deep where Pillow would lose something."""
    image: Image.Image | Deep | None
    try:
        pillow = Image.open(file, formats=formats())
    except UnidentifiedImageError:
        file.seek(0)
        image = _tiff(file) if file.read(4) in TIFF else None
        if image is None:
            raise
    else:
        image = _deep_png(pillow, file) or _deep_tiff(pillow, file) or pillow
    (limits or Limits()).check("image", decoded_bytes(image))
    return image


def decoded_bytes(image: Image.Image | Deep) -> int:
    """Bytes of the pixels, at least as many as those of RGB, which they may become."""
    if isinstance(image, Deep):
        return image.nbytes
    value = 4 if image.mode[0] in "IF" else 1
    return int(image.width) * int(image.height) * value * max(3, len(image.getbands()))


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
    bits = max(tags.get(258) or (1,))
    gray_planes = tags.get(284) == 2 and tags.get(262) in (0, 1)
    several = tags.get(277, 1) > 1 and (bits > 8 or 0 in (tags.get(338) or ()) or gray_planes)
    return _tiff(file) if several or getattr(image, "n_frames", 1) > 1 else None


def _tiff(file: BinaryIO) -> Deep | None:
    """The channels of a TIFF, as samples or as pages that are said to be channels; None for pages of another kind."""
    import tifffile

    file.seek(0)
    with tifffile.TiffFile(file) as tiff:
        series = tiff.series[0]
        extra = tiff.pages.first.extrasamples
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


def find_ranges(images: Iterable[np.ndarray], intensity: str) -> Ranges:
    """The range of H×W×C images by the rule `intensity`; values that are not finite do not count."""
    if intensity == "full":
        return ()
    return _percentiles(images) if intensity == "percentile" else _natural(images)


def _natural(images: Iterable[np.ndarray]) -> Ranges:
    """The range of the camera or file format that holds all values: 8 to 16 bits, 0…1, or else what occurs."""
    low = np.inf
    high = -np.inf
    floats = False
    for image in images:
        finite = image[np.isfinite(image)]
        if finite.size:
            low = min(low, float(finite.min()))
            high = max(high, float(finite.max()))
            floats |= image.dtype.kind == "f"
    if low > high:
        return ()
    tops = (1.0, 255.0) if floats else tuple(2.0**bits - 1 for bits in DEPTHS)
    top = next((top for top in tops if high <= top), None)
    return ((0.0, top),) if low >= 0 and top is not None else (_wide(low, high),)


def _percentiles(images: Iterable[np.ndarray]) -> Ranges:
    """The middle 99 % of the values, for each channel where all images have the same channels."""
    samples = []
    for image in images:
        pixels = image.reshape(-1, image.shape[2])[:: max(1, image[..., 0].size // SAMPLED_PIXELS)].astype(np.float64)
        samples.append(pixels[np.isfinite(pixels).all(1)])
    if not sum(map(len, samples)):
        return ()
    alike = len({sample.shape[1] for sample in samples}) == 1
    joined = np.concatenate(samples if alike else [sample.reshape(-1, 1) for sample in samples])
    return tuple(_wide(*np.percentile(column, PERCENTILES)) for column in joined.T)


def _wide(low: float, high: float) -> tuple[float, float]:
    """A range that is not empty."""
    return float(low), float(high if high > low else low + 1)


def to_bytes(values: np.ndarray, ranges: Ranges) -> np.ndarray:
    """Values … × C as uint8. Values beyond given ranges are clipped; beyond the type's own range they are refused."""
    if values.dtype == np.uint8:
        return values
    if not np.isfinite(values).all():
        raise ValueError("holds NaN or infinite values")
    top = 1 if values.dtype.kind == "f" else 65535
    if not ranges and not (values.min() >= 0 and values.max() <= top):
        raise ValueError(f"values outside 0…{top}")
    low, high = np.array(ranges or [(0, top)], np.float64).T
    if len(low) not in (1, values.shape[-1]):  # ranges of other channels
        low = low.min()
        high = high.max()
    scaled = np.empty(values.shape, np.uint8)
    for start in range(0, len(values), BAND):  # in float64 all values would take eight times the memory
        band = (values[start : start + BAND].astype(np.float64) - low) * (255 / (high - low))
        scaled[start : start + BAND] = np.rint(band.clip(0, 255))
    return scaled

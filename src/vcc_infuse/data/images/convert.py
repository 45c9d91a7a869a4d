"""Convert one image of any format to 8 bits, a given size and given channels."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageOps

from ...errors import check_choice, check_integer
from .high_bit_depth import Deep, Ranges, to_bytes, values

Size = int | tuple[int, int] | None  # side of a square, or (height, width)
LARGEST = 8192
BAND = 256  # rows
MODES = ("auto", "rgb", "gray")
_GRAY = {"1", "L", "LA", "La", "I", "F"}
_ROTATED = {"AVIF", "JPEG", "MPO", "TIFF", "WEBP"}  # camera formats, which may store an orientation


def check_options(size: Size, mode: str) -> None:
    """Refuse an impossible size or mode."""
    check_choice("mode", mode, MODES)
    for side in height_width(size) or ():
        check_integer("size", side, 1, LARGEST)


def height_width(size: Size) -> tuple[int, int] | None:
    """`size` as (height, width), or None to keep the size."""
    return size if size is None or isinstance(size, tuple) else (size, size)


def is_gray(image: Image.Image | Deep) -> bool:
    """Whether the header declares an image without color."""
    if isinstance(image, Deep):
        return image.channels == 1
    return image.mode in _GRAY or image.mode.startswith("I;16")


def upright_size(image: Image.Image | Deep) -> tuple[int, int]:
    """(height, width) as a viewer shows it."""
    if isinstance(image, Deep):
        return image.size
    width, height = image.size
    # Pillow turns TIFF files by itself, also their size.
    rotated = image.format in _ROTATED - {"TIFF"} and image.getexif().get(0x0112, 1) >= 5
    return (width, height) if rotated else (height, width)


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
    image = _flatten(image, channels, ranges)
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


def _flatten(image: Image.Image, channels: int, ranges: Ranges) -> Image.Image:
    wanted = "L" if channels == 1 else "RGB"
    if image.mode.startswith("I") or image.mode == "F":
        image = Image.fromarray(to_bytes(values(image), ranges)[..., 0])
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = _over_white(image)
    return image if image.mode == wanted else image.convert(wanted)


def _over_white(image: Image.Image) -> Image.Image:
    """RGB without alpha, a band at a time: whole copies of a large image would need several times its memory."""
    out = Image.new("RGB", image.size)
    for top in range(0, image.height, BAND):
        band = image.crop((0, top, image.width, min(top + BAND, image.height))).convert("RGBA")
        out.paste(Image.alpha_composite(Image.new("RGBA", band.size, "white"), band).convert("RGB"), (0, top))
    return out

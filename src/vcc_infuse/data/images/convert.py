"""Convert one image of any format to 8-bit gray or RGB of a given size."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageOps

from ...validation import check_choice, check_integer

Size = int | tuple[int, int] | None  # side of a square, or (height, width)
MODES = ("auto", "rgb", "gray")
_GRAY = {"1", "L", "LA", "La", "I", "F"}
_ROTATED = {"JPEG", "MPO", "TIFF", "WEBP"}  # camera formats, which may store an orientation


def check_options(size: Size, mode: str) -> None:
    """Refuse an impossible size or mode."""
    check_choice("mode", mode, MODES)
    for side in height_width(size) or ():
        check_integer("size", side)


def height_width(size: Size) -> tuple[int, int] | None:
    """`size` as (height, width), or None to keep the size."""
    return size if size is None or isinstance(size, tuple) else (size, size)


def is_gray(image: Image.Image) -> bool:
    """Whether the header declares an image without color."""
    return image.mode in _GRAY or image.mode.startswith("I;16")


def upright_size(image: Image.Image) -> tuple[int, int]:
    """(height, width) as a viewer shows it."""
    width, height = image.size
    rotated = image.format in _ROTATED and image.getexif().get(0x0112, 1) >= 5
    return (width, height) if rotated else (height, width)


def fit(image: Image.Image, shape: tuple[int, ...]) -> np.ndarray:
    """uint8 H×W×C: upright, alpha over white, the largest centered crop, antialiased bilinear."""
    height, width, channels = shape
    image.draft(None, (2 * width, 2 * height))  # large JPEGs are decoded at a fraction of their size
    if image.format in _ROTATED:
        ImageOps.exif_transpose(image, in_place=True)
    image = _flatten(image, channels)
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(shape)


def _flatten(image: Image.Image, channels: int) -> Image.Image:
    wanted = "L" if channels == 1 else "RGB"
    if image.mode.startswith("I") or image.mode == "F":
        image = _eight_bits(image)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image if image.mode == wanted else image.convert(wanted)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Pillow clips 16-bit and float images at 255; here 0…65535 or 0…1 becomes 0…255."""
    values = np.asarray(image, dtype=np.float64)
    top = 1 if image.mode == "F" else 65535
    if not (values.min() >= 0 and values.max() <= top):
        raise ValueError(f"values outside 0…{top}")
    return Image.fromarray(np.rint(values * (255 / top)).astype(np.uint8))

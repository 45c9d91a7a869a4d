"""One picture of any kind made into 8-bit gray or RGB of a wanted size."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageOps

from ...errors import UserError

Size = int | tuple[int, int] | None  # side of a square, or (height, width)


MODES = ("auto", "rgb", "gray")


_GRAY = {"1", "L", "LA", "La", "I", "F"}


_TURNED = {"JPEG", "MPO", "TIFF", "WEBP"}  # formats of cameras, whose pictures may carry an orientation


def check_options(size: Size, mode: str) -> None:
    """Refuse a size or mode that cannot be."""
    if mode not in MODES:
        raise UserError(f"--mode {mode}: choose one of {', '.join(MODES)}")
    if size is not None and min(size if isinstance(size, tuple) else (size,)) < 1:
        raise UserError(f"--size {size}: must be at least 1 pixel")


def height_width(size: Size) -> tuple[int, int] | None:
    """The wanted (height, width), or None to keep what is there."""
    return (size, size) if isinstance(size, int) else size


def is_gray(image: Image.Image) -> bool:
    """Whether the picture has no color, judged by its header."""
    return image.mode in _GRAY or image.mode.startswith("I;16")


def upright_size(image: Image.Image) -> tuple[int, int]:
    """(height, width) as a viewer shows it."""
    width, height = image.size
    turned = image.format in _TURNED and image.getexif().get(0x0112, 1) >= 5
    return (width, height) if turned else (height, width)


def fit(image: Image.Image, shape: tuple[int, ...]) -> np.ndarray:
    """uint8 H×W×C: upright, alpha laid on white, the largest centered part, antialiased bilinear."""
    height, width, channels = shape
    image.draft(None, (2 * width, 2 * height))  # large JPEGs are decoded at a fraction of their size
    if image.format in _TURNED:
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
    """Pillow clips 16-bit and float pictures at 255; here 0…65535 or 0…1 becomes 0…255."""
    values = np.asarray(image, dtype=np.float64)
    top = 1 if image.mode == "F" else 65535
    if not (values.min() >= 0 and values.max() <= top):
        raise ValueError(f"values outside 0…{top}")
    return Image.fromarray(np.rint(values * (255 / top)).astype(np.uint8))

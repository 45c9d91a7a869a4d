"""Which values become 0 and 255 where images have more than 8 bits: one range for all images, so that they compare."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...validation import check_choice

INTENSITIES = ("auto", "full", "percentile")
Ranges = tuple[tuple[float, float], ...]
"""(lowest, highest) for all channels or for each; empty: 0…65535 for integers and 0…1 for floats."""
DEPTHS = (8, 10, 12, 14, 16)
PERCENTILES = (0.5, 99.5)
BAND = 256  # rows
PIXELS, IMAGES = 4096, 1000  # for the percentiles: pixels of an image, and images


def check_intensity(intensity: str) -> str:
    """Refuse an unknown rule."""
    return check_choice("intensity", intensity, INTENSITIES)


def find_ranges(images: Iterable[np.ndarray], intensity: str) -> Ranges:
    """The range of H×W×C images by the rule `intensity`; values that are not finite do not count."""
    if intensity == "full":
        return ()
    return _percentiles(images) if intensity == "percentile" else _natural(images)


def _natural(images: Iterable[np.ndarray]) -> Ranges:
    """The range of the camera or file format that holds all values: 8 to 16 bits, 0…1, or else what occurs."""
    low, high, floats = np.inf, -np.inf, False
    for image in images:
        finite = image[np.isfinite(image)]
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
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
        pixels = image.reshape(-1, image.shape[2])[:: max(1, image[..., 0].size // PIXELS)].astype(np.float64)
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
        low, high = low.min(), high.max()
    found = np.empty(values.shape, np.uint8)
    for start in range(0, len(values), BAND):  # in float64 all values would take eight times the memory
        scaled = (values[start : start + BAND].astype(np.float64) - low) * (255 / (high - low))
        found[start : start + BAND] = np.rint(scaled.clip(0, 255))
    return found

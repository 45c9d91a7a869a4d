"""Copies of real images: which cosine, and which distance of hashes, tells them from other images."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance

from vcc_infuse import pool_audit
from vcc_infuse.augment.views import ImageViews
from vcc_infuse.bank.embed import make_encoder
from vcc_infuse.errors import UserError
from vcc_infuse.models import Timm
from vcc_infuse.pool_audit.duplicates import HASH_BITS, LOOSE, hash_distance

from .page import Table

THRESHOLDS = (0.75, 0.8, 0.85, 0.9, 0.93, 0.95)
BITS = (6, 10, 14)
SUFFIXES = (".png", ".jpg", ".jpeg")
Row = list[str | float]


def resized(image: Image.Image) -> Image.Image:
    """Half as large, and back."""
    side = image.size
    return image.resize((side[0] // 2, side[1] // 2), Image.Resampling.BICUBIC).resize(side, Image.Resampling.BICUBIC)


def cropped(image: Image.Image) -> Image.Image:
    """Nine tenths of width and height, off center."""
    width, height = image.size
    box = (0, round(0.05 * height), round(0.9 * width), round(0.95 * height))
    return image.crop(box).resize(image.size, Image.Resampling.BICUBIC)


def compressed(image: Image.Image) -> Image.Image:
    """As a JPEG of quality 40."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=40)
    return Image.open(file).convert("RGB")


def brightened(image: Image.Image) -> Image.Image:
    """A third brighter."""
    return ImageEnhance.Brightness(image).enhance(1.3)


KINDS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "half size": resized,
    "crop 90 %": cropped,
    "JPEG 40": compressed,
    "brighter": brightened,
}


def measure_copies(path: Path, sizes: Sequence[int], count: int) -> list[Table]:
    """Recall of each kind of copy, and pairs of different images that pass for copies, per million pairs."""
    originals = read_images(path, count)
    variants = [originals, *([make(image) for image in originals] for make in KINDS.values())]
    hashes = np.stack([pool_audit.perceptual_hashes(images) for images in variants])
    columns = ("rule", *KINDS, "other images, per million pairs")
    tables = []
    for size in sizes:
        features = embed([image for images in variants for image in images], size)
        vectors = pool_audit.unit_rows(features).reshape(len(variants), count, -1)
        rows: list[Row] = [[f"cosine ≥ {cut}", *rates(vectors @ vectors[0].T >= cut)] for cut in THRESHOLDS]
        alike = (vectors @ vectors[0].T >= LOOSE) & (hash_distance(hashes[:, :, None], hashes[0]) <= HASH_BITS)
        with_hash = f"or hash ≤ {HASH_BITS} and cosine ≥ {LOOSE}"
        rows += [
            [f"cosine ≥ {cut}, {with_hash}", *rates((vectors @ vectors[0].T >= cut) | alike)] for cut in THRESHOLDS
        ]
        tables.append(Table(f"{path.stem}, {count} images, lite0 at {size} px", columns, rows))
    by_hash: list[Row] = [
        [f"hash ≤ {bits}", *rates(hash_distance(hashes[:, :, None], hashes[0]) <= bits)] for bits in BITS
    ]
    return [*tables, Table(f"{path.stem}, {count} images, pHash or dHash alone", columns, by_hash)]


def rates(same: np.ndarray) -> list[float]:
    """Of shape (variants, images, originals): hits of each variant on the diagonal, misses elsewhere."""
    count = same.shape[1]
    recall = [round(float(np.diagonal(matches).mean()), 3) for matches in same[1:]]
    others = same & ~np.eye(count, dtype=bool)
    return [*recall, round(1e6 * float(others.sum()) / (len(same) * count * (count - 1)), 1)]


def read_images(path: Path, count: int) -> list[Image.Image]:
    """Images of a zip file, evenly over its names."""
    if not path.exists():
        raise UserError(f"--images {path} does not exist; name a zip file of images")
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.lower().endswith(SUFFIXES))
        if len(names) < count:
            raise UserError(f"--count {count} is more than the {len(names)} images of {path}")
        chosen = [names[round(at)] for at in np.linspace(0, len(names) - 1, count)]
        return [Image.open(io.BytesIO(archive.read(name))).convert("RGB") for name in chosen]


def embed(images: Sequence[Image.Image], size: int) -> np.ndarray:
    """Features of the frozen network at `size` pixels, of shape (images, width)."""
    side = images[0].size
    encoder, _ = make_encoder(Timm("tf_efficientnet_lite0", input_size=size), (side[1], side[0], 3))
    expects = encoder.preprocessing()
    assert expects is not None
    views = ImageViews(expects.mean, expects.std)
    raw = torch.from_numpy(np.stack([np.asarray(image.resize(side)) for image in images]))
    with torch.inference_mode():
        return torch.cat([encoder.eval()(views("plain", part)) for part in torch.split(raw, 32)]).numpy()

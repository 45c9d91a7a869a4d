"""The weak and strong views of FixMatch image by image in PIL, as the usual toolboxes make them."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torch import Tensor

MEAN = (0.491, 0.482, 0.447)
STD = (0.247, 0.244, 0.262)
SCALE = (1 / (255 * np.array(STD))).astype(np.float32)
SHIFT = (-np.array(MEAN) / np.array(STD)).astype(np.float32)


def _affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


PIL_POOL: tuple[tuple[Callable[[Image.Image, float], Image.Image], float, float], ...] = (
    (lambda image, v: image, 0, 1),
    (lambda image, v: ImageOps.autocontrast(image), 0, 1),
    (lambda image, v: ImageOps.equalize(image), 0, 1),
    (lambda image, v: ImageOps.posterize(image, int(v)), 4, 8),
    (lambda image, v: ImageOps.solarize(image, int(v)), 0, 256),
    (lambda image, v: ImageEnhance.Brightness(image).enhance(v), 0.05, 0.95),
    (lambda image, v: ImageEnhance.Contrast(image).enhance(v), 0.05, 0.95),
    (lambda image, v: ImageEnhance.Color(image).enhance(v), 0.05, 0.95),
    (lambda image, v: ImageEnhance.Sharpness(image).enhance(v), 0.05, 0.95),
    (lambda image, v: image.rotate(v), -30, 30),
    (lambda image, v: _affine(image, 1, v, 0, 0, 1, 0), -0.3, 0.3),
    (lambda image, v: _affine(image, 1, 0, 0, v, 1, 0), -0.3, 0.3),
    (lambda image, v: _affine(image, 1, 0, v * image.width, 0, 1, 0), -0.3, 0.3),
    (lambda image, v: _affine(image, 1, 0, 0, 0, 1, v * image.height), -0.3, 0.3),
)


def weak(array: np.ndarray) -> np.ndarray:
    """A crop with reflected borders and perhaps a flip, by indexing in numpy, which is faster than padding."""
    size = len(array)
    margin = size // 8
    reflected = np.pad(np.arange(size), margin, mode="reflect")
    top = random.randint(0, 2 * margin)
    left = random.randint(0, 2 * margin)
    columns = reflected[left : left + size]
    return array[reflected[top : top + size][:, None], columns if random.random() < 0.5 else columns[::-1]]


def strong(array: np.ndarray) -> np.ndarray:
    """The weak view, three operations, and Cutout."""
    image = Image.fromarray(weak(array))
    for operation, low, high in random.choices(PIL_POOL, k=3):
        image = operation(image, random.uniform(low, high))
    return np.asarray(cutout(image.copy()))


def cutout(image: Image.Image) -> Image.Image:
    """A gray square of up to half the width."""
    width, height = image.size
    side = random.uniform(0, 0.5) * width
    x, y = (int(max(0, random.uniform(0, end) - side / 2)) for end in (width, height))
    box = (x, y, min(width, x + side), min(height, y + side))
    ImageDraw.Draw(image).rectangle(box, (125, 123, 114))
    return image


def batch(arrays: np.ndarray, view: Callable[[np.ndarray], np.ndarray]) -> Tensor:
    """A view of every image, normalized: B,C,H,W."""
    values = [view(array).astype(np.float32) * SCALE + SHIFT for array in arrays]
    return torch.stack([torch.from_numpy(np.ascontiguousarray(value.transpose(2, 0, 1))) for value in values])

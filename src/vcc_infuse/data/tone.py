"""Tone operations: a pixel's new value depends on its old value and a few numbers of its image.

Each takes uint8 images B,C,H,W and one magnitude per image, and gives PIL's result exactly.
"""

import torch
from torch import Tensor

from vcc_infuse.data.precision import per_image, to_bytes, wide


def identity(images: Tensor, magnitude: Tensor) -> Tensor:
    """The images as they are."""
    return images


def posterize(images: Tensor, magnitude: Tensor) -> Tensor:
    """Keep the highest ``magnitude`` bits (1…8, truncated to an integer) of every value."""
    dropped = 8 - magnitude.int().clamp(1, 8)
    return images & per_image((256 - (1 << dropped)).to(torch.uint8))


def solarize(images: Tensor, magnitude: Tensor) -> Tensor:
    """Invert the values that reach the threshold ``magnitude`` (0…256)."""
    beyond = per_image((magnitude.ceil() - 1).to(torch.int16)) - images.to(torch.int16)
    flipped = (beyond >> 15).to(torch.uint8)  # the sign bit, spread to 0 or 255
    return images ^ flipped  # 255 − v is v with all bits flipped


def autocontrast(images: Tensor, magnitude: Tensor) -> Tensor:
    """Stretch every channel so that its darkest value becomes 0 and its lightest 255."""
    values = images.flatten(2)
    low, high = wide(values.amin(2, keepdim=True)), wide(values.amax(2, keepdim=True))
    ramp = wide(torch.arange(256, device=images.device))
    # PIL's operations in PIL's order, as their rounding shows; `255 / tensor` would multiply by a reciprocal.
    scale = ramp[255] / (high - low).clamp(min=1)
    table = (ramp * scale + -low * scale).clamp_(0, 255)
    return look_up(images, torch.where(high > low, table, ramp))


def equalize(images: Tensor, magnitude: Tensor) -> Tensor:
    """Flatten every channel's histogram."""
    counts = histogram(images)
    top = images.flatten(2).amax(2, keepdim=True).long()
    step = ((counts.sum(2, keepdim=True) - counts.gather(2, top)) / 255).floor_()
    below = counts.cumsum(2) - counts
    table = ((below + (step / 2).floor_()) / step.clamp(min=1)).clamp_(max=255)
    ramp = wide(torch.arange(256, device=images.device))
    return look_up(images, torch.where(step > 0, table, ramp))


def histogram(images: Tensor) -> Tensor:
    """How often each of the 256 values occurs in each channel: B,C,256, whole numbers held as floats."""
    values = images.flatten(2).long()
    counts = torch.zeros(*values.shape[:2], 256, dtype=torch.int32, device=images.device)
    one = torch.ones(1, dtype=torch.int32, device=images.device)
    return wide(counts.scatter_add_(2, values, one.expand(values.shape)))


def look_up(images: Tensor, table: Tensor) -> Tensor:
    """Replace every value by the entry of its channel's table (B,C,256), truncated."""
    return to_bytes(table).gather(2, images.flatten(2).long()).view(images.shape)

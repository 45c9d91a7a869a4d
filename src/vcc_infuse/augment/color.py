"""Color operations of RandAugment, exactly as in PIL, on uint8 images B,C,H,W with one magnitude per image."""

from __future__ import annotations

import torch
from torch import Tensor

from ..utils.device import to_float64


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
    low = to_float64(values.amin(2, keepdim=True))
    high = to_float64(values.amax(2, keepdim=True))
    ramp = to_float64(torch.arange(256, device=images.device))
    # PIL's operations in PIL's order, as their rounding shows; `255 / tensor` would multiply by a reciprocal.
    scale = ramp[255] / (high - low).clamp(min=1)
    table = (ramp * scale + -low * scale).clamp_(0, 255)
    return to_bytes(torch.where(high > low, table, ramp)).gather(2, values.long()).view(images.shape)


def equalize(images: Tensor, magnitude: Tensor) -> Tensor:
    """Flatten every channel's histogram."""
    values = images.flatten(2).long()
    whole = torch.zeros(*values.shape[:2], 256, dtype=torch.int32, device=values.device)
    whole.scatter_add_(2, values, torch.ones(1, dtype=torch.int32, device=values.device).expand(values.shape))
    counts = whole.float() if values.shape[2] < 2**24 else to_float64(whole)  # quotients of these are exact
    top = values.amax(2, keepdim=True)
    step = ((counts.sum(2, keepdim=True) - counts.gather(2, top)) / 255).floor_()
    below = counts.cumsum(2) - counts
    table = ((below + (step / 2).floor_()) / step.clamp(min=1)).clamp_(max=255)
    ramp = torch.arange(256, device=images.device, dtype=table.dtype)
    return to_bytes(torch.where(step > 0, table, ramp)).gather(2, values).view(images.shape)


def brightness(images: Tensor, magnitude: Tensor) -> Tensor:
    """Blend with black."""
    return to_bytes(images.float().mul_(per_image(magnitude.float())).clamp_(max=255))


def contrast(images: Tensor, magnitude: Tensor) -> Tensor:
    """Blend with the image's mean gray."""
    values = images.float()
    gray = luma(values).int()
    pixels = gray[0].numel()
    mean = (2 * gray.sum((1, 2, 3)) + pixels) // (2 * pixels)
    return blend(per_image(mean.float()), values, magnitude)


def color(images: Tensor, magnitude: Tensor) -> Tensor:
    """Blend with the gray image; images that are not RGB stay as they are."""
    if images.shape[1] != 3:
        return images
    values = images.float()
    return blend(luma(values), values, magnitude)


def sharpness(images: Tensor, magnitude: Tensor) -> Tensor:
    """Blend with the smoothed image (3×3 mean, the center counted five times); the outermost pixels stay."""
    if min(images.shape[2:]) < 3:
        return images
    values = images.float()
    result = images.clone()
    result[:, :, 1:-1, 1:-1] = blend(smooth(values), values, magnitude)[:, :, 1:-1, 1:-1]
    return result


def smooth(values: Tensor) -> Tensor:
    """PIL's SMOOTH filter, right for all but the outermost pixels.

    The sums run over the batch as one line of numbers, which is several times faster than over windows; at an
    image's border they mix in numbers from beyond it.
    """
    width = values.shape[3]
    line = values.flatten()
    three = (line[:-2] + line[1:-1]).add_(line[2:])
    nine = (three[: -2 * width] + three[width:-width]).add_(three[2 * width :])
    inner = slice(width + 1, len(line) - width - 1)
    result = line.clone()
    result[inner] = nine.add_(line[inner], alpha=4).mul_(1 / 13).add_(0.5).floor_()
    return result.view(values.shape)


def blend(poor: Tensor, values: Tensor, factor: Tensor) -> Tensor:
    """poor + factor·(values − poor), truncated; single precision in this order, as PIL computes it."""
    return to_bytes((values - poor).mul_(per_image(factor.float())).add_(poor).clamp_(0, 255))


def luma(values: Tensor) -> Tensor:
    """The gray version B,1,H,W of images held as floats, in PIL's 16-bit fixed point; the mean of channels not RGB.

    Every number on the way is whole and below 2²⁴, hence exact in single precision.
    """
    if values.shape[1] != 3:
        return values.sum(1, keepdim=True).div_(values.shape[1]).floor_()
    red, green, blue = torch.split(values, 1, dim=1)
    total = (red * 19595).add_(green, alpha=38470).add_(blue, alpha=7471)
    return total.add_(0x8000).mul_(2**-16).floor_()


def to_bytes(values: Tensor) -> Tensor:
    """Floats in 0…255, truncated to uint8; via int32, which is three times faster on a CPU."""
    return values.to(torch.int32).to(torch.uint8)


def per_image(numbers: Tensor) -> Tensor:
    """One number per image, shaped to broadcast over B,C,H,W."""
    return numbers.view(-1, 1, 1, 1)

"""Blends of an image with a poorer version of itself, as PIL's ImageEnhance: factor 0 gives the poorer one.

Each takes uint8 images B,C,H,W and one factor per image, and gives PIL's result exactly.
"""

from torch import Tensor

from vcc_infuse.data.precision import per_image, to_bytes


def brightness(images: Tensor, magnitude: Tensor) -> Tensor:
    """Blend with black."""
    return to_bytes(images.float().mul_(per_image(magnitude.float())))


def contrast(images: Tensor, magnitude: Tensor) -> Tensor:
    """Blend with the image's mean grey."""
    grey = luma(images)
    pixels = grey[0].numel()
    mean = (2 * grey.sum((1, 2, 3)) + pixels) // (2 * pixels)
    return blend(per_image(mean.float()), images.float(), magnitude)


def color(images: Tensor, magnitude: Tensor) -> Tensor:
    """Blend with the grey image; grey images stay as they are."""
    return images if images.shape[1] == 1 else blend(luma(images).float(), images.float(), magnitude)


def sharpness(images: Tensor, magnitude: Tensor) -> Tensor:
    """Blend with the smoothed image (3×3 mean, the centre counted five times); the outermost pixels stay."""
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
    width, line = values.shape[3], values.flatten()
    three = (line[:-2] + line[1:-1]).add_(line[2:])
    nine = (three[: -2 * width] + three[width:-width]).add_(three[2 * width :])
    inner = slice(width + 1, len(line) - width - 1)
    result = line.clone()
    result[inner] = nine.add_(line[inner], alpha=4).mul_(1 / 13).add_(0.5).floor_()
    return result.view(values.shape)


def blend(poor: Tensor, values: Tensor, factor: Tensor) -> Tensor:
    """poor + factor·(values − poor), truncated; single precision in this order, as PIL computes it."""
    return to_bytes((values - poor).mul_(per_image(factor.float())).add_(poor))


def luma(images: Tensor) -> Tensor:
    """The grey version B,1,H,W in PIL's 16-bit fixed point, as int32."""
    if images.shape[1] == 1:
        return images.int()
    red, green, blue = images.int().split(1, dim=1)
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16

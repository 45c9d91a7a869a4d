"""Affine warps, nearest neighbour, black outside, on uint8 images B,C,H,W with one magnitude per image.

A matrix holds the six numbers a, b, c, d, e, f of PIL's ``Image.transform``: the output at (x, y) shows the input at
(ax + by + c, dx + ey + f), both measured at pixel centres.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from vcc_infuse.data.precision import wide


def rotation(degrees: Tensor, height: int, width: int) -> Tensor:
    """Matrices B,6 that turn counter-clockwise about the centre."""
    angle = torch.deg2rad(-(wide(degrees) % 360.0))
    cos, sin = angle.cos(), angle.sin()
    x, y = width / 2, height / 2
    return torch.stack([cos, sin, -cos * x - sin * y + x, -sin, cos, sin * x - cos * y + y], dim=-1)


def slope_x(slope: Tensor, height: int, width: int) -> Tensor:
    """Matrices B,6 that slide the rows against each other; the top stays."""
    return _displaced(1, wide(slope))


def slope_y(slope: Tensor, height: int, width: int) -> Tensor:
    """Matrices B,6 that slide the columns against each other; the left stays."""
    return _displaced(3, wide(slope))


def shift_x(fraction: Tensor, height: int, width: int) -> Tensor:
    """Matrices B,6 that move to the left by a fraction of the width, in whole pixels."""
    return _displaced(2, (wide(fraction) * width + 0.5).floor_())


def shift_y(fraction: Tensor, height: int, width: int) -> Tensor:
    """Matrices B,6 that move upwards by a fraction of the height, in whole pixels."""
    return _displaced(5, (wide(fraction) * height + 0.5).floor_())


def _displaced(place: int, values: Tensor) -> Tensor:
    """The identity with one of its zeros replaced."""
    matrix = values.new_zeros(len(values), 6)
    matrix[:, 0::4] = 1
    matrix[:, place] = values
    return matrix


def warp(images: Tensor, matrix: Tensor) -> Tensor:
    """Sample the images through matrices B,6 in the 16.16 fixed point that PIL uses."""
    height, width = images.shape[2:]
    a, b, c, d, e, f = wide(matrix).unbind(-1)
    numbers = torch.stack([a, b, c + (a + b) / 2, d, e, f + (d + e) / 2]).mul_(65536.0).add_(0.5).floor_()
    a, b, c, d, e, f = numbers.to(torch.int32)[:, :, None, None].unbind()
    x = torch.arange(width, device=images.device, dtype=torch.int32)
    y = torch.arange(height, device=images.device, dtype=torch.int32).unsqueeze(1)
    column = ((c + y * b) + x * a).bitwise_right_shift_(16).clamp_(-1, width)
    row = ((f + y * e) + x * d).bitwise_right_shift_(16).clamp_(-1, height)
    return pick(pad(images, (1, 1, 1, 1)), row.add_(1), column.add_(1))  # what lies outside meets the black frame


def pick(images: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """For every image the pixels at integer positions that broadcast to B,H,W."""
    position = row * images.shape[3] + column
    source = position.flatten(1).long().unsqueeze(1).expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, source).view(*images.shape[:2], *position.shape[1:])


def rotate(images: Tensor, magnitude: Tensor) -> Tensor:
    """Rotate by ``magnitude`` degrees."""
    return warp(images, rotation(magnitude, *images.shape[2:]))


def shear_x(images: Tensor, magnitude: Tensor) -> Tensor:
    """Shear along x by the slope ``magnitude``."""
    return warp(images, slope_x(magnitude, *images.shape[2:]))


def shear_y(images: Tensor, magnitude: Tensor) -> Tensor:
    """Shear along y by the slope ``magnitude``."""
    return warp(images, slope_y(magnitude, *images.shape[2:]))


def translate_x(images: Tensor, magnitude: Tensor) -> Tensor:
    """Shift along x by ``magnitude`` widths."""
    return warp(images, shift_x(magnitude, *images.shape[2:]))


def translate_y(images: Tensor, magnitude: Tensor) -> Tensor:
    """Shift along y by ``magnitude`` heights."""
    return warp(images, shift_y(magnitude, *images.shape[2:]))

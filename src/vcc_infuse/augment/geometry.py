"""Warps of RandAugment, random crops, quarter turns and Cutout (DeVries & Taylor, 2017), on uint8 images B,C,H,W.

A warp is affine with nearest-neighbor sampling and black outside, with one magnitude per image. Its matrix holds the
six numbers a, b, c, d, e, f of PIL's `Image.transform`: the output at (x, y) shows the input at (ax + by + c,
dx + ey + f), both measured at pixel centers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..utils.device import to_float64

RGB_FILL = (125, 123, 114)  # of Cutout
GRAY_FILL = 123  # the luma of RGB_FILL


def rotation(degrees: Tensor, height: int, width: int) -> Tensor:
    """Matrices B,6 that turn counter-clockwise about the center."""
    angle = torch.deg2rad(-(to_float64(degrees) % 360.0))
    cos = angle.cos()
    sin = angle.sin()
    x = width / 2
    y = height / 2
    return torch.stack([cos, sin, -cos * x - sin * y + x, -sin, cos, sin * x - cos * y + y], dim=-1)


def shear(slope: Tensor, height: int, width: int, *, place: int) -> Tensor:
    """Matrices B,6 that shear the rows (place 1; the top stays) or the columns (place 3; the left stays)."""
    return _displaced(place, to_float64(slope))


def shift(fraction: Tensor, height: int, width: int, *, place: int) -> Tensor:
    """Matrices B,6 that move left (place 2) or upwards (place 5) by a fraction of the side, in whole pixels."""
    return _displaced(place, (to_float64(fraction) * (width if place == 2 else height) + 0.5).floor_())


def _displaced(place: int, values: Tensor) -> Tensor:
    """The identity with one of its zeros replaced."""
    matrix = values.new_zeros(len(values), 6)
    matrix[:, 0::4] = 1
    matrix[:, place] = values
    return matrix


def fixed_point(matrix: Tensor) -> Tensor:
    """Matrices …,6 as the whole numbers of PIL's 16.16 fixed point, from pixels instead of their centers: …,2,3."""
    numbers = to_float64(matrix).clone().view(*matrix.shape[:-1], 2, 3)
    numbers[..., 2] += (numbers[..., 0] + numbers[..., 1]) / 2
    return numbers.mul_(65536.0).add_(0.5).floor_().to(torch.int32)


def sample(images: Tensor, numbers: Tensor) -> Tensor:
    """For every pixel the one at the place that its image's numbers (B,2,3, see `fixed_point`) say; black outside."""
    height, width = images.shape[2:]
    x = torch.arange(width, device=images.device, dtype=torch.int32)
    y = torch.arange(height, device=images.device, dtype=torch.int32).unsqueeze(1)
    by_x, by_y, start = numbers[..., None, None].unbind(-3)
    place = ((start + y * by_y) + x * by_x).bitwise_right_shift_(16)
    column, row = place.unbind(1)
    column.clamp_(-1, width).add_(1)
    row.clamp_(-1, height).add_(1)
    return pick(pad(images, (1, 1, 1, 1)), row, column)  # places outside fall on the black frame


def pick(images: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """For every image the pixels at integer positions that broadcast to B,H,W."""
    position = row * images.shape[3] + column
    source = position.flatten(1).long().unsqueeze(1).expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, source).view(*images.shape[:2], *position.shape[1:])


class Crops(NamedTuple):
    """Per image: how far the crop moves down and right (negative: up, left), and whether it is mirrored."""

    down: Tensor
    right: Tensor
    mirrored: Tensor


def sample_crops(
    batch: int, height: int, width: int, device: torch.device, flip: bool = True, share: float = 0.125
) -> Crops:
    """Draw offsets of up to a share of each side, and a flip for half of the images."""
    down, right = (
        torch.randint(-most, most + 1, (batch,), device=device, dtype=torch.int32)
        for most in (int(share * height), int(share * width))
    )
    mirrored = torch.rand(batch, device=device) < 0.5 if flip else torch.zeros_like(down, dtype=torch.bool)
    return Crops(down, right, mirrored)


def crop(images: Tensor, crops: Crops) -> Tensor:
    """Cut the crops out of uint8 images B,C,H,W."""
    row = _reflected(crops.down, images.shape[2])
    column = _reflected(crops.right, images.shape[3])
    column = torch.where(crops.mirrored.unsqueeze(1), column.flip(1), column)
    return pick(images, row.unsqueeze(2), column.unsqueeze(1))


def _reflected(offset: Tensor, side: int) -> Tensor:
    """Positions 0…side−1 moved by each image's offset, mirrored at the first and last pixel: B,side."""
    moved = (torch.arange(side, device=offset.device, dtype=torch.int32) + offset.unsqueeze(1)).abs_()
    return (side - 1) - ((side - 1) - moved).abs_()


def sample_turns(batch: int, height: int, width: int, device: torch.device) -> Tensor:
    """Quarter turns 0…3; an image that is not square would change its shape, so it is only turned upside down."""
    steps = 1 if height == width else 2
    return steps * torch.randint(4 // steps, (batch,), device=device)


def turn(images: Tensor, quarters: Tensor) -> Tensor:
    """Turn each image counter-clockwise by its number of quarters."""
    height, width = images.shape[2:]
    y = torch.arange(height, device=images.device, dtype=torch.int32).view(1, -1, 1)
    x = torch.arange(width, device=images.device, dtype=torch.int32).view(1, 1, -1)
    quarters = quarters.view(-1, 1, 1)
    odd = quarters % 2 == 1
    back = quarters >= 2
    row = torch.where(odd, x, y)
    column = torch.where(odd, width - 1 - y, x)
    row = torch.where(back, height - 1 - row, row)
    return pick(images, row, torch.where(back, width - 1 - column, column))


class Boxes(NamedTuple):
    """Per image the first and last covered pixel; the last may lie beyond the border, which clips it."""

    left: Tensor
    top: Tensor
    right: Tensor
    bottom: Tensor


def sample_boxes(batch: int, height: int, width: int, device: torch.device, share: float = 0.5) -> Boxes:
    """Squares of side U(0, share)·(shorter side), centered uniformly over the image."""
    side, x, y = torch.rand(3, batch, device=device).unbind()
    return boxes(side * (share * min(height, width)), x * width, y * height)


def boxes(side: Tensor, x: Tensor, y: Tensor) -> Boxes:
    """Squares around (x, y), with the border and rounding rules of PIL's ``ImageDraw.rectangle``."""
    left, top = ((center - side / 2).clamp(min=0).floor() for center in (x, y))
    return Boxes(*(edge.int() for edge in (left, top, left + side, top + side)))


def cut(images: Tensor, covered: Boxes) -> Tensor:
    """Cover the boxes in uint8 images B,C,H,W, in place."""
    across = _between(covered.left, covered.right, images.shape[3])[:, None, None, :]
    down = _between(covered.top, covered.bottom, images.shape[2])[:, None, :, None]
    hidden = across * down
    color = RGB_FILL if images.shape[1] == 3 else (GRAY_FILL,) * images.shape[1]
    for plane, value in zip(torch.split(images.mul_(1 - hidden), 1, dim=1), color, strict=True):
        plane.add_(hidden * value)
    return images


def _between(first: Tensor, last: Tensor, side: int) -> Tensor:
    """1 from the first to the last position of each row, else 0: B,side."""
    position = torch.arange(side, device=first.device, dtype=torch.int32)
    return ((position >= first.unsqueeze(1)) & (position <= last.unsqueeze(1))).to(torch.uint8)

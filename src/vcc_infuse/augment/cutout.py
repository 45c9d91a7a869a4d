"""Cutout (DeVries & Taylor, 2017): a square of random size and position is filled with gray."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

RGB_FILL = (125, 123, 114)
GRAY_FILL = 123  # the luma of RGB_FILL


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

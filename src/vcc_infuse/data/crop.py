"""The weak geometry: a random crop of the reflect-padded image and a random horizontal flip, in one go."""

from typing import NamedTuple

import torch
from torch import Tensor

from vcc_infuse.data.warp import pick


class Crops(NamedTuple):
    """Per image: how far the crop moves down and right (negative: up, left), and whether it is mirrored."""

    down: Tensor
    right: Tensor
    mirrored: Tensor


def sample_crops(batch: int, height: int, width: int, device: torch.device, flip: bool = True) -> Crops:
    """Draw offsets of up to an eighth of each side, and a flip for half of the images."""
    down, right = (
        torch.randint(-(side // 8), side // 8 + 1, (batch,), device=device, dtype=torch.int32)
        for side in (height, width)
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

"""RandAugment (Cubuk et al., 2020) as FixMatch uses it: three of fourteen operations, random magnitudes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ...utils.numerics import send
from . import color, geometry


class Operation(NamedTuple):
    """A function of (images, magnitudes), the range of its magnitudes and, if it is a warp, its matrix."""

    apply: Callable[[Tensor, Tensor], Tensor]
    low: float = 0.0
    high: float = 0.0
    matrix: Callable[[Tensor, int, int], Tensor] | None = None


POOL: dict[str, Operation] = {
    "Identity": Operation(color.identity),
    "AutoContrast": Operation(color.autocontrast),
    "Equalize": Operation(color.equalize),
    "Posterize": Operation(color.posterize, 4, 9),  # truncated: 4…8 bits, each equally likely
    "Solarize": Operation(color.solarize, 0, 256),
    "Brightness": Operation(color.brightness, 0.05, 0.95),
    "Contrast": Operation(color.contrast, 0.05, 0.95),
    "Color": Operation(color.color, 0.05, 0.95),
    "Sharpness": Operation(color.sharpness, 0.05, 0.95),
    "Rotate": Operation(geometry.rotate, -30, 30, geometry.rotation),
    "ShearX": Operation(geometry.shear_x, -0.3, 0.3, geometry.slope_x),
    "ShearY": Operation(geometry.shear_y, -0.3, 0.3, geometry.slope_y),
    "TranslateX": Operation(geometry.translate_x, -0.3, 0.3, geometry.shift_x),
    "TranslateY": Operation(geometry.translate_y, -0.3, 0.3, geometry.shift_y),
}


class Plan(NamedTuple):
    """The operations of each image: draws×B indices into POOL, and their magnitudes. Both are on the CPU.

    The work is sorted there, so that nobody waits for a GPU to say how many images each operation has.
    """

    operations: Tensor
    magnitudes: Tensor


def sample_plan(batch: int, draws: int = 3) -> Plan:
    """Draw operations with replacement and magnitudes uniform over each one's range."""
    operations = torch.randint(len(POOL), (draws, batch))
    ends = torch.tensor([(each.low, each.high) for each in POOL.values()])
    low, high = ends[operations].unbind(-1)
    return Plan(operations, low + (high - low) * torch.rand(draws, batch))


def apply_plan(images: Tensor, plan: Plan) -> Tensor:
    """Apply the plan to uint8 images B,C,H,W, one draw after the other.

    Before each draw the images are sorted by operation, so that every operation runs once, on a slice.
    """
    home, device = torch.arange(len(images)), images.device
    for operations, magnitudes in zip(*plan, strict=True):
        order = operations[home].argsort()
        home = home[order]
        sizes = torch.bincount(operations, minlength=len(POOL)).tolist()
        images = _apply_sorted(images.index_select(0, send(order, device)), send(magnitudes[home], device), sizes)
    return images.index_select(0, send(home.argsort(), device))


def _apply_sorted(images: Tensor, magnitudes: Tensor, sizes: list[int]) -> Tensor:
    """Apply each operation to its slice; the warps, the last in the pool, share one call."""
    height, width = images.shape[2:]
    parts, strengths = torch.split(images, sizes), torch.split(magnitudes, sizes)
    done, matrices = [], []
    for operation, part, strength in zip(POOL.values(), parts, strengths, strict=True):
        if operation.matrix is not None:
            matrices.append(operation.matrix(strength, height, width))
        elif len(part):
            done.append(operation.apply(part, strength))
    matrix = torch.cat(matrices)
    return torch.cat([*done, geometry.warp(images[len(images) - len(matrix) :], matrix)])

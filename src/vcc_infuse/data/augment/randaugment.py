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
    "identity": Operation(color.identity),
    "autocontrast": Operation(color.autocontrast),
    "equalize": Operation(color.equalize),
    "posterize": Operation(color.posterize, 4, 9),  # truncated: 4…8 bits, each equally likely
    "solarize": Operation(color.solarize, 0, 256),
    "brightness": Operation(color.brightness, 0.05, 0.95),
    "contrast": Operation(color.contrast, 0.05, 0.95),
    "color": Operation(color.color, 0.05, 0.95),
    "sharpness": Operation(color.sharpness, 0.05, 0.95),
    "rotate": Operation(geometry.rotate, -30, 30, geometry.rotation),
    "shear_x": Operation(geometry.shear_x, -0.3, 0.3, geometry.slope_x),
    "shear_y": Operation(geometry.shear_y, -0.3, 0.3, geometry.slope_y),
    "translate_x": Operation(geometry.translate_x, -0.3, 0.3, geometry.shift_x),
    "translate_y": Operation(geometry.translate_y, -0.3, 0.3, geometry.shift_y),
}


class Change(NamedTuple):
    """An operation of the pool, and the range from which its magnitude is drawn."""

    name: str
    low: float
    high: float


EVERY = tuple(Change(name, each.low, each.high) for name, each in POOL.items())
WARPS = [name for name, each in POOL.items() if each.matrix is not None]
Changes = tuple[Change, ...]


class Plan(NamedTuple):
    """What happens to each image: draws×B indices into the changes to choose from, and their magnitudes.

    Both are on the CPU. The work is sorted there, so that nobody waits for a GPU to say how many images each operation
    has.
    """

    operations: Tensor
    magnitudes: Tensor


def sample_plan(batch: int, draws: int = 3, changes: Changes = EVERY) -> Plan:
    """Draw changes with replacement and magnitudes uniform over each one's range."""
    operations = torch.randint(len(changes), (draws, batch))
    ends = torch.tensor([(each.low, each.high) for each in changes])
    low, high = ends[operations].unbind(-1)
    return Plan(operations, low + (high - low) * torch.rand(draws, batch))


def apply_plan(images: Tensor, plan: Plan, changes: Changes = EVERY) -> Tensor:
    """Apply the plan to uint8 images B,C,H,W, one draw after the other; warps must be the last of the changes.

    Before each draw the images are sorted by operation, so that every operation runs once, on a slice.
    """
    home, device = torch.arange(len(images)), images.device
    for operations, magnitudes in zip(*plan, strict=True):
        order = operations[home].argsort()
        home = home[order]
        sizes = torch.bincount(operations, minlength=len(changes)).tolist()
        images = images.index_select(0, send(order, device))
        images = _apply_sorted(images, send(magnitudes[home], device), sizes, changes)
    return images.index_select(0, send(home.argsort(), device))


def _apply_sorted(images: Tensor, magnitudes: Tensor, sizes: list[int], changes: Changes) -> Tensor:
    """Apply each operation to its slice; the warps share one call."""
    height, width = images.shape[2:]
    parts, strengths = torch.split(images, sizes), torch.split(magnitudes, sizes)
    done, matrices = [], []
    for change, part, strength in zip(changes, parts, strengths, strict=True):
        operation = POOL[change.name]
        if operation.matrix is not None:
            matrices.append(operation.matrix(strength, height, width))
        elif len(part):
            done.append(operation.apply(part, strength))
    matrix = torch.cat(matrices) if matrices else magnitudes.new_zeros(0, 6)
    return torch.cat([*done, geometry.warp(images[len(images) - len(matrix) :], matrix)])

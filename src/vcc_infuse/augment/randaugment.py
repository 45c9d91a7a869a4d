"""RandAugment (Cubuk et al., 2020) as FixMatch uses it: three of fourteen operations, random magnitudes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..utils.device import send
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

    Before each draw the images are sorted by operation, so that every operation runs once, on a slice. What can be
    computed for all draws is computed first: small batches are mostly overhead.
    """
    device, draws = images.device, len(plan.operations)
    order = plan.operations.argsort(1)
    back = order.argsort(1)
    moves = send(torch.cat([order[:1], back[:-1].gather(1, order[1:]), back[-1:]]), device)
    magnitudes = send(plan.magnitudes.gather(1, order), device)
    numbers = send(_warp_numbers(plan, changes, *images.shape[2:])[torch.arange(draws).unsqueeze(1), order], device)
    kinds = torch.arange(draws).unsqueeze(1) * len(changes) + plan.operations
    sizes = torch.bincount(kinds.flatten(), minlength=draws * len(changes)).view(draws, -1).tolist()
    for draw in range(draws):
        images = images.index_select(0, moves[draw])
        images = _apply_sorted(images, magnitudes[draw], numbers[draw], sizes[draw], changes)
    return images.index_select(0, moves[-1])


def _warp_numbers(plan: Plan, changes: Changes, height: int, width: int) -> Tensor:
    """The numbers of `geometry.sample` for every draw and image, draws×B,2,3; zeros where there is no warp."""
    matrices = torch.zeros(*plan.operations.shape, 6, dtype=torch.float64)
    for number, change in enumerate(changes):
        matrix = POOL[change.name].matrix
        if matrix is not None:
            here = (plan.operations == number).nonzero(as_tuple=True)
            matrices[here] = matrix(plan.magnitudes[here], height, width)
    return geometry.fixed_point(matrices)


def _apply_sorted(
    images: Tensor, magnitudes: Tensor, numbers: Tensor, sizes: list[int], changes: Changes
) -> Tensor:  # fmt: skip
    """Apply each operation to its slice; the warps share one call."""
    parts, strengths = torch.split(images, sizes), torch.split(magnitudes, sizes)
    done = []
    for change, part, strength in zip(changes, parts, strengths, strict=True):
        if len(part) and POOL[change.name].matrix is None:
            done.append(POOL[change.name].apply(part, strength))
    first = sum(map(len, done))
    return torch.cat([*done, geometry.sample(images[first:], numbers[first:])])

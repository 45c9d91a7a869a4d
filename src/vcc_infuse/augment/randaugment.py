"""RandAugment (Cubuk et al., 2020) as FixMatch uses it: three of fourteen operations, random magnitudes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..utils.device import send
from . import color, geometry


class Operation(NamedTuple):
    """A range of magnitudes, and either a function of (images, magnitudes) or the matrices of a warp."""

    low: float = 0.0
    high: float = 0.0
    apply: Callable[[Tensor, Tensor], Tensor] | None = None
    matrix: Callable[[Tensor, int, int], Tensor] | None = None


POOL: dict[str, Operation] = {
    "identity": Operation(apply=color.identity),
    "autocontrast": Operation(apply=color.autocontrast),
    "equalize": Operation(apply=color.equalize),
    "posterize": Operation(4, 9, apply=color.posterize),  # truncated: 4…8 bits, each equally likely
    "solarize": Operation(0, 256, apply=color.solarize),
    "brightness": Operation(0.05, 0.95, apply=color.brightness),
    "contrast": Operation(0.05, 0.95, apply=color.contrast),
    "color": Operation(0.05, 0.95, apply=color.color),
    "sharpness": Operation(0.05, 0.95, apply=color.sharpness),
    "rotate": Operation(-30, 30, matrix=geometry.rotation),
    "shear_x": Operation(-0.3, 0.3, matrix=partial(geometry.shear, place=1)),
    "shear_y": Operation(-0.3, 0.3, matrix=partial(geometry.shear, place=3)),
    "translate_x": Operation(-0.3, 0.3, matrix=partial(geometry.shift, place=2)),
    "translate_y": Operation(-0.3, 0.3, matrix=partial(geometry.shift, place=5)),
}


class Change(NamedTuple):
    """An operation of the pool, and the range from which its magnitude is drawn."""

    name: str
    low: float
    high: float


Changes = tuple[Change, ...]


class DrawnChanges(NamedTuple):
    """What happens to each image: indices into the changes to choose from, and their magnitudes, both `(draws, batch)`.

    Both stay on the CPU, where the work is sorted: asking a GPU how many images each operation has would stall it.
    """

    operations: Tensor
    magnitudes: Tensor


def draw_changes(batch: int, draws: int, changes: Changes) -> DrawnChanges:
    """Draw changes with replacement and magnitudes uniform over each one's range."""
    operations = torch.randint(len(changes), (draws, batch))
    ends = torch.tensor([(change.low, change.high) for change in changes])
    low, high = ends[operations].unbind(-1)
    return DrawnChanges(operations, low + (high - low) * torch.rand(draws, batch))


def apply_changes(images: Tensor, drawn: DrawnChanges, changes: Changes) -> Tensor:
    """Change uint8 images B,C,H,W, one draw after the other; warps must be the last of the changes.

    Before each draw the images are sorted by operation, so that every operation runs once, on a slice. What can be
    computed for all draws is computed first: small batches are mostly overhead.
    """
    device = images.device
    draws = len(drawn.operations)
    order = drawn.operations.argsort(1)
    back = order.argsort(1)
    moves = send(torch.cat([order[:1], back[:-1].gather(1, order[1:]), back[-1:]]), device)
    magnitudes = send(drawn.magnitudes.gather(1, order), device)
    numbers = send(_warp_numbers(drawn, changes, *images.shape[2:])[torch.arange(draws).unsqueeze(1), order], device)
    kinds = torch.arange(draws).unsqueeze(1) * len(changes) + drawn.operations
    sizes = torch.bincount(kinds.flatten(), minlength=draws * len(changes)).view(draws, -1).tolist()
    for draw in range(draws):
        images = images.index_select(0, moves[draw])
        images = _apply_sorted(images, magnitudes[draw], numbers[draw], sizes[draw], changes)
    return images.index_select(0, moves[-1])


def _warp_numbers(drawn: DrawnChanges, changes: Changes, height: int, width: int) -> Tensor:
    """The numbers of `geometry.sample` for every draw and image, draws×B,2,3; zeros where there is no warp."""
    matrices = torch.zeros(*drawn.operations.shape, 6, dtype=torch.float64)
    for number, change in enumerate(changes):
        matrix = POOL[change.name].matrix
        if matrix is not None:
            here = (drawn.operations == number).nonzero(as_tuple=True)
            matrices[here] = matrix(drawn.magnitudes[here], height, width)
    return geometry.fixed_point(matrices)


def _apply_sorted(images: Tensor, magnitudes: Tensor, numbers: Tensor, sizes: list[int], changes: Changes) -> Tensor:
    """Apply each operation to its slice; the warps share one call."""
    done = []
    for change, part, strength in zip(changes, torch.split(images, sizes), torch.split(magnitudes, sizes), strict=True):
        apply = POOL[change.name].apply
        if len(part) and apply is not None:
            done.append(apply(part, strength))
    first = sum(map(len, done))
    return torch.cat([*done, geometry.sample(images[first:], numbers[first:])])

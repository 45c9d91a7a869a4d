"""The views of a raw batch, normalized: plain (evaluation), weak and strong.

A strong view can be made later, and for some rows only. What is random about each image, and which slot of a bank is
read, is drawn for all rows at once, so that a row looks the same whichever others are made. Noise is drawn with the
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from ..utils.device import send, unit_features
from .geometry import Boxes, Crops, crop, cut, sample_boxes, sample_crops, sample_turns, turn
from .randaugment import DrawnChanges, apply_changes, draw_changes
from .recipe import Augment, Recipe, read_augment

Statistics = Sequence[float] | Tensor  # one number per channel or feature
Rows = Tensor | slice
MakeRows = Callable[[Rows], Tensor]


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's CPU kernels on the calling thread only; work on other devices is not affected."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Views:
    """Selects a view by name; mean and std follow the batch to its device."""

    def __init__(self, mean: Statistics, std: Statistics) -> None:
        self.mean = torch.as_tensor(mean, dtype=torch.float32)
        std = torch.as_tensor(std, dtype=torch.float32)
        self.std = torch.where(std > 0, std, 1.0)  # a constant feature has nothing to scale

    def __call__(self, name: str, raw: Tensor) -> Tensor:
        """The view called `name`; a suffix such as _2 only names another random draw (weak_2)."""
        kind = name.split("_")[0]
        if kind not in ("plain", "weak", "strong"):
            raise UserError(f"view {name!r} is unknown: use plain, weak, strong, or a numbered one like weak_2")
        view: Tensor = getattr(self, kind)(raw)
        return view

    def strong_later(self, raw: Tensor) -> MakeRows:
        """A function that makes rows of the strong view when they are wanted."""
        return lambda rows: self("strong", raw[rows])

    def _follow(self, raw: Tensor) -> None:
        self.mean = self.mean.to(raw.device)
        self.std = self.std.to(raw.device)


class Draws(NamedTuple):
    """What is random about a view of a batch of images, by recipe; None for what the recipe leaves out."""

    crops: Crops
    turns: Tensor | None
    changes: DrawnChanges | None
    boxes: Boxes | None

    @classmethod
    def sample(cls, raw: Tensor, recipe: Recipe, flip: bool) -> Draws:
        """Draw for raw images."""
        batch, height, width = raw.shape[:3]
        device = raw.device
        return cls(
            sample_crops(batch, height, width, device, flip and recipe.flip, recipe.crop),
            sample_turns(batch, height, width, device) if recipe.turns else None,
            draw_changes(batch, recipe.draws, recipe.changes) if recipe.changes else None,
            sample_boxes(batch, height, width, device, recipe.cutout) if recipe.cutout else None,
        )

    def at(self, rows: Rows) -> Draws:
        """Those of some images."""
        on_cpu = rows if isinstance(rows, slice) else rows.cpu()  # where the drawn changes stay
        return Draws(
            Crops(*(values[rows] for values in self.crops)),
            None if self.turns is None else self.turns[rows],
            None if self.changes is None else DrawnChanges(*(values[:, on_cpu] for values in self.changes)),
            None if self.boxes is None else Boxes(*(edges[rows] for edges in self.boxes)),
        )


class ImageViews(_Views):
    """Views of uint8 images `(batch, height, width, channels)`, as floats `(batch, channels, height, width)`.

    `mean` and `std` are those of values in 0…1. Without `flip` no image is mirrored, whatever `augment` says.
    """

    def __init__(self, mean: Statistics, std: Statistics, flip: bool = True, augment: Augment = "natural") -> None:
        super().__init__(mean, std)
        self.flip = flip
        self.augment = augment
        self.recipes = read_augment(augment)

    @one_thread()
    def plain(self, raw: Tensor) -> Tensor:
        """The images as they are."""
        self._check(raw)
        return self._normalized(raw.permute(0, 3, 1, 2).contiguous())

    def weak(self, raw: Tensor) -> Tensor:
        """By the weak recipe: usually a random crop with reflected borders and, for half of the images, a flip."""
        return self._later(raw, self.recipes.weak)(slice(None))

    def strong(self, raw: Tensor) -> Tensor:
        """By the strong recipe: usually the weak geometry, then RandAugment, then Cutout."""
        return self.strong_later(raw)(slice(None))

    def strong_later(self, raw: Tensor) -> MakeRows:
        """A function that makes strong views of some of the images when they are wanted."""
        return self._later(raw, self.recipes.strong)

    def _later(self, raw: Tensor, recipe: Recipe) -> MakeRows:
        self._check(raw)
        draws = Draws.sample(raw, recipe, self.flip)
        return lambda rows: self._made(raw[rows], draws.at(rows), recipe)

    @one_thread()
    def _made(self, raw: Tensor, draws: Draws, recipe: Recipe) -> Tensor:
        images = crop(raw.permute(0, 3, 1, 2).contiguous(), draws.crops)
        images = images if draws.turns is None else turn(images, draws.turns)
        images = images if draws.changes is None else apply_changes(images, draws.changes, recipe.changes)
        return self._normalized(images if draws.boxes is None else cut(images, draws.boxes))

    def _check(self, raw: Tensor) -> None:
        channels = len(self.mean)
        if raw.dtype != torch.uint8 or raw.dim() != 4 or raw.shape[3] != channels:
            raise UserError(f"raw images are {raw.dtype} {tuple(raw.shape)}: give uint8 B,H,W,C with C {channels}")

    def _normalized(self, images: Tensor) -> Tensor:
        self._follow(images)
        batch, channels, height, width = images.shape
        scale = 1 / (255 * self.std)
        shift = -self.mean / self.std
        rows = torch.stack(images.unbind(1), dim=-1).view(-1, width * channels).float()
        rows.mul_(scale.repeat(width)).add_(shift.repeat(width))  # whole rows: loops over 3 channels are slow
        return rows.view(batch, height, width, channels).permute(0, 3, 1, 2)


class VectorViews(_Views):
    """Views of float vectors `(batch, features)`: Gaussian noise for weak, more noise and missing features for strong.

    Noise is in standard deviations of each feature.
    """

    weak_noise = 0.05
    strong_noise = 0.2
    dropout = 0.2  # share of the features of a strong view that is replaced by the mean

    def plain(self, raw: Tensor) -> Tensor:
        """The standardized vectors."""
        self._follow(raw)
        return (raw.float() - self.mean) / self.std

    def weak(self, raw: Tensor) -> Tensor:
        """A little noise."""
        values = self.plain(raw)
        return values + self.weak_noise * torch.randn_like(values)

    def strong(self, raw: Tensor) -> Tensor:
        """More noise; a random part of the features is replaced by the feature's mean."""
        values = self.plain(raw)
        values = values + self.strong_noise * torch.randn_like(values)
        return values.masked_fill_(torch.rand_like(values) < self.dropout, 0.0)


@dataclass(frozen=True, eq=False)
class SlotRows:
    """Rows of a bank, of which a view reads only the slot that it draws."""

    x: np.ndarray
    rows: np.ndarray
    device: torch.device

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Rows) -> SlotRows:
        return SlotRows(self.x, self.rows[rows if isinstance(rows, slice) else rows.cpu().numpy()], self.device)

    def at(self, slots: Tensor) -> Tensor:
        """One slot of each row."""
        return send(torch.from_numpy(self.x[self.rows, slots.numpy()]), self.device)


class BankViews(_Views):
    """Views drawn from the slots of a bank, `(batch, slots, features)`: one plain view, then weak, then strong ones.

    `slots` are the numbers of weak and strong views, to which `noise` is added, in standard deviations of each feature.
    """

    def __init__(self, mean: Statistics, std: Statistics, slots: tuple[int, int], noise: float = 0.0) -> None:
        super().__init__(mean, std)
        self.slots = slots
        self.noise = noise

    def plain(self, raw: Tensor | SlotRows) -> Tensor:
        """The features of the image as it is."""
        if isinstance(raw, SlotRows):
            return self._scaled(raw.at(torch.zeros(len(raw), dtype=torch.long)))
        return self._scaled(raw[:, 0] if raw.ndim == 3 else raw)

    def weak(self, raw: Tensor | SlotRows) -> Tensor:
        """A random weak slot per row; the plain one where there is none."""
        return self._drawn(raw, self._slots(len(raw), 1, self.slots[0]))

    def strong(self, raw: Tensor | SlotRows) -> Tensor:
        """A random strong slot per row; a weak one where there is none."""
        return self.strong_later(raw)(slice(None))

    def strong_later(self, raw: Tensor | SlotRows) -> MakeRows:
        """A function that reads strong slots of some rows when they are wanted."""
        weak, strong = self.slots
        slots = self._slots(len(raw), 1 + weak, strong) if strong else self._slots(len(raw), 1, weak)
        return lambda rows: self._drawn(raw[rows], slots[rows if isinstance(rows, slice) else rows.cpu()])

    def _slots(self, rows: int, first: int, count: int) -> Tensor:
        """A random one of `count` slots from `first` on; the plain one where there is none."""
        return (first if count else 0) + torch.randint(count or 1, (rows,))

    def _drawn(self, raw: Tensor | SlotRows, slots: Tensor) -> Tensor:
        if isinstance(raw, SlotRows):
            return self._scaled(raw.at(slots), self.noise)
        return self._scaled(raw[torch.arange(len(raw), device=raw.device), slots.to(raw.device)], self.noise)

    def _scaled(self, features: Tensor, noise: float = 0.0) -> Tensor:
        self._follow(features)
        features = features.float()
        if noise:
            features = features + noise * self.std * torch.randn_like(features)
        return unit_features(features, self.mean, self.std)

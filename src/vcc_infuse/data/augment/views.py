"""The views of a raw batch, normalized: plain (evaluation), weak and strong."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...errors import UserError
from ...utils.numerics import unit_features
from .cutout import cut, sample_boxes
from .geometry import crop, sample_crops
from .kernels import one_thread
from .randaugment import apply_plan, sample_plan


class _Views:
    """Selects a view by name; mean and std follow the batch to its device."""

    def __init__(self, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor) -> None:
        self.mean = torch.as_tensor(mean, dtype=torch.float32)
        std = torch.as_tensor(std, dtype=torch.float32)
        self.std = torch.where(std > 0, std, 1.0)  # a constant feature has nothing to scale

    def __call__(self, name: str, raw: Tensor) -> Tensor:
        """The view called ``name``; a suffix such as _2 only names another random draw (weak_2)."""
        kind = name.split("_")[0]
        if kind not in ("plain", "weak", "strong"):
            raise UserError(f"view {name!r} is unknown: use plain, weak, strong, or a numbered one like weak_2")
        view: Tensor = getattr(self, kind)(raw)
        return view

    def _follow(self, raw: Tensor) -> None:
        self.mean, self.std = self.mean.to(raw.device), self.std.to(raw.device)


class ImageViews(_Views):
    """Views of uint8 images B,H,W,C (C is 1 or 3); ``mean`` and ``std`` per channel for values in 0…1."""

    def __init__(self, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor, flip: bool = True) -> None:
        super().__init__(mean, std)
        self.flip = flip

    @one_thread()
    def plain(self, raw: Tensor) -> Tensor:
        """The images as they are."""
        return self._normalized(_planes(raw))

    @one_thread()
    def weak(self, raw: Tensor) -> Tensor:
        """A random crop with reflected borders and, for half of the images, a horizontal flip."""
        return self._normalized(self._moved(raw))

    @one_thread()
    def strong(self, raw: Tensor) -> Tensor:
        """The weak geometry, then RandAugment, then Cutout."""
        images = self._moved(raw)
        batch, _, height, width = images.shape
        images = apply_plan(images, sample_plan(batch, images.device))
        return self._normalized(cut(images, sample_boxes(batch, height, width, images.device)))

    def _moved(self, raw: Tensor) -> Tensor:
        images = _planes(raw)
        batch, _, height, width = images.shape
        return crop(images, sample_crops(batch, height, width, images.device, self.flip))

    def _normalized(self, images: Tensor) -> Tensor:
        self._follow(images)
        batch, channels, height, width = images.shape
        scale, shift = 1 / (255 * self.std), -self.mean / self.std
        rows = torch.stack(images.unbind(1), dim=-1).view(-1, width * channels).float()
        rows.mul_(scale.repeat(width)).add_(shift.repeat(width))  # whole rows: loops over 3 channels are slow
        return rows.view(batch, height, width, channels).permute(0, 3, 1, 2)


class VectorViews(_Views):
    """Views of float vectors B,D: noise for weak, more noise and missing features for strong."""

    def __init__(
        self,
        mean: Sequence[float] | Tensor,
        std: Sequence[float] | Tensor,
        weak_noise: float = 0.05,
        strong_noise: float = 0.2,
        dropout: float = 0.2,
    ) -> None:
        super().__init__(mean, std)
        self.weak_noise, self.strong_noise, self.dropout = weak_noise, strong_noise, dropout

    def plain(self, raw: Tensor) -> Tensor:
        """The standardized vectors."""
        self._follow(raw)
        return (raw.float() - self.mean) / self.std

    def weak(self, raw: Tensor) -> Tensor:
        """A little Gaussian noise, in standard deviations."""
        values = self.plain(raw)
        return values + self.weak_noise * torch.randn_like(values)

    def strong(self, raw: Tensor) -> Tensor:
        """More noise; a random part of the features is replaced by the feature's mean."""
        values = self.plain(raw)
        values = values + self.strong_noise * torch.randn_like(values)
        return values.masked_fill_(torch.rand_like(values) < self.dropout, 0.0)


class BankViews(_Views):
    """Views drawn from the slots of a bank, B,V,D: one plain view, then weak ones, then strong ones.

    `noise` is Gaussian, in standard deviations of each feature, and added to weak and strong views.
    """

    def __init__(
        self,
        mean: Sequence[float] | Tensor,
        std: Sequence[float] | Tensor,
        slots: tuple[int, int],
        noise: float = 0.0,
    ) -> None:
        super().__init__(mean, std)
        self.slots, self.noise = slots, noise

    def plain(self, raw: Tensor) -> Tensor:
        """The features of the image as it is."""
        return self._scaled(raw[:, 0] if raw.ndim == 3 else raw)

    def weak(self, raw: Tensor) -> Tensor:
        """A random weak slot per row; the plain one where there is none."""
        return self._drawn(raw, 1, self.slots[0])

    def strong(self, raw: Tensor) -> Tensor:
        """A random strong slot per row; a weak one where there is none."""
        return self._drawn(raw, 1 + self.slots[0], self.slots[1]) if self.slots[1] else self.weak(raw)

    def _drawn(self, raw: Tensor, first: int, count: int) -> Tensor:
        first, count = (first, count) if count else (0, 1)
        slots = first + torch.randint(count, (len(raw),), device=raw.device)
        return self._scaled(raw[torch.arange(len(raw), device=raw.device), slots], self.noise)

    def _scaled(self, features: Tensor, noise: float = 0.0) -> Tensor:
        self._follow(features)
        features = features.float()
        if noise:
            features = features + noise * self.std * torch.randn_like(features)
        return unit_features(features, self.mean, self.std)


def _planes(raw: Tensor) -> Tensor:
    """B,H,W,C as B,C,H,W."""
    if raw.dtype != torch.uint8 or raw.dim() != 4 or raw.shape[3] not in (1, 3):
        raise UserError(f"raw images are {raw.dtype} {tuple(raw.shape)}: give uint8 B,H,W,C with C 1 or 3")
    return raw.permute(0, 3, 1, 2).contiguous()

"""Strong views per image: ours against PIL, torchvision and, if it is installed, kornia."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import v2

from vcc_infuse.augment.views import ImageViews
from vcc_infuse.utils.memory import keep_freed_memory

from . import pil
from .page import Part
from .turns import Maker, Work, take_turns


def measure_augment(rounds: int) -> Part:
    """Small and medium images, in the batches of 16 and 64 labeled images."""
    part = Part("augment", "Strong views of a batch: crop, flip, three random operations, Cutout, normalization")
    for images, size in ((112, 32), (448, 32), (112, 96)):
        raw = torch.randint(0, 256, (images, size, size, 3), dtype=torch.uint8)
        title = f"{images} images of {size} px"
        part.comparisons.append(take_turns(title, variants(raw), 3 * rounds, per="image", count=images))
    part.notes.append(
        "torchvision and kornia draw from their own operations, which are not exactly FixMatch's. kornia draws three "
        "for the whole batch, the others for each image."
    )
    if find_spec("kornia") is None:
        part.notes.append("kornia is not installed and was left out.")
    return part


def variants(raw: Tensor) -> dict[str, Maker]:
    """All ways to make strong views of these images; each maker returns the work."""

    def ours() -> Work:
        keep_freed_memory()  # as the command line does
        views = ImageViews(pil.MEAN, pil.STD)
        return lambda _: views.strong(raw)

    def by_pil() -> Work:
        return lambda _: pil.batch(raw.numpy(), pil.strong)

    def by_torchvision() -> Work:
        transform = torchvision_strong(raw.shape[1])
        planes = raw.permute(0, 3, 1, 2).contiguous()
        return lambda _: torch.stack([transform(image) for image in planes])

    def by_kornia() -> Work:
        transform = kornia_strong(raw.shape[1])
        planes = raw.permute(0, 3, 1, 2).contiguous().float() / 255
        return lambda _: transform(planes)

    kornia = {"kornia": by_kornia} if find_spec("kornia") else {}
    return {"PIL": by_pil, "torchvision": by_torchvision, **kornia, "ours": ours}


def torchvision_strong(size: int) -> Any:
    """Image by image, so that each draws operations of its own."""
    return v2.Compose([
        v2.RandomCrop(size, padding=size // 8, padding_mode="reflect"), v2.RandomHorizontalFlip(), v2.RandAugment(3),
        v2.ToDtype(torch.float32, scale=True), v2.Normalize(pil.MEAN, pil.STD), v2.RandomErasing(1.0, (0.01, 0.25)),
    ])  # fmt: skip


def kornia_strong(size: int) -> Any:
    """kornia's RandAugment of a batch of floats."""
    augmentation = import_module("kornia.augmentation")
    return augmentation.AugmentationSequential(
        augmentation.RandomCrop((size, size), padding=size // 8, padding_mode="reflect"),
        augmentation.RandomHorizontalFlip(),
        augmentation.auto.RandAugment(3, 10),
        augmentation.Normalize(torch.tensor(pil.MEAN), torch.tensor(pil.STD)),
        augmentation.RandomErasing(p=1.0, scale=(0.01, 0.25)),
    )

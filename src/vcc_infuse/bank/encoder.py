"""A frozen network at the speed of its hardware: engine, batch size, memory layout and number format."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..augment.views import ImageViews
from ..utils.device import fast_bf16
from ..utils.seeding import seed_chunk
from .onnx_engine import Engine

LARGEST_HALF = 65504.0  # of float16
CPU_SIZES = (8, 16, 32, 64)  # batch sizes to try
GPU_SIZES = (64, 128, 256)
ROUNDS = 3


class ForwardOptions(NamedTuple):
    """How batches go through the network. Features depend on it in their last digits."""

    batch_size: int
    channels_last: bool = True
    bf16: bool = False
    engine: Engine = "torch"

    @classmethod
    def default(cls, device: torch.device, batch_size: int | None = None) -> ForwardOptions:
        """What is good for most networks. On CPUs a small batch stays in the processor's cache."""
        return cls(batch_size or (16 if device.type == "cpu" else 256), bf16=fast_bf16(device))

    @property
    def memory_format(self) -> torch.memory_format:
        """The order of a batch's numbers in memory."""
        return torch.channels_last if self.channels_last else torch.contiguous_format


@torch.no_grad()
def features(encoder: nn.Module, images: Tensor, options: ForwardOptions) -> Tensor:
    """Features `(images, features)` of normalized images as float16; larger numbers are clipped to its range."""
    batches = torch.split(images, options.batch_size)
    with torch.autocast(images.device.type, torch.bfloat16, enabled=options.bf16):
        rows = [encoder(batch.contiguous(memory_format=options.memory_format)) for batch in batches]
    return torch.cat(rows).float().clamp_(-LARGEST_HALF, LARGEST_HALF).half()


@dataclass
class FrozenNetwork:
    """A network with the views it is shown; it can be sent to other machines."""

    encoder: nn.Module  # in PyTorch, or from `onnx_encoder`
    views: ImageViews
    options: ForwardOptions

    def __post_init__(self) -> None:
        self.encoder = self.encoder.eval().to(memory_format=self.options.memory_format)

    def to(self, device: torch.device) -> FrozenNetwork:
        """The same network on a device of this machine."""
        return FrozenNetwork(self.encoder.to(device), self.views, self.options)

    def embed(
        self, device: torch.device, raw: np.ndarray, names: Sequence[str], key: tuple[int, ...], rows: np.ndarray | None
    ) -> np.ndarray:
        """Features of the views of raw images, `(images, views, features)`; the random state stays as it was.

        Views are drawn for all images from the seed `key`, but only `rows` of them go through the network, so that an
        image has the same views whichever others are wanted. The next view is made while the network is busy.
        """
        slots = []
        wanted = slice(None) if rows is None else torch.from_numpy(rows).to(device)
        with torch.random.fork_rng([device] if device.type == "cuda" else []), ThreadPoolExecutor(1) as ahead:
            seed_chunk(*key)
            images = torch.from_numpy(np.ascontiguousarray(raw)).to(device)
            pending = ahead.submit(self.views, names[0], images)
            for name in (*names[1:], None):
                view = pending.result()
                if name is not None:
                    pending = ahead.submit(self.views, name, images)
                slots.append(features(self.encoder, view[wanted], self.options).cpu())
        return torch.stack(slots, 1).numpy()


def seconds_per_image(encoder: nn.Module, images: Tensor) -> float:
    """Time of a small batch of normalized images in PyTorch, by the better of two."""
    options = ForwardOptions.default(images.device)
    times = []
    for _ in range(2):
        began = time.perf_counter()
        features(encoder, images, options).cpu()
        times.append(time.perf_counter() - began)
    return min(times) / len(images)


def fastest_options(encoder: nn.Module, images: Tensor) -> ForwardOptions:
    """The fastest batch size and memory layout for normalized images, by the best of a few alternating rounds."""
    sizes = CPU_SIZES if images.device.type == "cpu" else GPU_SIZES
    images = images[: max(sizes)]
    candidates = [ForwardOptions.default(images.device, size) for size in sizes if size <= len(images)]
    best = _fastest(candidates, encoder, images) if candidates else ForwardOptions.default(images.device)
    return _fastest([best, best._replace(channels_last=False)], encoder, images)


def _fastest(candidates: Sequence[ForwardOptions], encoder: nn.Module, images: Tensor) -> ForwardOptions:
    seconds = dict.fromkeys(candidates, float("inf"))
    for number in range(ROUNDS):
        for options in candidates:
            network = encoder.to(memory_format=options.memory_format)
            began = time.perf_counter()
            features(network, images, options).cpu()  # a copy waits for the device
            if number:  # the first round warms up
                seconds[options] = min(seconds[options], time.perf_counter() - began)
    return min(seconds, key=lambda options: seconds[options])

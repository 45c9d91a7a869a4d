"""A frozen network at the speed of its hardware: batch size, memory layout and number format are measured."""

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

HALF = 65504.0
"""The largest float16 number."""
CPU_SIZES, GPU_SIZES = (8, 16, 32, 64), (64, 128, 256)
"""Batch sizes that are tried."""
ROUNDS = 3


class Plan(NamedTuple):
    """How batches go through the network. Features depend on it in their last digits."""

    batch_size: int
    channels_last: bool = True
    bf16: bool = False

    @classmethod
    def default(cls, device: torch.device, batch_size: int | None = None) -> Plan:
        """What is good for most networks. On CPUs a small batch stays in the processor's cache."""
        return cls(batch_size or (16 if device.type == "cpu" else 256), bf16=fast_bf16(device))


def layout(plan: Plan) -> torch.memory_format:
    """The order of a batch's numbers in memory."""
    return torch.channels_last if plan.channels_last else torch.contiguous_format


@torch.no_grad()
def features(encoder: nn.Module, images: Tensor, plan: Plan) -> Tensor:
    """Features of normalized images as float16; larger numbers are cut to its range."""
    rows = []
    with torch.autocast(images.device.type, torch.bfloat16, enabled=plan.bf16):
        for piece in torch.split(images, plan.batch_size):
            rows.append(encoder(piece.contiguous(memory_format=layout(plan))))
    return torch.cat(rows).float().clamp_(-HALF, HALF).half()


@dataclass
class FrozenNetwork:
    """A network with the views it is shown; it can be sent to other machines."""

    encoder: nn.Module
    views: ImageViews
    plan: Plan

    def __post_init__(self) -> None:
        self.encoder = self.encoder.eval().to(memory_format=layout(self.plan))

    def embed(
        self, raw: np.ndarray, names: Sequence[str], key: tuple[int, ...], rows: np.ndarray | None, device: torch.device
    ) -> np.ndarray:
        """Features of the views of raw images, images × views × D; the random state stays as it was.

        Views are drawn for all images from the seed `key`, but only `rows` of them go through the network, so that an
        image has the same views whichever others are wanted. The next view is made while the network is busy.
        """
        slots, wanted = [], slice(None) if rows is None else torch.from_numpy(rows).to(device)
        with torch.random.fork_rng([device] if device.type == "cuda" else []), ThreadPoolExecutor(1) as ahead:
            seed_chunk(*key)
            images = torch.from_numpy(np.ascontiguousarray(raw)).to(device)
            made = ahead.submit(self.views, names[0], images)
            for name in (*names[1:], None):
                view = made.result()
                if name is not None:
                    made = ahead.submit(self.views, name, images)
                slots.append(features(self.encoder, view[wanted], self.plan).cpu())
        return torch.stack(slots, 1).numpy()


def fastest_plan(encoder: nn.Module, images: Tensor) -> Plan:
    """The fastest batch size and memory layout for normalized images, by the best of a few alternating rounds."""
    sizes = CPU_SIZES if images.device.type == "cpu" else GPU_SIZES
    images = images[: max(sizes)]
    plans = [Plan.default(images.device, size) for size in sizes if size <= len(images)]
    best = _fastest(plans, encoder, images) if plans else Plan.default(images.device)
    return _fastest([best, best._replace(channels_last=False)], encoder, images)


def _fastest(plans: Sequence[Plan], encoder: nn.Module, images: Tensor) -> Plan:
    best = dict.fromkeys(plans, float("inf"))
    for number in range(ROUNDS):
        for plan in plans:
            network = encoder.to(memory_format=layout(plan))
            began = time.perf_counter()
            features(network, images, plan).cpu()  # a copy waits for the device
            if number:  # the first round warms up
                best[plan] = min(best[plan], time.perf_counter() - began)
    return min(best, key=lambda plan: best[plan])

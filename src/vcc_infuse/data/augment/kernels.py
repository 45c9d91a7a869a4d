"""Number formats: the widest float of a device, and the way back to bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def to_bytes(values: Tensor) -> Tensor:
    """Floats in 0…255, truncated to uint8; by way of int32, which on CPU is three times faster."""
    return values.to(torch.int32).to(torch.uint8)


def per_image(numbers: Tensor) -> Tensor:
    """One number per image, shaped to broadcast over B,C,H,W."""
    return numbers.view(-1, 1, 1, 1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's CPU kernels on the calling thread alone; work on other devices is not touched."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

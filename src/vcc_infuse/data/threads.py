"""One CPU thread for work made of many short kernels.

Augmenting a batch runs hundreds of kernels of some 20 µs. Sharing each out among threads gains little, and where
another process wants a core, every kernel waits for the slowest thread: up to fifty times slower.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's CPU kernels on the calling thread alone; work on other devices is not touched."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

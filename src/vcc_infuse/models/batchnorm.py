"""BatchNorm's running statistics: frozen for a forward that must not leave a trace, quick to settle in a short run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def batchnorms(model: nn.Module) -> list[_BatchNorm]:
    """All BatchNorm layers of a model."""
    return [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Normalise by the batch as in training, yet leave the running statistics as they were."""
    layers = [layer for layer in batchnorms(model) if layer.track_running_stats]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True

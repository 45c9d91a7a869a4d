"""Running statistics that follow quickly at the start of a run."""

from __future__ import annotations

from torch.nn.modules.batchnorm import _BatchNorm

from ..models import Classifier
from ..models.classifier import decay_at
from .optimizer import trained_norms


def bn_momentum(model: Classifier) -> dict[_BatchNorm, float]:
    """Each BatchNorm layer's own momentum, for `warm_up_bn_momentum`."""
    return {layer: layer.momentum for layer in trained_norms(model) if layer.momentum is not None}


def warm_up_bn_momentum(momentum: dict[_BatchNorm, float], step: int) -> None:
    """Let running statistics follow quickly at first, with the layer's own momentum as the limit."""
    for layer, limit in momentum.items():
        layer.momentum = max(limit, 1 - decay_at(step, 1.0))

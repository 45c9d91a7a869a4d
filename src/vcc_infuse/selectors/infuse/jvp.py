"""Influence through all parameters: one forward-mode pass computes ⟨∇loss, v⟩ for every example at once.

⟨∇ℓ(u), v⟩ is the derivative of ℓ(u) along v, so no per-example gradient is formed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...types import Outputs
from ..pool import Pool
from ..pool_chunk import PoolChunk
from .support import SupportGradient

Tangent = dict[str, Tensor]


def full_direction(pool: Pool, support: SupportGradient) -> Tangent:
    """The gradient of the support loss in all trainable parameters.

    The support set passes through the backbone a second time in chunks, because Mixup pairs may cross chunks.
    """
    parameters = {name: p.detach() for name, p in pool.model.named_parameters()}
    backbone = {name: p for name, p in parameters.items() if not name.startswith("head.")}
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for rows, x in support.chunks:
        for name, gradient in _backbone_gradient(pool.model, backbone, x, support.features[rows]).items():
            total[name] += gradient
    total["head.weight"] += support.head[:, :-1]
    if "head.bias" in total:
        total["head.bias"] += support.head[:, -1]
    frozen = set(parameters) - set(pool.trainable) if pool.trainable else set()
    return {name: torch.zeros_like(v) if name in frozen else v for name, v in total.items()}


def _backbone_gradient(model: nn.Module, parameters: Tangent, x: Tensor, back: Tensor) -> Tangent:
    """The gradient in the parameters, given the gradient in the features of x."""

    def features(moved: Tangent) -> Tensor:
        outputs: Outputs = functional_call(model, moved, (x,))
        return outputs.features

    gradient: Tangent = vjp(features, parameters)[1](back)[0]
    return gradient


def directional_derivatives(model: nn.Module, tangent: Tangent, chunk: PoolChunk) -> Tensor:
    """⟨∇ weight·CE(u), tangent⟩ for each example of a chunk; zero where the weight is zero."""
    derivatives, wanted = torch.zeros_like(chunk.weights), chunk.weights > 0
    if not wanted.any():
        return derivatives
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    images, targets, weights = chunk.images[wanted], chunk.targets[wanted], chunk.weights[wanted]

    def losses(moved: Tangent) -> Tensor:
        outputs: Outputs = functional_call(model, moved, (images,))
        return -weights * (targets * outputs.logits.float().log_softmax(1)).sum(1)

    device = images.device.type
    # Fused attention has no forward-mode rule, and half precision is too coarse for the derivative.
    with sdpa_kernel(SDPBackend.MATH), torch.autocast(device, enabled=False):
        derivatives[wanted] = jvp(losses, (parameters,), (tangent,))[1]
    return derivatives

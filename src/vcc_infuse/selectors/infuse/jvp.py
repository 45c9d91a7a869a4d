"""Influence through all parameters: one forward-mode pass gives every example's ⟨∇loss, v⟩ at once.

⟨∇ℓ(u), v⟩ is the derivative of ℓ(u) along v, so no per-example gradient is ever formed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...types import Outputs
from ..pool import Pool
from ..pool_chunk import Chunk

Tangent = dict[str, Tensor]


def full_direction(pool: Pool, head: Tensor, back: Tensor, views: int = 1) -> Tangent:
    """The gradient in all trainable parameters, from the head's part and the gradient in the labeled features.

    The labeled set passes the backbone a second time, a chunk after the other; Mixup pairs may cross chunks.
    """
    parameters = {name: p.detach() for name, p in pool.model.named_parameters()}
    backbone = {name: p for name, p in parameters.items() if not name.startswith("head.")}
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for rows, x, _ in pool.labeled_chunks(views):
        for name, gradient in _pulled_back(pool.model, backbone, x, back[rows]).items():
            total[name] += gradient
    total["head.weight"] += head[:, :-1]
    if "head.bias" in total:
        total["head.bias"] += head[:, -1]
    frozen = set(parameters) - set(pool.trainable) if pool.trainable else set()
    return {name: torch.zeros_like(v) if name in frozen else v for name, v in total.items()}


def _pulled_back(model: nn.Module, parameters: Tangent, x: Tensor, back: Tensor) -> Tangent:
    """The gradient in the parameters, from the gradient in the features of x."""

    def features(moved: Tangent) -> Tensor:
        outputs: Outputs = functional_call(model, moved, (x,))
        return outputs.features

    pulled = vjp(features, parameters)[1](back)
    return pulled[0]


def influence(model: nn.Module, tangent: Tangent, chunk: Chunk) -> Tensor:
    """⟨∇ weight·CE(u), tangent⟩ for each example of a chunk; zero where the weight is zero."""
    score, wanted = torch.zeros_like(chunk.weights), chunk.weights > 0
    if not wanted.any():
        return score
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    images, targets, weights = chunk.images[wanted], chunk.targets[wanted], chunk.weights[wanted]

    def losses(moved: Tangent) -> Tensor:
        outputs: Outputs = functional_call(model, moved, (images,))
        return -weights * (targets * outputs.logits.float().log_softmax(1)).sum(1)

    device = images.device.type
    # Fused attention has no forward-mode rule, and half precision would drown the derivative in rounding.
    with sdpa_kernel(SDPBackend.MATH), torch.autocast(device, enabled=False):
        score[wanted] = jvp(losses, (parameters,), (tangent,))[1]
    return score

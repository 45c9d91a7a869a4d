"""The gradient on the support set, which replaces a validation set: feature-level Mixup of labeled examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...types import Outputs
from ..head_gradients import augmented, mean_gradient
from ..pool import Pool, PoolChunk


class SupportGradient(NamedTuple):
    """Gradients of the support loss: in the head, classes × (width + 1), and in each support example's feature.

    `chunks` yields the row numbers and the network's inputs of these examples.
    """

    head: Tensor
    features: Tensor
    chunks: Iterator[tuple[np.ndarray, Tensor]]


class FeatureMixup:
    """One Mixup draw over the whole labeled set: each row is mixed with a random partner, λ ~ Beta(1, 1)."""

    def __init__(self, count: int, rng: np.random.Generator, device: torch.device | str = "cpu") -> None:
        self.partner = torch.from_numpy(rng.permutation(count)).to(device)
        self.lam = torch.from_numpy(rng.random(count)).float().to(device)[:, None]

    def __call__(self, rows: Tensor) -> Tensor:
        """λ · row + (1 − λ) · partner, for features and for one-hot labels."""
        return torch.lerp(rows[self.partner], rows, self.lam)

    def backward(self, gradient: Tensor) -> Tensor:
        """The gradient in the original rows, given the gradient in the mixed rows."""
        own = self.lam * gradient
        return own.index_add(0, self.partner, (1 - self.lam) * gradient)


def support_gradient(
    head: nn.Linear, features: Tensor, y: Tensor, draws: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Gradients of the Mixup loss averaged over `draws` draws: in the head, and in each labeled feature."""
    truth = F.one_hot(y, head.out_features).float()
    direction = torch.zeros(head.out_features, head.in_features + 1, device=features.device)
    back = torch.zeros_like(features)
    weight = head.weight.detach().float()
    bias = torch.zeros(head.out_features, device=weight.device) if head.bias is None else head.bias.detach().float()
    for _ in range(draws):
        mix = FeatureMixup(len(y), rng, features.device)
        mixed = mix(features)
        errors = F.linear(mixed, weight, bias).softmax(1) - mix(truth)
        direction += mean_gradient(errors, mixed) / draws
        back += mix.backward(errors @ weight) / (len(y) * draws)
    return direction, back


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


class GaussNewton:
    """Sums of the two factors over batches of (probabilities, features, weights)."""

    def __init__(self, batches: Iterable[tuple[Tensor, Tensor, Tensor]]) -> None:
        self.count = 0.0
        self.inputs: Tensor | float = 0.0
        self.outputs: Tensor | float = 0.0
        for probs, features, weights in batches:
            rows, p, w = augmented(features).double(), probs.double(), weights.double()
            self.inputs = self.inputs + (rows * w[:, None]).T @ rows
            self.outputs = self.outputs + torch.diag(w @ p) - (p * w[:, None]).T @ p
            self.count += float(w.sum())

    def solve(self, direction: Tensor, damping: float) -> Tensor:
        """(S + λ_S I)⁻¹ · direction · (A + λ_A I)⁻¹; each λ is `damping` times the factor's mean eigenvalue."""
        if self.count == 0:
            return direction
        left, right = (self._damped(factor, damping) for factor in (self.outputs, self.inputs))
        once = torch.linalg.solve(left, direction.double())
        solved: Tensor = torch.linalg.solve(right, once.T)
        return solved.T.to(direction.dtype)

    def _damped(self, total: Tensor | float, damping: float) -> Tensor:
        factor = torch.as_tensor(total) / self.count
        size = len(factor)
        return factor + damping * factor.trace() / size * torch.eye(size, dtype=factor.dtype, device=factor.device)

"""Losses written as plain loops over numbers: oracles for the tests of the methods."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def softmax(row: Sequence[float]) -> list[float]:
    powers = [math.exp(value - max(row)) for value in row]
    return [power / sum(powers) for power in powers]


def predictions(model: nn.Module, images: Tensor) -> list[list[float]]:
    """Probabilities from a copy of the model, so that its statistics stay unchanged."""
    with torch.no_grad():
        return [softmax(row) for row in copy.deepcopy(model)(images).logits.double().tolist()]


def cross_entropy(target: Sequence[float], probs: Sequence[float]) -> float:
    return -sum(t * math.log(p) for t, p in zip(target, probs, strict=True))


def one_hot(label: int, classes: int = 3) -> list[float]:
    return [float(label == c) for c in range(classes)]


def sharpened(probs: Sequence[float], temperature: float) -> list[float]:
    powers = [p ** (1 / temperature) for p in probs]
    return [power / sum(powers) for power in powers]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def mean_squares(one: Sequence[float], other: Sequence[float]) -> float:
    return mean([(a - b) ** 2 for a, b in zip(one, other, strict=True)])


def gradients(loss: Tensor, model: nn.Module) -> dict[str, Tensor]:
    """Gradients of all parameters that have one."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
    return {name: g for name, g in zip(names, found, strict=True) if g is not None}

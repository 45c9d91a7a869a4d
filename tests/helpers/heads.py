"""A linear head on a few examples, and gradients by autograd to compare closed forms with."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EXAMPLES = 12
CLASSES = 5
FEATURES = 7


def flat_gradient(loss: Tensor, head: nn.Linear) -> Tensor:
    """The gradient of the head's weight and bias side by side, (classes, features + 1)."""
    weight, bias = torch.autograd.grad(loss, [head.weight, head.bias], retain_graph=True)
    return torch.cat([weight, bias[:, None]], 1)


def head_problem() -> tuple[nn.Linear, Tensor, Tensor, Tensor]:
    """A head, features and labels of examples, and their weights, some of which are zero."""
    torch.manual_seed(3)
    head = nn.Linear(FEATURES, CLASSES)
    features = torch.randn(EXAMPLES, FEATURES)
    labels = torch.randint(CLASSES, (EXAMPLES,))
    weights = torch.rand(EXAMPLES)
    weights[::4] = 0
    return head, features, labels, weights

"""Classifier: a backbone and a linear head, its BatchNorm statistics, and the moving average of its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import AveragedModel

from ..errors import UserError
from ..types import Outputs


class Classifier(nn.Module):
    """A network and a linear layer on its features.

    Maps inputs `(batch, …)` to `Outputs(logits, features)`: `(batch, classes)` and `(batch, width)`.

    Args:
        backbone: computes the features.
        head: computes the logits.

    Example:
        >>> import torch
        >>> from vcc_infuse import MLP, Classifier
        >>> model = Classifier.build(MLP((8,)), (5,), classes=3)
        >>> logits, features = model(torch.zeros(2, 5))
        >>> logits.shape, features.shape
        (torch.Size([2, 3]), torch.Size([2, 8]))
    """

    def __init__(self, backbone: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.frozen_norms: list[_BatchNorm] = []
        """BatchNorm layers that always use their running statistics and never change them."""

    def forward(self, x: Tensor) -> Outputs:
        """The logits, and the features they were computed from."""
        features = self.backbone(x)
        return Outputs(self.head(features), features)

    def train(self, mode: bool = True) -> Classifier:
        """Set the mode of every layer but the frozen norms."""
        super().train(mode)
        for layer in self.frozen_norms:
            layer.eval()
        return self

    @classmethod
    def build(cls, backbone: nn.Module, shape: tuple[int, ...], classes: int) -> Classifier:
        """Set up `backbone` (a `Backbone`, or any module that returns features) and a new head for the data."""
        if classes < 2:
            raise UserError(f"classes must be at least 2, got {classes}; check the labels")
        head = nn.Linear(set_up(backbone, shape), classes)
        nn.init.xavier_normal_(head.weight)
        nn.init.zeros_(head.bias)
        return cls(backbone, head)


def set_up(backbone: Any, shape: tuple[int, ...]) -> int:
    """Build a backbone's layers for the data, or measure a user's own module; returns the number of features."""
    if not hasattr(backbone, "setup"):
        return feature_width(backbone, shape)
    backbone.setup(shape)
    features: int = backbone.features
    kind = type(backbone)
    if kind.__module__.partition(".")[0] != __package__.partition(".")[0]:
        width = feature_width(backbone, shape)
        if width != features:
            wrong = f"{kind.__name__}.features is {features}, but the network returns {width} features"
            raise UserError(f"{wrong}; set it to {width}")
    return features


@torch.no_grad()
def feature_width(backbone: nn.Module, shape: tuple[int, ...]) -> int:
    """The number of features that a module returns, from two blank inputs; the module is not changed."""
    modes = [(module, module.training) for module in backbone.modules()]
    features = backbone.eval()(torch.zeros(2, *shape))
    for module, mode in modes:
        module.training = mode
    if not isinstance(features, Tensor) or features.shape[:-1] != (2,):
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise UserError(f"the backbone returns {got} for 2 inputs; it must return a tensor (2, features)")
    return features.shape[1]


def batchnorms(model: nn.Module) -> list[_BatchNorm]:
    """All BatchNorm layers of a model."""
    return [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]


@contextmanager
def borrowed_statistics(model: nn.Module, other: nn.Module) -> Iterator[None]:
    """Give the BatchNorm layers of `model` the running statistics of `other`, a network with the same layers."""
    layers = [layer for layer in batchnorms(model) if layer.track_running_stats]
    lenders = [layer for layer in batchnorms(other) if layer.track_running_stats]
    before = [(layer.running_mean, layer.running_var) for layer in layers]
    for layer, lender in zip(layers, lenders, strict=True):
        layer.running_mean = lender.running_mean
        layer.running_var = lender.running_var
    try:
        yield
    finally:
        for layer, (mean, var) in zip(layers, before, strict=True):
            layer.running_mean = mean
            layer.running_var = var


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Normalize by the batch as in training, but do not update the running statistics."""
    layers = [layer for layer in batchnorms(model) if layer.track_running_stats]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True


def decay_at(step: int, decay: float) -> float:
    """The decay after `step` updates: an average never reaches back further than about a tenth of the run so far.

    Without it, 0.999 would still remember the random initial weights after a thousand steps.
    """
    return min(decay, (1 + step) / (10 + step))


class EMA(AveragedModel):
    """Weights averaged over steps, BatchNorm statistics taken from the live model, always in eval mode."""

    def __init__(self, model: nn.Module, decay: float = 0.999) -> None:
        self.decay = decay
        self.steps = 0
        super().__init__(model, multi_avg_fn=self._average)
        self.requires_grad_(False)
        self.eval()

    @torch.no_grad()
    def _average(self, averages: Any, values: Any, count: Tensor | int) -> None:
        torch._foreach_lerp_(averages, values, 1 - decay_at(self.steps, self.decay))

    def update(self, model: nn.Module, step: int) -> None:
        """Add the weights after optimizer step `step`."""
        self.steps = step
        self.update_parameters(model)

    def train(self, mode: bool = True) -> EMA:
        """Stay in eval mode: a teacher that normalized by its batch would leak between examples."""
        return super().train(False)

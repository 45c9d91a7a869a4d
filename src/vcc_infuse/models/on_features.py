"""Backbones for frozen features: nothing at all for a linear head, and the frozen network with what follows it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..utils.device import unit_features
from .backbone import Backbone
from .classifier import set_up
from .pretrained import Preprocessing


class Identity(Backbone):
    """Passes vectors `(batch, features)` through, so that the classifier is linear in them."""

    def setup(self, shape: tuple[int, ...]) -> None:
        """Vectors of any length."""
        (self.features,) = shape

    def forward(self, x: Tensor) -> Tensor:
        """The vectors themselves."""
        return x


class Embedded(Backbone):
    """A frozen network, its features standardized and scaled to unit length, and the layers that were trained on them.

    Training on a bank sees only `layers`; the saved run holds all of it and takes images
    `(batch, channels, height, width)`.

    Args:
        encoder: the frozen network.
        layers: a backbone for its features.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, encoder: nn.Module, layers: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.layers = layers

    def setup(self, shape: tuple[int, ...]) -> None:
        """Build the network and the layers; weights and statistics come with a saved run, or from `attach`."""
        width = set_up(self.encoder, shape)
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("std", torch.ones(width))
        self.features = set_up(self.layers, (width,))

    @classmethod
    def attach(cls, encoder: nn.Module, layers: nn.Module, mean: Tensor, std: Tensor, features: int) -> Embedded:
        """Join a network and layers that are built and trained already."""
        joined = cls(encoder, layers)
        joined.register_buffer("mean", mean)
        joined.register_buffer("std", std)
        joined.features = features
        return joined

    def preprocessing(self) -> Preprocessing | None:
        """As the frozen network expects."""
        return self.encoder.preprocessing() if isinstance(self.encoder, Backbone) else None

    def forward(self, x: Tensor) -> Tensor:
        """The output of the trained layers."""
        features: Tensor = self.layers(unit_features(self.encoder(x), self.mean, self.std))
        return features

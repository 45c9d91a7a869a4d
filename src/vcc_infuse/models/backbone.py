"""The base class of networks that turn images or vectors into features, and what stands on frozen features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import UserError, check_range
from ..utils.device import unit_features
from ..utils.params import HasOptions
from .classifier import set_up
from .pretrained import Preprocessing


class Backbone(HasOptions, nn.Module):
    """A network that maps inputs `(batch, …)` to features `(batch, features)`.

    `__init__` only stores its options; `setup` builds the layers for the data and sets `features`.
    """

    features: int

    def setup(self, shape: tuple[int, ...]) -> None:
        """Build the layers for inputs of `shape`: (channels, height, width) or (dimensions,)."""
        raise NotImplementedError

    def load_pretrained(self) -> str | None:
        """Copy pretrained weights into the layers; returns where they were found, None if there are none."""
        return None

    def preprocessing(self) -> Preprocessing | None:
        """What pretrained weights expect of images; None if the data's own statistics serve."""
        return None

    def forward(self, x: Tensor) -> Tensor:
        """The features, batch × `features`."""
        raise NotImplementedError


def image_shape(model: str, shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """`shape` as (channels, height, width), or why `model` cannot take it."""
    if len(shape) != 3:
        raise UserError(f"model={model} needs images, not inputs of shape {shape}; use MLP for vectors")
    channels, height, width = shape
    if min(height, width) < smallest:
        raise UserError(f"model={model} needs at least {smallest} pixels per side, not {height}×{width}; raise size")
    return channels, height, width


def check_layers(dropout: float, bn_momentum: float) -> None:
    """Refuse impossible options of dropout and BatchNorm."""
    check_range("dropout", dropout, 0, 1)
    check_range("bn_momentum", bn_momentum, 0, 1)


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

    Training on a bank sees only `layers`, a backbone for the features of `encoder`; the saved run holds all of it and
    takes images `(batch, channels, height, width)`.
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
        features: Tensor = self.layers(self.embed(x))
        return features

    def embed(self, x: Tensor) -> Tensor:
        """The features that the layers were trained on."""
        return unit_features(self.encoder(x), self.mean, self.std)

"""The base class of networks that turn images or vectors into features."""

from __future__ import annotations

from torch import Tensor, nn

from ..errors import UserError, check_range
from ..utils.params import HasOptions
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

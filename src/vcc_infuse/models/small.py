"""Small networks, for small images, vectors, or training without a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from ..errors import check_integer
from .backbone import Backbone, check_layers, image_shape


class SmallConv(Backbone):
    """Three convolutions of `width`, 2·`width`, 4·`width` channels; the feature map is halved while larger than 2×2.

    Maps images `(batch, channels, height, width)` of 2×2 pixels or more to features `(batch, 4 * width)`.

    Args:
        width: channels of the first convolution.
        bn_momentum: share of a batch in the running statistics of BatchNorm.
        dropout: share of the features that is dropped in training.
    """

    def __init__(self, width: int = 24, bn_momentum: float = 0.1, dropout: float = 0.0) -> None:
        super().__init__()
        self.width = width
        self.bn_momentum = bn_momentum
        self.dropout = dropout

    def setup(self, shape: tuple[int, ...]) -> None:
        """Build the stages for images of 2×2 pixels or more."""
        channels, *size = image_shape("SmallConv", shape, smallest=2)
        check_integer("width", self.width)
        check_layers(self.dropout, self.bn_momentum)
        side = min(size)
        self.stages = nn.Sequential()
        for width in (self.width, 2 * self.width, 4 * self.width):
            conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
            norm = nn.BatchNorm2d(width, momentum=self.bn_momentum)
            pool = nn.MaxPool2d(2) if side > 2 else nn.Identity()
            self.stages.append(nn.Sequential(conv, pool, norm, nn.LeakyReLU(0.1, inplace=True)))
            side //= 2
            channels = width
        self.drop = nn.Dropout(self.dropout)
        self.features = channels

    def forward(self, x: Tensor) -> Tensor:
        """Mean of the last feature map."""
        features: Tensor = self.drop(self.stages(x).mean((2, 3)))
        return features


class MLP(Backbone):
    """Fully connected layers for vectors; images are flattened.

    Maps inputs `(batch, …)` to features `(batch, hidden[-1])`.

    Args:
        hidden: widths of the layers.
        bn_momentum: share of a batch in the running statistics of BatchNorm.
        dropout: share of the values that is dropped after each layer in training.
    """

    def __init__(self, hidden: Sequence[int] = (256, 128), bn_momentum: float = 0.1, dropout: float = 0.0) -> None:
        super().__init__()
        self.hidden = tuple(hidden)
        self.bn_momentum = bn_momentum
        self.dropout = dropout

    def setup(self, shape: tuple[int, ...]) -> None:
        """Build the layers for inputs of any shape."""
        check_layers(self.dropout, self.bn_momentum)
        self.features = math.prod(shape)
        self.layers = nn.Sequential(nn.Flatten())
        for width in self.hidden:
            check_integer("hidden", width)
            norm = nn.BatchNorm1d(width, momentum=self.bn_momentum)
            linear = nn.Linear(self.features, width, bias=False)
            self.layers.extend([linear, norm, nn.LeakyReLU(0.1), nn.Dropout(self.dropout)])
            self.features = width

    def forward(self, x: Tensor) -> Tensor:
        """The last hidden layer."""
        features: Tensor = self.layers(x)
        return features

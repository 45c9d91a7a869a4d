"""Wide residual network in the form of MixMatch and FixMatch."""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import OptionError, check_integer
from .backbone import Backbone, check_layers, image_shape

SLOPE = 0.1


class WideResNet(Backbone):
    """Groups of pre-activation blocks: 16·`width` channels, doubled in every later group, which also halves the map.

    Maps images `(batch, channels, height, width)` of 8×8 pixels or more to the mean of the last feature map. Usual
    sizes (depth-width) are 28-2 (CIFAR-10, SVHN), 28-8 (CIFAR-100), 37-2 (STL-10), and 10-1 or 16-1 for quick tests.

    Args:
        depth: the first convolution, two per block and one shortcut per group: 6n + 4 (even) means three groups of n
            blocks, 8n + 5 (odd, such as 37) four.
        width: factor of the channels.
        bn_momentum: share of a batch in the running statistics of BatchNorm.
        dropout: share of the values that is dropped between the convolutions of a block in training.

    References:
        Zagoruyko & Komodakis, Wide Residual Networks, BMVC 2016; Sohn et al., FixMatch, NeurIPS 2020.
    """

    def __init__(self, depth: int = 28, width: int = 2, bn_momentum: float = 0.001, dropout: float = 0.0) -> None:
        super().__init__()
        self.depth = depth
        self.width = width
        self.bn_momentum = bn_momentum
        self.dropout = dropout

    def setup(self, shape: tuple[int, ...]) -> None:
        """Build the groups for images of 8×8 pixels or more."""
        channels, *_ = image_shape("WideResNet", shape, smallest=8)
        check_integer("width", self.width)
        check_layers(self.dropout, self.bn_momentum)
        groups, blocks = layout(self.depth)
        widths = [16 * self.width * 2**g for g in range(groups)]
        self.first = nn.Conv2d(channels, 16, 3, padding=1)
        block = partial(Block, bn_momentum=self.bn_momentum, dropout=self.dropout)
        self.groups = nn.Sequential()
        for before, width in zip([None, *widths], widths, strict=False):
            first = block(before, width, stride=2) if before else block(16, width, activate=True)
            self.groups.append(nn.Sequential(first, *(block(width, width) for _ in range(blocks - 1))))
        self.norm = nn.BatchNorm2d(widths[-1], eps=1e-3, momentum=self.bn_momentum)
        self.features = widths[-1]
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="leaky_relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Mean of the last feature map."""
        return leaky(self.norm(self.groups(self.first(x)))).mean((2, 3))


class Block(nn.Module):
    """conv2(act(bn2(conv1(·)))) plus a shortcut, which is a 1×1 convolution if the width changes.

    If it changes, both branches share their input: activated if `activate` (the first group), raw in the later groups,
    which therefore have no first normalization. This is how FixMatch and its ports do it.
    """

    def __init__(
        self, before: int, width: int, *, stride: int = 1, activate: bool = False, bn_momentum: float, dropout: float
    ) -> None:
        super().__init__()
        same = before == width
        self.norm1 = nn.BatchNorm2d(before, momentum=bn_momentum) if same or activate else None
        self.conv1 = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width, momentum=bn_momentum)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.shortcut = None if same else nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both branches."""
        active = x if self.norm1 is None else leaky(self.norm1(x))
        hidden = self.dropout(leaky(self.norm2(self.conv1(active))))
        out: Tensor = self.conv2(hidden)
        return out.add_(x if self.shortcut is None else self.shortcut(active))


def leaky(normalized: Tensor) -> Tensor:
    """Leaky ReLU in place, because the backward pass of the norm before it does not need its output."""
    return F.leaky_relu(normalized, SLOPE, inplace=True)


def layout(depth: int) -> tuple[int, int]:
    """The number of groups, and of blocks per group, that give `depth`."""
    for groups in (3, 4):
        blocks, rest = divmod(depth - 1 - groups, 2 * groups)
        if rest == 0 and blocks > 0:
            return groups, blocks
    possible = {1 + g * (2 * n + 1) for g in (3, 4) for n in range(1, max(depth, 10))}
    near = sorted(sorted(possible, key=lambda d: abs(d - depth))[:3])
    raise OptionError("depth", depth, "must be 6n + 4 or 8n + 5", f"the nearest are {', '.join(map(str, near))}")

"""Several timm networks side by side: each sees the images as its weights expect, and their features are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import OptionError
from .backbone import Backbone
from .pretrained import Preprocessing
from .timm_backbone import Timm

SEPARATOR = "+"


class Concat(Backbone):
    """The features of two or more timm networks, one after the other.

    Maps images `(batch, channels, height, width)` to `(batch, sum of the networks' features)`. Every network resizes
    the images to its own size and normalizes them as its own weights expect.

    Args:
        name: names of timm networks, such as "tf_efficientnet_lite0+tf_efficientnet_lite2".
        weights: where their weights come from, as for `Timm`: one value for all, or one each, joined by "+".
        input_size: the side to which images are resized: one number for all, or one each, such as "224+260".
        interpolation: "bilinear" or "bicubic", for all or for each; what the weights expect if not given.
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        name: str = "tf_efficientnet_lite0+tf_efficientnet_lite2",
        weights: str = "auto",
        input_size: int | str | None = None,
        interpolation: str | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.weights = weights
        names = name.split(SEPARATOR)
        if len(names) < 2 or not all(names):
            raise OptionError("name", name, "must hold two or more networks of timm", "write it as network+network")
        sources = _spread("weights", weights, len(names))
        self.networks = nn.ModuleList(Timm(*both) for both in zip(names, sources, strict=True))
        self.input_size = input_size
        self.interpolation = interpolation

    @property
    def members(self) -> list[Timm]:
        """The networks."""
        return [network for network in self.networks if isinstance(network, Timm)]

    @property
    def input_size(self) -> int | str | None:
        """The sides to which the networks resize images: a number if they are the same, else such as "224+260"."""
        sides = [network.input_size for network in self.members]
        return sides[0] if len(set(sides)) == 1 else SEPARATOR.join(map(str, sides))

    @input_size.setter
    def input_size(self, size: int | str | None) -> None:
        sides = _sides(size) if isinstance(size, str) else [size]
        for network, side in zip(self.members, _spread("input_size", sides, len(self.members)), strict=True):
            network.input_size = Timm(network.name, input_size=side).input_size  # checked

    @property
    def interpolation(self) -> str | None:
        """How the networks resize: one word if it is the same, else such as "bicubic+bilinear"."""
        words = [network.interpolation for network in self.members]
        return words[0] if len(set(words)) == 1 else SEPARATOR.join(map(str, words))

    @interpolation.setter
    def interpolation(self, words: str | None) -> None:
        for network, word in zip(self.members, _spread("interpolation", words, len(self.members)), strict=True):
            network.interpolation = word

    def setup(self, shape: tuple[int, ...]) -> None:
        """Create the networks for images of this shape, with random weights."""
        for network in self.members:
            network.setup(shape)
        self.features = sum(network.features for network in self.members)
        self._convert()

    def load_pretrained(self) -> str | None:
        """Copy pretrained weights into every network; returns where they were found, None for random weights."""
        sources = [network.load_pretrained() for network in self.members]
        self._convert()
        return " and ".join(dict.fromkeys(source for source in sources if source)) or None

    def preprocessing(self) -> Preprocessing | None:
        """The normalization of the first network that expects one; the others convert."""
        return next((expected for expected in self._expected() if expected is not None), None)

    def _expected(self) -> list[Preprocessing | None]:
        return [network.preprocessing() for network in self.members]

    def _convert(self) -> None:
        """Find how the common normalization becomes that of each network; saved with the run, as forward needs it."""
        common = self.preprocessing()
        rows = [_conversion(common, own or common) for own in self._expected()]
        self.register_buffer("scale", torch.stack([scale for scale, _ in rows]))
        self.register_buffer("shift", torch.stack([shift for _, shift in rows]))

    def forward(self, x: Tensor) -> Tensor:
        """The features of all networks, in their order."""
        rows = zip(self.members, self.scale, self.shift, strict=True)
        return torch.cat([network(x * scale + shift) for network, scale, shift in rows], dim=1)


def _conversion(common: Preprocessing | None, own: Preprocessing | None) -> tuple[Tensor, Tensor]:
    """Factor and summand by which images normalized as `common` become images normalized as `own`."""
    if common is None or own is None:
        return torch.ones(1, 1, 1), torch.zeros(1, 1, 1)
    means = [torch.tensor(expected.mean).view(-1, 1, 1) for expected in (common, own)]
    stds = [torch.tensor(expected.std).view(-1, 1, 1) for expected in (common, own)]
    return stds[0] / stds[1], (means[0] - means[1]) / stds[1]


def _sides(text: str) -> list[int]:
    words = text.split(SEPARATOR)
    if not all(word.isdecimal() for word in words):
        raise OptionError("input_size", text, "must be an integer, or integers joined by +", "as in 224+260")
    return [int(word) for word in words]


def _spread(option: str, value: Any, count: int) -> Sequence[Any]:
    """One value for each of `count` networks, from one for all or from as many."""
    values = value if isinstance(value, list) else [value]
    if isinstance(value, str) and value.count(SEPARATOR) == count - 1:  # else it belongs to a file's name
        values = value.split(SEPARATOR)
    if len(values) not in (1, count):
        given = SEPARATOR.join(map(str, values))
        raise OptionError(option, given, f"must be one value, or one for each of the {count} networks")
    return values if len(values) == count else values * count


def network_class(kind: type, options: Mapping[str, Any]) -> type:
    """`Concat` in place of `Timm` for a name that joins several networks, and the other way round."""
    if kind not in (Timm, Concat) or "name" not in options:
        return kind
    return Concat if SEPARATOR in str(options["name"]) else Timm


def networks_of(backbone: nn.Module) -> list[Timm]:
    """The networks of timm that make up a backbone; none if it is another one."""
    if isinstance(backbone, Concat):
        return backbone.members
    return [backbone] if isinstance(backbone, Timm) else []

"""Any network of PyTorch Image Models (timm) as a backbone, with pretrained weights or without."""

from __future__ import annotations

import re
from itertools import cycle, islice
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import OptionError, UserError, check_integer
from ..utils.suggest import did_you_mean
from .backbone import Backbone, image_shape
from .classifier import feature_width
from .pretrained import Preprocessing, Weights, find_weights, load_into, torchvision_name, torchvision_preprocessing

Interpolation = Literal["bilinear", "bicubic"]
# Arguments of timm.create_model by which a file or an address is opened, or the features are no tensor.
NOT_NETWORK = ("checkpoint_path", "cache_dir", "features_only", "url", "file", "num_classes", "in_chans")


class Timm(Backbone):
    """The timm network `name` without its head.

    Maps images `(batch, channels, height, width)` to its pooled features `(batch, features)`. Pretrained weights take
    gray images as three equal channels, and other numbers of channels by repeating those of RGB.

    Args:
        name: the network's name in timm, such as "tf_efficientnet_lite0" or "vit_small_patch14_dinov2".
        weights: where pretrained weights come from: "auto" (an installed weights package, else timm's download),
            "none" (random weights), "timm", a torchvision name such as "ResNet18_Weights.IMAGENET1K_V1", or a
            .safetensors or .pth file.
        input_size: images are resized to this side before the network; their own size if not given.
        interpolation: "bilinear" or "bicubic", for resizing; what the weights expect if not given.
        model_kwargs: arguments of the network itself, passed to `timm.create_model`.
    """

    mean: Tensor
    std: Tensor
    resizing: tuple[Tensor, Tensor] | None = None

    def __init__(
        self,
        name: str = "tf_efficientnet_lite0",
        weights: str = "auto",
        input_size: int | None = None,
        interpolation: Interpolation | None = None,
        model_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.weights = weights
        self.input_size = None if input_size is None else check_integer("input_size", input_size)
        self.interpolation = interpolation
        self.model_kwargs = model_kwargs
        if refused := [key for key in model_kwargs or () if key in NOT_NETWORK or str(key).startswith("pretrained")]:
            remedy = "weights come from the option weights, never from an address or file named here"
            raise OptionError("model_kwargs", refused[0], "must hold arguments of the network itself", remedy)

    def native_size(self) -> int:
        """Side of the images that the pretrained weights saw in training; known before the network is built."""
        import timm

        if torchvision_name(self.weights):
            return torchvision_preprocessing(self.weights).size
        self._check_name()
        if (config := timm.get_pretrained_cfg(self.name)) is None:
            raise OptionError("input_size", None, "must be set", f"timm does not say which images {self.name} expects")
        return int(config.input_size[-1])

    def setup(self, shape: tuple[int, ...]) -> None:
        """Create the network for images of this shape, with random weights."""
        channels, *size = image_shape("Timm", shape, smallest=1)
        self.channels = channels
        self.side = [self.input_size, self.input_size] if self.input_size else size
        self.gray = channels == 1 and self.weights != "none"
        self.net = self._create(3 if self.gray else channels)
        config = cast(dict[str, Any], self.net.pretrained_cfg)
        mean, std = (tuple(config[name]) for name in ("mean", "std"))
        self._expect(Preprocessing(mean, std, int(config["input_size"][-1]), config["interpolation"]))
        try:
            self.features = feature_width(self, shape)
        except (RuntimeError, AssertionError, ValueError) as fault:
            reason = str(fault).splitlines()[0]
            raise UserError(f"the network {self.name} cannot take images of shape {shape}: {reason}") from fault

    def load_pretrained(self) -> str | None:
        """Copy pretrained weights into the network; returns where they were found, None for random weights.

        Not part of `setup`: a finished run brings its own weights and never needs the starting ones again.
        """
        weights = find_weights(self.name, self.weights, self.expects)
        if weights is None:
            return None
        if self.channels in (1, 3):
            load_into(self.net, weights, self.name)
        else:
            self._load_spread(weights)
        self._expect(weights.preprocessing)
        if self.interpolation is None:
            self.interpolation = "bilinear" if weights.preprocessing.interpolation == "bilinear" else "bicubic"
        return weights.source

    def _load_spread(self, weights: Weights) -> None:
        """Weights of RGB images for other channels: the first layer repeats them, as timm does."""
        from timm.models import adapt_input_conv

        rgb = self._create(3)
        load_into(rgb, weights, self.name)
        tensors = rgb.state_dict()
        first = cast(dict[str, Any], rgb.pretrained_cfg)["first_conv"]
        for layer in [first] if isinstance(first, str) else first:
            tensors[f"{layer}.weight"] = adapt_input_conv(self.channels, tensors[f"{layer}.weight"])
        self.net.load_state_dict(tensors)

    def _expect(self, expects: Preprocessing) -> None:
        self.expects = expects
        if self.gray:  # saved with the run, because forward needs them
            self.register_buffer("mean", torch.tensor(expects.mean).view(1, 3, 1, 1))
            self.register_buffer("std", torch.tensor(expects.std).view(1, 3, 1, 1))

    def preprocessing(self) -> Preprocessing | None:
        """The normalization that pretrained weights expect of images; None for random weights."""
        if self.weights == "none":
            return None
        if self.gray:
            return self.expects._replace(mean=(float(self.mean.mean()),), std=(float(self.std.mean()),))
        if self.channels != 3:  # those of red, green, blue, red, …
            mean, std = (tuple(islice(cycle(rgb), self.channels)) for rgb in (self.expects.mean, self.expects.std))
            return self.expects._replace(mean=mean, std=std)
        return self.expects

    def _create(self, channels: int) -> nn.Module:
        import timm  # here, because it takes a second that other networks need not wait for

        self._check_name()
        # Networks with position embeddings are built for one image size.
        config = timm.get_pretrained_cfg(self.name)
        fixed = {"img_size": tuple(self.side)} if config is not None and config.fixed_input_size else {}
        kwargs = {"num_classes": 0, "in_chans": channels, **fixed, **(self.model_kwargs or {})}
        network: nn.Module = timm.create_model(self.name, pretrained=False, **kwargs)
        return network

    def _check_name(self) -> None:
        import timm

        # timm would take a name with a prefix as a repository or folder to open.
        if not re.fullmatch(r"[\w.-]+", str(self.name)) or not timm.is_model(self.name):
            hint = did_you_mean(str(self.name), timm.list_models()).removeprefix("; ")
            raise OptionError("name", self.name, "must be a network of timm", hint or "timm.list_models() shows all")

    def side_matters(self) -> bool:
        """Whether the layers depend on the size of the images, as position embeddings do."""
        return bool(cast(dict[str, Any], self.net.pretrained_cfg).get("fixed_input_size"))

    def resize(self, side: int) -> None:
        """Show the network images of another size, if that does not matter to its layers."""
        self.input_size = side
        self.side = [side, side]

    def forward(self, x: Tensor) -> Tensor:
        """The pooled features."""
        if self.resizing is not None:
            down, across = self.resizing
            x = down @ x @ across.T
        elif self.input_size and x.shape[-2:] != (self.input_size, self.input_size):
            x = self._interpolated(x, self.input_size, self.input_size)
        if self.gray:  # as three channels, each normalized as the weights expect of it
            x = (x * self.std.mean() + self.mean.mean() - self.mean) / self.std
        features: Tensor = self.net(x)
        return features

    def _interpolated(self, x: Tensor, height: int, width: int) -> Tensor:
        mode = self.interpolation or "bicubic"
        return F.interpolate(x, (height, width), mode=mode, align_corners=False, antialias=True)

    def resize_by_products(self, height: int, width: int) -> None:
        """Resize images of this size by matrix products from now on, for runtimes that lack the operator."""
        if self.input_size and (height, width) != (self.input_size, self.input_size):
            self.resizing = (self._weights(height), self._weights(width))

    def _weights(self, before: int) -> Tensor:
        """The matrix by which `_interpolated` multiplies one axis, (input_size, before)."""
        identity = torch.eye(before, device=next(self.parameters()).device)[None, None]
        return self._interpolated(identity, cast(int, self.input_size), before)[0, 0]

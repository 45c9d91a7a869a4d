"""Any network of PyTorch Image Models (timm) as a backbone."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..errors import OptionError, UserError
from ..utils.suggest import did_you_mean
from .backbone import Backbone, image_shape
from .classifier import feature_width


class Timm(Backbone):
    """The timm network `name` without its head; `model_kwargs` are passed to `timm.create_model`."""

    def __init__(
        self, name: str = "resnet18", pretrained: bool = False, model_kwargs: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.name = name
        self.pretrained = pretrained
        self.model_kwargs = model_kwargs

    def setup(self, shape: tuple[int, ...]) -> None:
        """Create the network for images of this shape."""
        channels, *size = image_shape("Timm", shape, smallest=1)
        self.net = self._create(channels, size)
        try:
            self.features = feature_width(self.net, shape)
        except (RuntimeError, AssertionError, ValueError) as fault:
            reason = str(fault).splitlines()[0]
            raise UserError(f"the network {self.name} cannot take images of shape {shape}: {reason}") from fault

    def _create(self, channels: int, size: list[int]) -> nn.Module:
        import timm  # here, because it takes a second that other networks need not wait for

        if not timm.is_model(self.name):
            hint = did_you_mean(self.name, timm.list_models()).removeprefix("; ")
            raise OptionError("name", self.name, "must be a network of timm", hint or "timm.list_models() shows all")
        if self.pretrained and not timm.is_model_pretrained(self.name):
            rule = f"must be False, because timm has no weights for {self.name}"
            raise OptionError("pretrained", True, rule)
        # Networks with position embeddings are built for one image size.
        config = timm.get_pretrained_cfg(self.name)
        fixed = {"img_size": tuple(size)} if config is not None and config.fixed_input_size else {}
        kwargs = {"num_classes": 0, "in_chans": channels, **fixed, **(self.model_kwargs or {})}
        network: nn.Module = timm.create_model(self.name, pretrained=self.pretrained, **kwargs)
        return network

    def forward(self, x: Tensor) -> Tensor:
        """The pooled features."""
        features: Tensor = self.net(x)
        return features

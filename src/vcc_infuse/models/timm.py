"""Any of the networks of PyTorch Image Models (timm) as a backbone."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from torch import Tensor, nn

from ..errors import UserError
from .backbone import Backbone, image_shape
from .classifier import feature_width


class Timm(Backbone):
    """The timm model `name` without its head; `options` go to `timm.create_model`."""

    def __init__(self, name: str = "resnet18", pretrained: bool = False, options: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.name = name
        self.pretrained = pretrained
        self.options = options

    def setup(self, shape: tuple[int, ...]) -> None:
        """Create the network for images of this shape."""
        channels, *size = image_shape("Timm", shape, smallest=1)
        self.net = self._create(channels, size)
        try:
            self.features = feature_width(self.net, shape)
        except (RuntimeError, AssertionError, ValueError) as fault:
            reason = str(fault).splitlines()[0]
            raise UserError(f"model.name={self.name} cannot take images {shape}: {reason}") from fault

    def _create(self, channels: int, size: list[int]) -> nn.Module:
        timm = _timm()
        if not timm.is_model(self.name):
            near = get_close_matches(self.name, timm.list_models(), n=3, cutoff=0.0)
            raise UserError(f"model.name={self.name} is not in timm; near it are {', '.join(near)}")
        if self.pretrained and not timm.is_model_pretrained(self.name):
            raise UserError(f"model.name={self.name} has no weights in timm; set model.pretrained=false")
        # Networks with position tables are made for one image size and must be told.
        config = timm.get_pretrained_cfg(self.name)
        fixed = {"img_size": tuple(size)} if config is not None and config.fixed_input_size else {}
        options = {"num_classes": 0, "in_chans": channels, **fixed, **(self.options or {})}
        return timm.create_model(self.name, pretrained=self.pretrained, **options)

    def forward(self, x: Tensor) -> Tensor:
        """The pooled features."""
        return self.net(x)


def _timm() -> Any:
    try:
        import timm
    except ModuleNotFoundError as fault:
        raise UserError("model=Timm needs timm: pip install 'vcc-infuse[timm]'") from fault
    return timm

"""A projection head and its similarities, in float32 whatever the precision of the forward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def full_precision(tensor: Tensor) -> torch.autocast:
    """No autocast inside: cosines divided by a small temperature do not survive 8 bits of mantissa."""
    return torch.autocast(tensor.device.type, enabled=False)


class Projection(nn.Module):
    """Two layers from the model's features to the unit sphere of `width` dimensions."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, width))

    @classmethod
    def of(cls, model: nn.Module, width: int) -> Projection:
        """A head that fits the features which feed `model.head`."""
        head = model.get_submodule("head")
        assert isinstance(head, nn.Linear)
        return cls(head.in_features, width)

    def forward(self, features: Tensor) -> Tensor:
        """Rows of length one."""
        with full_precision(features):
            return F.normalize(self.layers(features.float()), dim=1)


def similarity(rows: Tensor, others: Tensor, temperature: float) -> Tensor:
    """Cosines of unit rows, divided by the temperature."""
    with full_precision(rows):
        return rows.float() @ others.float().T / temperature

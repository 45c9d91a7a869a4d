"""A projection head and the similarity of embeddings, in float32 also under autocast."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def full_precision(tensor: Tensor) -> torch.autocast:
    """Autocast disabled: bf16 is too coarse for cosines divided by a small temperature."""
    return torch.autocast(tensor.device.type, enabled=False)


class Projection(nn.Module):
    """Two layers from the features of a model to unit vectors of `embedding_dim` dimensions.

    The hidden layer has `hidden_dim` units, as many as features if None.
    """

    def __init__(self, features: int, embedding_dim: int, hidden_dim: int | None = None) -> None:
        super().__init__()
        hidden = hidden_dim or features
        self.layers = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, embedding_dim))

    @classmethod
    def of(cls, model: nn.Module, embedding_dim: int, hidden_dim: int | None = None) -> Projection:
        """A projection of the features that enter `model.head`."""
        head = model.get_submodule("head")
        assert isinstance(head, nn.Linear)
        return cls(head.in_features, embedding_dim, hidden_dim)

    def forward(self, features: Tensor) -> Tensor:
        """Embeddings with norm 1."""
        with full_precision(features):
            return F.normalize(self.layers(features.float()), dim=1)


def similarity(rows: Tensor, others: Tensor, temperature: float) -> Tensor:
    """Cosine similarities of unit rows, divided by the temperature."""
    with full_precision(rows):
        return rows.float() @ others.float().T / temperature

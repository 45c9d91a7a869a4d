"""Scores averaged over refreshes: one look through one augmentation is a noisy judge."""

from __future__ import annotations

import torch
from torch import Tensor


class Averages:
    """A moving average of each example's score over the refreshes in which it was selected."""

    def __init__(self, smooth: float) -> None:
        self.smooth = smooth
        self.values: Tensor | None = None
        self.seen: Tensor | None = None

    def update(self, scores: Tensor, selected: Tensor) -> Tensor:
        """Take in new scores where selected; the first score of an example counts whole."""
        if self.smooth == 0:
            return scores
        if self.values is None or self.seen is None:
            self.values, self.seen = torch.zeros_like(scores), torch.zeros_like(selected)
        mean = torch.where(self.seen, scores.lerp(self.values, self.smooth), scores)
        self.values = torch.where(selected, mean, self.values)
        self.seen = self.seen | selected
        return torch.where(selected, self.values, scores)

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors, or nothing before the first refresh."""
        if self.values is None or self.seen is None:
            return {}
        return {"values": self.values.clone(), "seen": self.seen.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where `state_dict` was taken."""
        values, seen = state.get("values"), state.get("seen")
        self.values = None if values is None else values.clone().cpu()
        self.seen = None if seen is None else seen.clone().cpu()

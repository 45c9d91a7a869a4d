"""TrainingStats: running sums of losses and pseudo-label quality between two evaluations, kept on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..types import Losses, PseudoLabels


class TrainingStats:
    """Sums since the last `reset`; only reading them synchronizes with the device.

    Rows of `pseudo`, one column per pseudo class: seen, selected weight, selected weight with known truth, and with a
    right label. Without `checked`, because no label of the pool is both known and hidden, there is no precision.
    """

    def __init__(self, classes: int, device: torch.device | str = "cpu", checked: bool = True) -> None:
        self.classes, self.device, self.checked = classes, device, checked
        self.reset()

    def reset(self) -> None:
        """Start over."""
        self.steps = 0
        self.losses: dict[str, Tensor] = {}
        self.pseudo = torch.zeros(4, self.classes, device=self.device, dtype=torch.float64)

    @torch.no_grad()
    def add(self, losses: Losses, truth: Tensor) -> None:
        """Add one optimizer step's terms and pseudo labels."""
        for name, term in losses.items():
            self.losses[name] = self.losses.get(name, torch.zeros((), device=self.device)) + term.detach().float()
        if losses.pseudo is not None:
            self.add_pseudo(losses.pseudo, truth)

    @torch.no_grad()
    def add_pseudo(self, pseudo: PseudoLabels, truth: Tensor) -> None:
        """Add the pseudo labels of one step; truth is −1 where unknown."""
        labels, weights = pseudo.labels, pseudo.weights.double()
        known = weights * (truth >= 0)
        right = known * (labels == truth)
        rows = torch.stack([torch.ones_like(weights), weights, known, right])
        self.pseudo.index_add_(1, labels, rows.to(self.pseudo.device))

    def read(self) -> dict[str, Any]:
        """Mean losses, and coverage and precision of the pseudo labels, overall and per pseudo class."""
        count = max(self.steps, 1)
        figures: dict[str, Any] = {f"loss_{name}": float(total) / count for name, total in self.losses.items()}
        seen, selected, known, right = self.pseudo.cpu()
        if seen.sum() > 0:
            figures["pseudo_label_coverage"] = float(selected.sum() / seen.sum())
            figures["pseudo_label_share_per_class"] = (seen / seen.sum()).tolist()
            figures["pseudo_label_coverage_per_class"] = (selected / seen).tolist()
        if seen.sum() > 0 and self.checked:
            figures["pseudo_label_precision"] = float(right.sum() / known.sum())
            figures["pseudo_label_precision_per_class"] = (right / known).tolist()
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Everything, for a checkpoint."""
        return {"steps": self.steps, "losses": dict(self.losses), "pseudo": self.pseudo.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the checkpoint was."""
        self.steps, self.losses, self.pseudo = state["steps"], dict(state["losses"]), state["pseudo"]

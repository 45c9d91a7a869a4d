"""Temperature scaling by hard views of labeled images: the part of RobustVCC that acts at inference, on its own.

The softmax selects the pseudo labels. Between a method alone and RobustVCC it shows what the temperature contributes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..types import Calibrated, Outputs, Step, Task
from ..utils.numerics import to_float64
from ..validation import check_range
from .base import Calibrator
from .temperature_estimate import VIEW, TemperatureEstimate, sample_rows


class HardViewTemperature(Calibrator):
    """Learns a temperature while training and applies it at inference only.

    Args:
        sample_fraction: random fraction of each labeled batch from which it is learned.
        holdout_fraction: fraction of the labeled images kept out of training, at least one per class, from which the
            temperature is learned. With 0 it is learned from strong views and mixtures of labeled images.
        memorization_gate: without held-out labels, weaken the temperature where accuracy on labeled images is close to
            confidence in unlabeled ones, which means that no labels are memorized; else apply it in full.
    """

    def __init__(
        self, sample_fraction: float = 0.25, holdout_fraction: float = 0.0, memorization_gate: bool = True
    ) -> None:
        super().__init__()
        self.sample_fraction = check_range("sample_fraction", sample_fraction, 0.001, 1)
        self.holdout_fraction = check_range("holdout_fraction", holdout_fraction, 0, 0.9)
        self.memorization_gate = memorization_gate
        self.labeled_views = () if holdout_fraction else ("strong",)

    @property
    def held_out(self) -> float:
        """The fraction of the labeled images to keep out of training."""
        return self.holdout_fraction

    def setup(self, model: nn.Module, task: Task) -> None:
        """Start at the temperature 1."""
        self.temperature = TemperatureEstimate(task.classes, self.holdout_fraction > 0, self.memorization_gate)

    def forward(self, step: Step, images: Tensor, outputs: Outputs) -> Calibrated:
        """The softmax; in training mode, after refitting the temperature."""
        if self.training and ("held_out" if self.holdout_fraction else VIEW) in step.batch.views:
            rows = sample_rows(len(step.batch.y), self.sample_fraction, images.device)
            self.temperature.observe(step, rows, images)
        probs = outputs.logits.detach().float().softmax(1)
        return Calibrated(probs, probs.amax(1))

    @torch.no_grad()
    def predict(self, outputs: Outputs) -> Tensor:
        """The largest softmax probability at the learned temperature."""
        return to_float64(self.temperature(outputs.logits.float())).softmax(1).amax(1)

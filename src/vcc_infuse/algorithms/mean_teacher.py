"""Mean Teacher (Tarvainen & Valpola, NeurIPS 2017): the average of past weights gives the target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..models.classifier import frozen_statistics
from ..types import Step
from .pi_model import PiModel


class MeanTeacher(PiModel):
    """The Pi-Model with the averaged model as the teacher: its decay is the trainer's `ema`.

    Args:
        weight: factor of the unlabeled loss.
        rampup_fraction: share of the run over which that factor rises from zero.
    """

    def __init__(self, weight: float = 50.0, rampup_fraction: float = 0.4) -> None:
        super().__init__(weight, rampup_fraction)

    @torch.no_grad()
    def target(self, step: Step) -> Tensor:
        """Probabilities of the first view, from the teacher, which normalizes by its batch as the student does."""
        with as_in_training(step.ema):
            return step.ema(step.batch.views["weak"]).logits.float().softmax(1)


@contextmanager
def as_in_training(model: nn.Module) -> Iterator[None]:
    """Let a model behave as in training, batch statistics and dropout included, and leave it as it was."""
    modes = {module: module.training for module in model.modules()}
    model.train()
    try:
        with frozen_statistics(model):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode

"""Mean Teacher (Tarvainen & Valpola, NeurIPS 2017): the average of past weights provides the target."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..models.classifier import frozen_statistics
from ..types import Outputs, Step
from ..utils.params import number
from .pi_model import PiModel


@dataclass(kw_only=True, eq=False, repr=False)
class MeanTeacher(PiModel):
    """The Pi-Model with the averaged model as the teacher; its decay is the `ema_decay` of the trainer.

    References:
        Tarvainen and Valpola, Mean teachers are better role models: Weight-averaged consistency targets improve
        semi-supervised deep learning results, NeurIPS 2017.
    """

    weight: float = number(50.0)

    @torch.no_grad()
    def target(self, step: Step) -> Tensor:
        """Probabilities of the teacher for the first view, with batch statistics as for the student."""
        with as_in_training(step.ema):
            outputs: Outputs = step.ema(step.batch.views["weak"])
        return outputs.logits.float().softmax(1)


@contextmanager
def as_in_training(model: nn.Module) -> Iterator[None]:
    """Training mode, with batch statistics and dropout; every module's mode and statistics are restored."""
    modes = {module: module.training for module in model.modules()}
    model.train()
    try:
        with frozen_statistics(model):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode

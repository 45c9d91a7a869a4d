"""DebiasPL (Wang et al., CVPR 2022): subtract the bias that predictions show on average from each pseudo label."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..algorithms.base import PseudoLabeling
from ..types import Calibrated, Outputs, Step, Task
from ..validation import check_range
from .plugin import Plugin


class DebiasPL(Plugin):
    """Divide weak views' probabilities by the running mean prediction; strong views must win against that mean.

    Args:
        base: the method whose pseudo labels are corrected; FixMatch if not given.
        strength: how much of the logarithm of the mean is subtracted (weak) and added (strong).
        momentum: of the running mean.
    """

    needs_strong = True
    mean: Tensor

    def __init__(self, base: PseudoLabeling | None = None, strength: float = 0.5, momentum: float = 0.999) -> None:
        super().__init__(base)
        self.strength = check_range("strength", strength)
        self.momentum = check_range("momentum", momentum, 0, 1)

    def setup(self, model: nn.Module, task: Task) -> None:
        """The mean prediction, a number a class, uniform at first."""
        super().setup(model, task)
        self.register_buffer("mean", torch.full((task.classes,), 1 / task.classes))

    def bias(self) -> Tensor:
        """What a class's logit owes to its frequency."""
        return self.strength * self.mean.clamp(min=torch.finfo(torch.float32).tiny).log()

    @torch.no_grad()
    def correct(self, calibrated: Calibrated, step: Step) -> Calibrated:
        """Debiased probabilities; the mean takes in the batch afterwards, so that both views see the same."""
        probs = calibrated.probs.float()
        logits = probs.clamp(min=torch.finfo(torch.float32).tiny).log()
        debiased = (logits - self.bias()).softmax(1)
        if self.training:
            self.mean.lerp_(step.gather(probs).mean(0), 1 - self.momentum)
        return Calibrated(debiased, debiased.amax(1), calibrated.loss)

    def shift(self, strong: Outputs) -> Outputs:
        """Marginal-aware logits: a frequent class gets its advantage for nothing, so it is not learned."""
        # A copy, for the gradient must not see the mean's update.
        return strong._replace(logits=strong.logits.float() + self.bias().clone())

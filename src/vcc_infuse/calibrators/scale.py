"""How over-confident the classifier is: a temperature (Guo et al., ICML 2017) from labelled images it finds hard.

On labelled images as trained the network is always right and shows no doubt. On strongly augmented ones, which it was
never shown with their label, it errs, and the truth is known. The averaged network is asked, as it is at inference.
The temperature is never below 1: these images are more familiar than new ones, so they cannot prove too little trust.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..memory import Memory
from ..types import Step

VIEW = "labelled_strong"


def newton_step(inverse: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """One Newton step for the inverse temperature, in which the negative log likelihood is convex."""
    probs = (inverse * logits).softmax(1)
    mean = (probs * logits).sum(1)
    slope = (mean - logits.gather(1, labels[:, None]).squeeze(1)).mean()
    curvature = (probs * (logits - mean[:, None]).square()).sum(1).mean()
    return torch.clamp(inverse - slope / curvature.clamp_min(1e-6), inverse / 2, inverse * 2)


class Scale(nn.Module):
    """The temperature of the last `size` strongly augmented labelled images, followed step by step; 1 before any."""

    inverse: Tensor

    def __init__(self, classes: int, size: int = 1024) -> None:
        super().__init__()
        self.memory = Memory(size, {"logits": ((classes,), torch.float32), "labels": ((), torch.long)})
        self.register_buffer("inverse", torch.ones(()))

    @torch.no_grad()
    def observe(self, step: Step, rows: Tensor) -> None:
        """Ask the averaged network about the examples `rows` of the labelled batch, and refit."""
        logits = step.ema(step.batch.views[VIEW][rows]).logits.float()
        self.memory.push(logits=step.gather(logits), labels=step.gather(step.batch.y[rows]))
        # An unfilled row is all zeros, whose probabilities do not depend on the temperature.
        for _ in range(2):
            step_to = newton_step(self.inverse, self.memory["logits"], self.memory["labels"])
            self.inverse.copy_(step_to.clamp(0.05, 1))

    def forward(self, logits: Tensor) -> Tensor:
        """Logits at the learnt temperature."""
        return logits * self.inverse

"""How over-confident the classifier is: a temperature (Guo et al., ICML 2017) from labeled images it finds hard.

On labeled images as trained the network is always right and shows no doubt, so it is asked about harder ones whose
truth is known: strongly augmented, and mixed with another in feature space. Neither is the right question. Strong views
ask for too much doubt where the network has not learned them yet and for too little where it knows the image by heart;
mixtures do the opposite. Their geometric mean came close to the test set's own temperature in both cases. It is never
below 1, for images that were trained on cannot prove too little trust.

It counts as far as accuracy on the labeled images differs from confidence in unlabeled ones. A network that is right
on labeled images as often as it believes to be on others has learned nothing by heart, and its softmax is left alone;
one that is always right on them can only be judged by harder ones, and one that is right less often is too sure. All
miss a network that is sure of itself on images it has never seen: only labels held out from training show that, and
where there are some, they alone decide. The averaged network is asked, as at inference.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...memory import Memory
from ...types import Step
from ..newton import LOWEST, derivatives

VIEW = "labeled_strong"


def newton_step(inverse: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
    """One Newton step for the inverse temperature, in which the cross entropy with `targets` is convex."""
    slope, curvature = derivatives(inverse, logits, (targets * logits).sum(1))
    return torch.clamp(inverse - slope / curvature.clamp_min(1e-6), inverse / 2, inverse * 2)


class Temperature(nn.Module):
    """The inverse temperature that suits the last `size` examples, followed step by step; 1 before any."""

    inverse: Tensor

    def __init__(self, classes: int, size: int) -> None:
        super().__init__()
        self.memory = Memory(size, dict.fromkeys(("logits", "targets"), ((classes,), torch.float32)))
        self.register_buffer("inverse", torch.ones(()))

    def observe(self, logits: Tensor, targets: Tensor) -> None:
        """Remember examples and refit. An unfilled row is all zeros and says nothing of the temperature."""
        self.memory.push(logits=logits, targets=targets)
        for _ in range(2):
            step_to = newton_step(self.inverse, self.memory["logits"], self.memory["targets"])
            self.inverse.copy_(step_to.clamp(LOWEST, 1 / LOWEST))


class Scale(nn.Module):
    """The temperatures of strongly augmented, of mixed and of held-out labeled images, and what is made of them."""

    def __init__(self, classes: int, held_out: bool = False, memorization_gate: bool = True, size: int = 1024) -> None:
        super().__init__()
        self.classes, self.memorization_gate = classes, memorization_gate
        self.strong, self.mixed = Temperature(classes, size), Temperature(classes, size)
        self.known = Memory(size, dict.fromkeys(("right", "confidence"), ((), torch.float32)))
        self.held_out = Temperature(classes, size) if held_out else None

    @property
    def inverse(self) -> Tensor:
        """One over the temperature."""
        if self.held_out is not None:
            return self.held_out.inverse
        mean = (self.strong.inverse * self.mixed.inverse).sqrt().clamp(LOWEST, 1)
        return mean**self.departure if self.memorization_gate else mean

    @property
    def departure(self) -> Tensor:
        """Accuracy on labeled images against confidence in unlabeled ones: from 0, equal, to 1, as far as can be."""
        right, confidence = (self.known[name].sum() / self.known.filled.clamp(min=1) for name in self.known.names)
        room = torch.where(right > confidence, 1 - confidence, confidence)
        return ((right - confidence).abs() / room.clamp(min=1e-6)).clamp(max=1)

    @torch.no_grad()
    def observe(self, step: Step, rows: Tensor, unlabeled: Tensor) -> None:
        """Ask the averaged network about held-out examples, or `rows` of the labeled and as many unlabeled; refit."""
        if self.held_out is not None:
            y = step.batch.held_out_y
            assert y is not None, "held-out labels come with the view"
            logits = step.ema(step.batch.views["held_out"]).logits.float()
            self.held_out.observe(step.gather(logits), step.gather(F.one_hot(y, self.classes).float()))
            return
        # A method that never trains on strong views fails on them, which says nothing of its doubt elsewhere.
        hard = step.batch.views[VIEW] if "strong" in step.batch.views else step.batch.x
        parts = (hard[rows], step.batch.x[rows], unlabeled[: len(rows)])
        outputs = step.ema(torch.cat(parts))
        strong, weak, pool = outputs.logits.float().split([len(part) for part in parts])
        truth = F.one_hot(step.batch.y[rows], self.classes).float()
        self.strong.observe(step.gather(strong), step.gather(truth))
        self._observe_mixed(step, outputs.features[len(strong) : len(strong) + len(weak)], truth)
        right, confidence = weak.argmax(1) == step.batch.y[rows], pool.softmax(1).amax(1)
        self.known.push(right=step.gather(right[: len(pool)]), confidence=step.gather(confidence))

    def _observe_mixed(self, step: Step, features: Tensor, truth: Tensor) -> None:
        """Features of labeled images, each blended with another's."""
        partner = torch.randperm(len(truth), device=truth.device)
        share = torch.rand(len(truth), 1, device=truth.device)
        mixed = step.ema.head(torch.lerp(features[partner], features, share.to(features.dtype))).float()  # type: ignore[operator]
        self.mixed.observe(step.gather(mixed), step.gather(torch.lerp(truth[partner], truth, share)))

    def forward(self, logits: Tensor) -> Tensor:
        """Logits at the learned temperature."""
        return logits * self.inverse

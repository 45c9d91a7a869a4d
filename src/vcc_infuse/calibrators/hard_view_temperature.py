"""A temperature (Guo et al., ICML 2017) learned from labeled images that are hard for the classifier.

On the labeled images of training the network is always right, so they cannot reveal overconfidence. Harder images with
known labels can. Strong views overestimate the temperature until the network has learned them, and underestimate it
once it has memorized the images; mixtures of two images in feature space do the opposite. The geometric mean of the two
came close to the temperature of the test set in both cases. It is never below 1, because images from training cannot
prove that confidence is too low.

The mean is raised to the power of the gap (0…1) between accuracy on labeled images and confidence in unlabeled ones.
Without a gap nothing was memorized, and the softmax stays as it is. None of this detects overconfidence that is limited
to unseen images. Only held-out labels do: if there are any, they alone decide. All outputs come from the EMA model.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..types import Calibrated, Outputs, Step, Task, WeakOutputs
from ..utils.device import to_float64
from ..utils.params import number
from ..utils.ring_buffer import RingBuffer
from .base import Calibrator, Softmax
from .temperature import MIN_TEMPERATURE, derivatives

VIEW = "labeled_strong"


def sample_rows(count: int, fraction: float, device: torch.device) -> Tensor:
    """A random `fraction` of the row numbers below `count`, in order."""
    return torch.randperm(count, device=device)[: math.ceil(fraction * count)].sort().values


def newton_step(inverse: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
    """One Newton step on the cross entropy with `targets`, which is convex in the inverse temperature."""
    slope, curvature = derivatives(inverse, logits, (targets * logits).sum(1))
    return torch.clamp(inverse - slope / curvature.clamp_min(1e-6), inverse / 2, inverse * 2)


class RunningTemperature(nn.Module):
    """The inverse temperature of the last `size` examples, updated by Newton steps; 1 before any example."""

    def __init__(self, classes: int, size: int) -> None:
        super().__init__()
        self.memory = RingBuffer(size, dict.fromkeys(("logits", "targets"), ((classes,), torch.float32)))
        self.inverse = nn.Buffer(torch.ones(()))

    def observe(self, logits: Tensor, targets: Tensor) -> None:
        """Store examples and refit. An unfilled row is all zeros and has no effect on the temperature."""
        self.memory.push(logits=logits, targets=targets)
        for _ in range(2):
            step_to = newton_step(self.inverse, self.memory["logits"], self.memory["targets"])
            self.inverse.copy_(step_to.clamp(MIN_TEMPERATURE, 1 / MIN_TEMPERATURE))


class TemperatureEstimate(nn.Module):
    """Divides logits by one temperature, estimated from strong, mixed or held-out labeled images."""

    def __init__(
        self, classes: int, *, held_out: bool = False, memorization_gate: bool = True, size: int = 1024
    ) -> None:
        super().__init__()
        self.classes = classes
        self.memorization_gate = memorization_gate
        self.strong = RunningTemperature(classes, size)
        self.mixed = RunningTemperature(classes, size)
        self.gap_memory = RingBuffer(size, dict.fromkeys(("correct", "confidence"), ((), torch.float32)))
        self.held_out = RunningTemperature(classes, size) if held_out else None

    @property
    def inverse(self) -> Tensor:
        """One over the temperature."""
        if self.held_out is not None:
            return self.held_out.inverse
        mean = (self.strong.inverse * self.mixed.inverse).sqrt().clamp(MIN_TEMPERATURE, 1)
        return mean**self.memorization_gap if self.memorization_gate else mean

    @property
    def memorization_gap(self) -> Tensor:
        """Distance of accuracy on labeled images from confidence in unlabeled ones: 0 if equal, 1 if maximal."""
        filled = self.gap_memory.filled.clamp(min=1)
        accuracy, confidence = (self.gap_memory[name].sum() / filled for name in self.gap_memory.names)
        largest = torch.where(accuracy > confidence, 1 - confidence, confidence)
        return ((accuracy - confidence).abs() / largest.clamp(min=1e-6)).clamp(max=1)

    @torch.no_grad()
    def observe(self, step: Step, rows: Tensor, unlabeled: Tensor) -> None:
        """Refit to the held-out examples, or to `rows` of the labeled ones and as many unlabeled ones."""
        if self.held_out is not None:
            y = step.batch.held_out_y
            assert y is not None, "held-out labels come with the view"
            logits = step.ema(step.batch.views["held_out"]).logits.float()
            self.held_out.observe(step.gather(logits), step.gather(F.one_hot(y, self.classes).float()))
            return
        # A method that never trains on strong views fails on them, whatever its confidence elsewhere.
        hard = step.batch.views[VIEW] if "strong" in step.batch.views else step.batch.x
        parts = (hard[rows], step.batch.x[rows], unlabeled[: len(rows)])
        outputs = step.ema(torch.cat(parts))
        strong, weak, pool = outputs.logits.float().split([len(part) for part in parts])
        truth = F.one_hot(step.batch.y[rows], self.classes).float()
        self.strong.observe(step.gather(strong), step.gather(truth))
        # Features of labeled images, each mixed with those of another.
        features = outputs.features[len(strong) : len(strong) + len(weak)]
        partner = torch.randperm(len(truth), device=truth.device)
        weight = torch.rand(len(truth), 1, device=truth.device)
        mixed = step.ema.head(torch.lerp(features[partner], features, weight.to(features.dtype))).float()  # type: ignore[operator]
        self.mixed.observe(step.gather(mixed), step.gather(torch.lerp(truth[partner], truth, weight)))
        correct = weak.argmax(1) == step.batch.y[rows]
        confidence = pool.softmax(1).amax(1)
        self.gap_memory.push(correct=step.gather(correct[: len(pool)]), confidence=step.gather(confidence))

    def forward(self, logits: Tensor) -> Tensor:
        """Logits at the learned temperature."""
        return logits * self.inverse


@dataclass(kw_only=True, eq=False, repr=False)
class LearnsTemperature(Calibrator):
    """A calibrator that learns a temperature while training.

    Args:
        holdout_fraction: fraction of the labeled images kept out of training, at least one per class, from which the
            temperature is learned. With 0 it is learned from strong views and mixtures of labeled images, which a
            network that has memorized them still gets right.
        memorization_gate: without held-out labels, weaken the temperature where accuracy on labeled images is close to
            confidence in unlabeled ones, which means that no labels are memorized; else apply it in full.
    """

    holdout_fraction: float = number(0.0, 0, 0.9)
    memorization_gate: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.labeled_views = () if self.holdout_fraction else ("strong",)

    @property
    def held_out(self) -> float:
        """`holdout_fraction`."""
        return self.holdout_fraction

    def setup(self, model: nn.Module, task: Task) -> None:
        """Start at the temperature 1."""
        super().setup(model, task)
        self.temperature = TemperatureEstimate(
            task.classes, held_out=self.holdout_fraction > 0, memorization_gate=self.memorization_gate
        )

    def refit(self, step: Step, images: Tensor, fraction: float) -> None:
        """Refit the temperature to a random fraction of the labeled batch, if it has what is needed."""
        if ("held_out" if self.holdout_fraction else VIEW) in step.batch.views:
            self.temperature.observe(step, sample_rows(len(step.batch.y), fraction, images.device), images)

    @torch.no_grad()
    def predict(self, outputs: Outputs) -> Tensor:
        """The largest softmax probability at the learned temperature."""
        return to_float64(self.temperature(outputs.logits.float())).softmax(1).amax(1)


@dataclass(kw_only=True, eq=False, repr=False)
class HardViewTemperature(LearnsTemperature, Softmax):
    """Learns a temperature while training and applies it at inference only.

    Args:
        sample_fraction: random fraction of each labeled batch from which it is learned.

    References:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017 (temperature scaling).
    """

    sample_fraction: float = number(0.25, 0.001, 1)

    def forward(self, step: Step, images: Tensor, outputs: WeakOutputs) -> Calibrated:
        """The softmax; in training mode, after refitting the temperature."""
        if self.training:
            self.refit(step, images, self.sample_fraction)
        return Softmax.forward(self, step, images, outputs)

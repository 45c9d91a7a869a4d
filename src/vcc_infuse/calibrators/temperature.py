"""Temperature scaling (Guo et al., ICML 2017): one temperature, refitted at intervals while the network trains."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from ..types import Calibrated, Outputs, Step, Task, WeakOutputs
from ..utils.device import to_float64
from ..utils.params import integer, number
from ..utils.ring_buffer import RingBuffer
from .base import Calibrator, collect_examples

MIN_TEMPERATURE = 0.05
MAX_TEMPERATURE = 20.0


class TemperatureFit(NamedTuple):
    """A temperature; `at_bound` if the likelihood has no minimum within the search range."""

    temperature: float
    at_bound: bool


@torch.no_grad()
def fit_temperature(
    logits: Tensor, labels: Tensor, *, low: float = MIN_TEMPERATURE, high: float = MAX_TEMPERATURE
) -> TemperatureFit:
    """The temperature in [low, high] with the best likelihood, which is convex in the inverse temperature.

    Args:
        logits: (examples, classes), not probabilities.
        labels: (examples,), their true classes.
        low: smallest temperature.
        high: largest temperature.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
        >>> round(fit_temperature(logits, torch.tensor([0, 0, 1, 1])).temperature, 3)  # right in three of four
        3.641
    """
    from scipy.optimize import brentq  # here, because it takes a while to import

    logits = to_float64(logits - logits.amax(1, keepdim=True))
    true_logits = logits.gather(1, labels[:, None]).squeeze(1)

    def slope(inverse: float) -> float:
        return derivatives(inverse, logits, true_logits)[0].item()

    if slope(1 / low) <= 0:
        return TemperatureFit(low, True)
    if slope(1 / high) >= 0:
        return TemperatureFit(high, True)
    return TemperatureFit(1 / brentq(slope, 1 / high, 1 / low, xtol=1e-12), False)


def derivatives(inverse: Tensor | float, logits: Tensor, target_logits: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and curvature of the mean cross entropy with respect to the inverse temperature.

    `target_logits` is each example's logit averaged over its target: that of the true class, or a mean for soft labels.
    """
    probs = (inverse * logits).softmax(1)
    mean = (probs * logits).sum(1)
    return (mean - target_logits).mean(), (probs * (logits - mean[:, None]).square()).sum(1).mean()


@dataclass(kw_only=True, eq=False, repr=False)
class TemperatureScaling(Calibrator):
    """Refits the temperature at intervals to outputs of the EMA model; labels never change.

    If every label agrees with the network, the likelihood keeps growing as the temperature falls to 0. Such labels
    prove nothing, so the softmax stays as it is. For the same reason only held-out labels may raise a confidence:
    the other sources use images from training, which can reveal too much confidence but not too little.

    Args:
        labels: "held_out" keeps labeled images out of training; "labeled_strong" uses strongly augmented labeled
            images, "weak_strong" the weak view's pseudo label for the strong view.
        holdout_fraction: fraction of the labeled images held out, at least one per class.
        every: steps between fits; by default a thousandth of the run, but at least 10.
        queue_size: number of most recent examples used by a fit.

    References:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017.
    """

    follows_schedule = True

    labels: Literal["held_out", "labeled_strong", "weak_strong"] = "held_out"
    holdout_fraction: float = number(0.1, 0.001, 0.9)
    every: int | None = integer(None)
    queue_size: int = integer(1024)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.labeled_views = ("strong",) if self.labels == "labeled_strong" else ()
        self.unlabeled_views = ("strong",) if self.labels == "weak_strong" else ()
        self.reset()

    def reset(self) -> None:
        """Start from the softmax."""
        self.temperature = nn.Buffer(torch.ones(()))
        self.at_bound = nn.Buffer(torch.zeros((), dtype=torch.bool))

    @property
    def held_out(self) -> float:
        """`holdout_fraction`, if that is where labels come from."""
        return self.holdout_fraction if self.labels == "held_out" else 0.0

    def setup(self, model: nn.Module, task: Task) -> None:
        """Create the queue and start from the softmax."""
        self.memory = RingBuffer(
            self.queue_size, {"logits": ((task.classes,), torch.float32), "labels": ((), torch.long)}
        )
        self.period = self.every or max(10, round(task.steps / 1024))
        self.window = math.ceil(self.queue_size / task.batch_size)
        self.reset()

    def forward(self, step: Step, images: Tensor, outputs: WeakOutputs) -> Calibrated:
        """The softmax at the fitted temperature; in training mode, after collecting labels and refitting if due."""
        if self.training:
            self._learn(step, outputs)
        probs = self.probs(outputs.logits).float()
        # Where rounding made a tie, the classifier's label goes strictly on top.
        top = torch.nextafter(probs.amax(1), torch.full_like(probs[:, 0], 2)).clamp(max=1)
        probs = probs.scatter(1, outputs.logits.argmax(1, keepdim=True), top[:, None])
        return Calibrated(probs, probs.amax(1))

    @torch.no_grad()
    def probs(self, logits: Tensor) -> Tensor:
        """Calibrated class probabilities."""
        return (to_float64(logits.float()) / self.temperature).softmax(1)

    def predict(self, outputs: Outputs) -> Tensor:
        """The largest calibrated probability."""
        return self.probs(outputs.logits).amax(1)

    def fit(self, logits: Tensor, labels: Tensor) -> Self:
        """Take the temperature that fits these examples best; `at_bound` is set if they determine none."""
        best = fit_temperature(logits, labels, low=MIN_TEMPERATURE if self.labels == "held_out" else 1.0)
        self.temperature.fill_(1.0 if best.temperature == MIN_TEMPERATURE else best.temperature)
        self.at_bound.fill_(best.at_bound)
        return self

    @torch.no_grad()
    def _learn(self, step: Step, outputs: WeakOutputs) -> None:
        steps_left = min(-(step.number + 1) % self.period, step.steps - 1 - step.number)
        # Skip examples that the queue would drop before the next fit.
        if steps_left < self.window and (examples := collect_examples((self.labels,), step, outputs)):
            logits = step.ema(examples.images).logits.float()
            self.memory.push(logits=step.gather(logits), labels=step.gather(examples.labels))
        filled = int(self.memory.filled) if steps_left <= 0 else 0
        if filled:
            self.fit(self.memory["logits"][:filled], self.memory["labels"][:filled])

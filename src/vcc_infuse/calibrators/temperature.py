"""Temperature scaling (Guo et al., ICML 2017): divide the logits by a number fitted to labels the network may miss."""

from __future__ import annotations

import math
from typing import Literal, Self

import torch
from torch import Tensor, nn

from ..memory import Memory
from ..types import Calibrated, Outputs, Step, Task
from ..utils.numerics import to_float64
from ..validation import check_range
from .base import Calibrator
from .label_sources import chosen, collect
from .newton import LOWEST, fit_temperature

SOURCES = ("held_out", "labeled_strong", "weak_strong")


class TemperatureScaling(Calibrator):
    """Refits the temperature from time to time; the averaged network is asked, and no label changes.

    Where no label contradicts the network the likelihood grows as the temperature falls to 0. Such labels prove
    nothing, and the softmax stays as it is. For the same reason only held-out labels may raise a confidence: the images
    of the other sources are familiar, so they can prove too much trust, not too little.

    Args:
        labels: "held_out" keeps labeled images out of training; "labeled_strong" takes strongly augmented labeled
            images, "weak_strong" the weak view's pseudo label for the strong view.
        share: part of the labeled images held out, at least one of each class.
        every: steps between two fits; a thousandth of the run, but 10 or more, if not given.
        queue: examples that a fit looks at, the latest.
    """

    temperature: Tensor
    at_bound: Tensor

    def __init__(
        self,
        labels: Literal["held_out", "labeled_strong", "weak_strong"] = "held_out",
        share: float = 0.1,
        every: int | None = None,
        queue: int = 1024,
    ) -> None:
        super().__init__()
        self.labels, self.share, self.every, self.queue = chosen(labels, SOURCES), share, every, queue
        check_range("share", share, 0.001, 0.9)
        check_range("every", 1 if every is None else every, 1)
        check_range("queue", queue, 1)
        self.labeled_views = ("strong",) if labels == "labeled_strong" else ()
        self.unlabeled_views = ("strong",) if labels == "weak_strong" else ()
        self.register_buffer("temperature", torch.ones(()))
        self.register_buffer("at_bound", torch.zeros((), dtype=torch.bool))

    @property
    def held_out(self) -> float:
        """The part of the labeled images that training must not see."""
        return self.share if self.labels == "held_out" else 0.0

    def setup(self, model: nn.Module, task: Task) -> None:
        """Make the queue."""
        self.memory = Memory(self.queue, {"logits": ((task.classes,), torch.float32), "labels": ((), torch.long)})
        self.period = self.every or max(10, round(task.steps / 1024))
        self.window = math.ceil(self.queue / task.batch_size)
        self.temperature.fill_(1)
        self.at_bound.fill_(False)

    def forward(self, step: Step, images: Tensor, outputs: Outputs) -> Calibrated:
        """In training mode look at some labels, and refit if it is time; then trust at the fitted temperature."""
        if self.training:
            self._learn(step, outputs)
        probs = with_label(self.probs(outputs.logits).float(), outputs.logits.argmax(1))
        return Calibrated(probs, probs.amax(1))

    @torch.no_grad()
    def probs(self, logits: Tensor) -> Tensor:
        """Calibrated class probabilities."""
        return (to_float64(logits.float()) / self.temperature).softmax(1)

    def predict(self, outputs: Outputs) -> Tensor:
        """The largest calibrated probability."""
        return self.probs(outputs.logits).amax(1)

    def fit(self, logits: Tensor, labels: Tensor) -> Self:
        """Take the temperature that suits these examples best; `at_bound` says that they name none."""
        found = fit_temperature(logits, labels, LOWEST if self.labels == "held_out" else 1.0)
        self.temperature.fill_(1.0 if found.temperature == LOWEST else found.temperature)
        self.at_bound.fill_(found.at_bound)
        return self

    @torch.no_grad()
    def _learn(self, step: Step, outputs: Outputs) -> None:
        left = min(-(step.number + 1) % self.period, step.steps - 1 - step.number)
        # What the queue would have forgotten by the next fit need not be looked at.
        if left < self.window and (seen := collect((self.labels,), step, outputs)):
            logits = step.ema(seen.images).logits.float()
            self.memory.push(logits=step.gather(logits), labels=step.gather(seen.labels))
        filled = int(self.memory.filled) if left <= 0 else 0
        if filled:
            self.fit(self.memory["logits"][:filled], self.memory["labels"][:filled])


def with_label(probs: Tensor, labels: Tensor) -> Tensor:
    """`probs` with `labels` strictly on top where rounding made a tie."""
    top = torch.nextafter(probs.amax(1), torch.full_like(probs[:, 0], 2)).clamp(max=1)
    return probs.scatter(1, labels[:, None], top[:, None])

"""RobustVCC: what departs from the paper's VCC. A reranking within each class, balanced classes, and a temperature.

A regression of r̃ shrinks toward its mean, so that whole classes never reach a fixed threshold. Differences from VCC:

- selection: r only orders the examples of a pseudo class. Their scale is that of the softmax confidence of all classes
  together, so that as many are selected as without VCC and the same fraction of each class (`Balance` does the same to
  any confidence; results/frozen/main-frozen.md has a method alone, with `Balance` and with RobustVCC side by side).
- inference: the softmax at a temperature learned from labeled images (`HardViewTemperature` on its own). No score and
  no VAE takes part.
- training: targets for a quarter of each batch, which costs less; the softmax selects during the first tenth of the
  run; the weight of its loss is 1; it never trains the classifier.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from ...types import Calibrated, Outputs, Step, Task, WeakOutputs
from ...utils.params import number
from ..base import set_top_confidence
from ..hard_view_temperature import LearnsTemperature, sample_rows
from ..scale_matching import ScaleMatching
from .vcc import VCC


@dataclass(kw_only=True, eq=False, repr=False)
class RobustVCC(LearnsTemperature, VCC):
    """VCC whose order within each pseudo class decides what is selected, and the softmax confidence how much.

    Args:
        reconstruct: "vae" or "mlp" learn the target; "none" selects by the target itself, on whole batches.
        match: the scale of the selection score, whose order within each pseudo class is kept: "balanced" takes that of
            the softmax confidence of all classes together (as many are selected as without VCC, the same fraction of
            each class), "confidence" that of the class itself (each class selects as many as without VCC), "none" its
            own.
        inference: the confidence of `predict`: the softmax at the learned "temperature", or the "reconstruction".
        queue_size: examples in the queues; 128 per class by default.
        min_per_class: examples of a class in the queue before its confidence is changed.
        target_fraction: random fraction of each batch on which the target is computed and learned.
        warmup_fraction: fraction of the run in which the softmax confidence still selects.
    """

    follows_schedule = True

    start: Literal["immediate", "staged"] = field(default="immediate", init=False)  # it has `warmup_fraction`
    joint: bool = field(default=False, init=False)
    weight: float = number(1.0)
    match: Literal["balanced", "confidence", "none"] = "balanced"
    inference: Literal["temperature", "reconstruction"] = "temperature"
    target_fraction: float = number(0.25, 0.001, 1)
    warmup_fraction: float = number(0.1, 0, 1)

    def setup(self, model: nn.Module, task: Task) -> None:
        """Create the history, the queues, the temperature and the network."""
        super().setup(model, task)
        self.scale = ScaleMatching(
            self.match, classes=task.classes, size=self.queue_length(task), min_per_class=self.min_per_class
        )

    def forward(self, step: Step, images: Tensor, outputs: WeakOutputs) -> Calibrated:
        """The selection confidence; in training mode, after storing the batch and computing the loss of its targets."""
        probs = outputs.logits.detach().float().softmax(1)
        score = self.reconstructed(probs, outputs.features.detach())
        loss = None
        if self.training and self.due(step):
            score, loss = self._observe_and_learn(step, images, outputs, score)
        selects = self.training or self.network is not None  # without a network there is a target in training only
        if selects and step.progress >= self.warmup_fraction:
            probs = set_top_confidence(probs, self.scale(score, *probs.max(1)))
        return Calibrated(probs, probs.amax(1), loss)

    @torch.no_grad()
    def predict(self, outputs: Outputs) -> Tensor:
        """Confidence in the predicted class at inference, with z at the prior's mean."""
        if self.inference == "temperature":
            return super().predict(outputs)
        probs = outputs.logits.float().softmax(1)
        return set_top_confidence(probs, self.reconstructed(probs, outputs.features)).amax(1)

    def _observe_and_learn(
        self, step: Step, images: Tensor, outputs: WeakOutputs, score: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Refit the temperature, store a part of the batch, and compute the network's loss on it."""
        fraction = 1.0 if self.network is None else self.target_fraction
        self.refit(step, images, fraction)
        rows = sample_rows(len(score), fraction, images.device)
        scored = self.observe(step, images, outputs, rows)
        target = self.target(scored)
        score = target if self.network is None else score
        self.scale.observe(step.gather, score=score[rows], confidence=scored.confidence, labels=scored.labels)
        chosen = Outputs(outputs.logits[rows], outputs.features[rows]).detach()
        return score, self.loss(chosen, target)

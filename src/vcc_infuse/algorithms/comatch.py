"""CoMatch (Li et al., ICCV 2021): class probabilities and embeddings smooth and shape one another."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..memory import Memory
from ..types import Calibrated, Losses, Outputs, PseudoLabels, Step, Task
from .alignment import QueueAlignment
from .base import PseudoLabelling, checked, labelled_loss
from .projection import Projection, full_precision, similarity


class CoMatch(PseudoLabelling):
    """Targets are smoothed by similar examples; embeddings of two strong views follow the similarity of targets.

    Args:
        threshold: largest target probability that a pseudo label must reach.
        weight: factor of the unlabelled loss.
        contrast_weight: factor of the contrastive loss (5 for STL-10).
        contrast_threshold: examples whose targets agree less are not pulled together.
        smoothing: share of the classifier in the target; the rest comes from the memory.
        temperature: of the similarities.
        width: dimensions of the projection.
        memory: size of the memory, in steps' worth of examples.
        queue: batches by which probabilities are aligned to the uniform distribution.
    """

    views = ("weak", "strong", "strong_2")

    def __init__(
        self,
        threshold: float = 0.95,
        weight: float = 1.0,
        contrast_weight: float = 1.0,
        contrast_threshold: float = 0.8,
        smoothing: float = 0.9,
        temperature: float = 0.2,
        width: int = 64,
        memory: int = 5,
        queue: int = 32,
    ) -> None:
        super().__init__()
        self.threshold = checked("threshold", threshold, 0, 1)
        self.weight = checked("weight", weight, 0, float("inf"))
        self.contrast_weight = checked("contrast_weight", contrast_weight, 0, float("inf"))
        self.contrast_threshold = checked("contrast_threshold", contrast_threshold, 0, 1)
        self.smoothing = checked("smoothing", smoothing, 0, 1)
        self.temperature = checked("temperature", temperature, 1e-3, float("inf"))
        self.width, self.queue = int(checked("width", width, 1, 2**20)), int(checked("queue", queue, 1, 2**20))
        self.memory = int(checked("memory", memory, 1, 2**20))

    def setup(self, model: nn.Module, task: Task) -> None:
        """A projection head, and a memory of projections and their class probabilities."""
        size = self.memory * (task.batch + task.unlabelled_batch)
        columns = {"projection": ((self.width,), torch.float32), "probs": ((task.classes,), torch.float32)}
        self.projection = Projection.of(model, self.width)
        self.alignment = QueueAlignment(task.classes, self.queue)
        self.bank = Memory(size, columns)

    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Soft targets, weight one where their largest probability reaches the threshold."""
        assert step.weak is not None
        probs = self.alignment(calibrated.probs, step.gather)
        return self._smooth(probs, step.weak.features)

    def losses(self, step: Step) -> Iterator[Losses]:
        """The template's terms, and the contrast between two strong views."""
        batch = step.batch
        inputs = (batch.x, batch.views["strong"], batch.views["strong_2"])
        weak, (labelled, strong, other) = step.teach(batch.views["weak"], *inputs)
        calibrated = step.confidence(batch.views["weak"], weak)
        probs = self.alignment(calibrated.probs, step.gather)
        pseudo = self._smooth(probs, weak.features)
        if self.training:
            self._remember(step, labelled, weak, probs)
        contrast = self._contrast(pseudo.targets, strong.features, other.features) * batch.weights
        yield Losses(
            pseudo,
            labelled=labelled_loss(labelled.logits, batch.y),
            unlabelled=self.weight * pseudo.loss(strong.logits, batch.weights),
            contrast=self.contrast_weight * contrast.mean(),
            calibration=calibrated.loss,
        )

    def class_thresholds(self) -> float:
        """The same for all."""
        return self.threshold

    @torch.no_grad()
    def _smooth(self, probs: Tensor, features: Tensor) -> PseudoLabels:
        """Mix probabilities with those of similar examples in the memory, once it is full."""
        near = similarity(self.projection(features), self.bank["projection"], self.temperature).softmax(1)
        with full_precision(near):
            smoothed = self.smoothing * probs + (1 - self.smoothing) * near @ self.bank["probs"]
        targets = smoothed.where(self.bank.filled == self.bank.size, probs)
        return PseudoLabels(targets, (targets.amax(1) >= self.threshold).float())

    @torch.no_grad()
    def _remember(self, step: Step, labelled: Outputs, weak: Outputs, probs: Tensor) -> None:
        """Push unlabelled examples with their aligned, unsmoothed probabilities, then labelled ones."""
        truth = F.one_hot(step.batch.y, probs.shape[1]).float()
        for features, rows in ((weak.features, probs), (labelled.features, truth)):
            self.bank.push(projection=step.gather(self.projection(features)), probs=step.gather(rows))

    def _contrast(self, targets: Tensor, features: Tensor, others: Tensor) -> Tensor:
        """Cross entropy, per example, between the graph of targets and that of embeddings."""
        with full_precision(targets):
            graph = (targets @ targets.T).fill_diagonal_(1)
        graph = F.normalize(graph.where(graph >= self.contrast_threshold, 0), p=1, dim=1)
        near = similarity(self.projection(features), self.projection(others), self.temperature).softmax(1)
        return -(graph * (near + 1e-7).log()).sum(1)

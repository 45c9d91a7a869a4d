"""CoMatch (Li et al., ICCV 2021): class probabilities and embeddings smooth and shape one another."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..memory import Memory
from ..types import Calibrated, Losses, Outputs, PseudoLabels, Step, Task
from ..validation import check_integer, check_range
from .alignment import QueueAlignment
from .base import PseudoLabeling
from .ops import labeled_loss
from .projection import Projection, full_precision, similarity


class CoMatch(PseudoLabeling):
    """Targets are smoothed by similar examples; embeddings of two strong views follow the similarity of targets.

    Args:
        threshold: largest target probability that a pseudo label must reach.
        weight: factor of the unlabeled loss.
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
        self.threshold = check_range("threshold", threshold, 0, 1)
        self.weight = check_range("weight", weight)
        self.contrast_weight = check_range("contrast_weight", contrast_weight)
        self.contrast_threshold = check_range("contrast_threshold", contrast_threshold, 0, 1)
        self.smoothing = check_range("smoothing", smoothing, 0, 1)
        self.temperature = check_range("temperature", temperature, 1e-3)
        self.width, self.queue = check_integer("width", width, 1), check_integer("queue", queue, 1)
        self.memory = check_integer("memory", memory, 1)

    def setup(self, model: nn.Module, task: Task) -> None:
        """A projection head, and a memory of projections and their class probabilities."""
        size = self.memory * (task.batch_size + task.unlabeled_batch_size)
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
        weak, (labeled, strong, other) = step.forward_weak_strong(batch.views["weak"], *inputs)
        calibrated = step.confidence(batch.views["weak"], weak)
        probs = self.alignment(calibrated.probs, step.gather)
        pseudo = self._smooth(probs, weak.features)
        if self.training:
            self._remember(step, labeled, weak, probs)
        contrast = self._contrast(pseudo.targets, strong.features, other.features) * batch.weights
        yield Losses(
            pseudo,
            labeled=labeled_loss(labeled.logits, batch.y),
            unlabeled=self.weight * pseudo.loss(strong.logits, batch.weights),
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
    def _remember(self, step: Step, labeled: Outputs, weak: Outputs, probs: Tensor) -> None:
        """Push unlabeled examples with their aligned, unsmoothed probabilities, then labeled ones."""
        truth = F.one_hot(step.batch.y, probs.shape[1]).float()
        for features, rows in ((weak.features, probs), (labeled.features, truth)):
            self.bank.push(projection=step.gather(self.projection(features)), probs=step.gather(rows))

    def _contrast(self, targets: Tensor, features: Tensor, others: Tensor) -> Tensor:
        """Cross entropy, per example, between the graph of targets and that of embeddings."""
        with full_precision(targets):
            graph = (targets @ targets.T).fill_diagonal_(1)
        graph = F.normalize(graph.where(graph >= self.contrast_threshold, 0), p=1, dim=1)
        near = similarity(self.projection(features), self.projection(others), self.temperature).softmax(1)
        return -(graph * (near + 1e-7).log()).sum(1)

"""CoMatch (Li et al., ICCV 2021): class probabilities and embeddings regularize each other."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..types import Calibrated, Losses, Outputs, PseudoLabels, Step, Task, WeakOutputs
from ..utils.params import integer, number
from ..utils.ring_buffer import RingBuffer
from .fixmatch import FixMatch
from .ops import Projection, QueueAlignment, full_precision, labeled_loss, similarity


@dataclass(kw_only=True, eq=False, repr=False)
class CoMatch(FixMatch):
    """Similar examples smooth the targets; embeddings of two strong views are trained to match target similarity.

    Args:
        threshold: largest target probability from which a pseudo label counts.
        contrast_weight: factor of the contrastive loss (5 for STL-10).
        contrast_threshold: pairs with a lower target similarity are not pulled together.
        smoothing: weight of the classifier in the target; the rest comes from the queue.
        temperature: of the similarities.
        embedding_dim: dimensions of the projection.
        hidden_dim: units of its hidden layer; as many as features if None.
        memory: size of the queue of embeddings, in batches.
        queue_size: number of batch means used to align probabilities to the uniform distribution.

    References:
        Li, Xiong and Hoi, CoMatch: Semi-supervised Learning with Contrastive Graph Regularization, ICCV 2021.
    """

    views = ("weak", "strong", "strong_2")
    lazy_strong = False  # the contrast compares all rows

    contrast_weight: float = number(1.0)
    contrast_threshold: float = number(0.8, 0, 1)
    smoothing: float = number(0.9, 0, 1)
    temperature: float = number(0.2, 0.001)
    embedding_dim: int = integer(64)
    memory: int = integer(5)
    queue_size: int = integer(32)
    hidden_dim: int | None = integer(None)

    def setup(self, model: nn.Module, task: Task) -> None:
        """A projection head, and a queue of projections and their class probabilities."""
        size = self.memory * (task.batch_size + task.unlabeled_batch_size)
        columns = {"projection": ((self.embedding_dim,), torch.float32), "probs": ((task.classes,), torch.float32)}
        self.projection = Projection.of(model, self.embedding_dim, self.hidden_dim)
        self.alignment = QueueAlignment(task.classes, self.queue_size)
        self.queue = RingBuffer(size, columns)

    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Soft targets, with weight 1 where the largest probability reaches the threshold."""
        probs = self.alignment(calibrated.probs, step.gather)
        return self._smooth(probs, calibrated.features)

    def losses(self, step: Step) -> Iterator[Losses]:
        """The terms of `PseudoLabeling`, and a contrastive loss between two strong views."""
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
            unlabeled=self.weight * pseudo.loss(strong.logits, calibrated.sample_weights(batch)),
            contrast=self.contrast_weight * contrast.mean(),
            calibration=calibrated.loss,
        )

    @torch.no_grad()
    def _smooth(self, probs: Tensor, features: Tensor) -> PseudoLabels:
        """Once the queue is full, mix probabilities with those of similar examples in it."""
        near = similarity(self.projection(features), self.queue["projection"], self.temperature).softmax(1)
        with full_precision(near):
            smoothed = self.smoothing * probs + (1 - self.smoothing) * near @ self.queue["probs"]
        targets = smoothed.where(self.queue.filled == self.queue.size, probs)
        return PseudoLabels(targets, (targets.amax(1) >= self.threshold).float())

    @torch.no_grad()
    def _remember(self, step: Step, labeled: Outputs, weak: WeakOutputs, probs: Tensor) -> None:
        """Store unlabeled examples with aligned, unsmoothed probabilities, then labeled ones with their labels."""
        truth = F.one_hot(step.batch.y, probs.shape[1]).float()
        for features, rows in ((weak.features, probs), (labeled.features, truth)):
            self.queue.push(projection=step.gather(self.projection(features)), probs=step.gather(rows))

    def _contrast(self, targets: Tensor, features: Tensor, others: Tensor) -> Tensor:
        """Cross entropy per example between the similarity graphs of targets and of embeddings."""
        with full_precision(targets):
            graph = (targets @ targets.T).fill_diagonal_(1)
        graph = F.normalize(graph.where(graph >= self.contrast_threshold, 0), p=1, dim=1)
        near = similarity(self.projection(features), self.projection(others), self.temperature).softmax(1)
        return -(graph * (near + 1e-7).log()).sum(1)

"""SimMatch (Zheng et al., CVPR 2022): pseudo labels and similarities to labeled images correct each other."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..types import Calibrated, Losses, PseudoLabels, Step, Task
from ..utils.params import integer, number
from .fixmatch import FixMatch
from .ops import Projection, QueueAlignment, epoch_steps, labeled_loss, last_occurrence, similarity


@dataclass(kw_only=True, eq=False, repr=False)
class SimMatch(FixMatch):
    """Targets mix class probabilities with the labels of similar images, and both views should have similar neighbors.

    Both parts start after `warmup_steps`, when every labeled image has been seen.

    Args:
        threshold: largest target probability from which a pseudo label counts.
        instance_weight: factor of the loss between the similarities of weak and strong views.
        smoothing: weight of the classifier in the target; the rest comes from the labels of similar images.
        temperature: of the similarities.
        embedding_dim: dimensions of the projection.
        hidden_dim: units of its hidden layer; as many as features if None.
        embedding_momentum: of the stored embeddings of labeled images.
        queue_size: number of batch means used to align probabilities to the uniform distribution.
        warmup_steps: steps before both parts start; by default 1,024, or one twentieth of a shorter run.

    References:
        Zheng et al., SimMatch: Semi-supervised Learning with Similarity Matching, CVPR 2022.
    """

    lazy_strong = False  # similarities are learned from all rows

    instance_weight: float = number(1.0)
    smoothing: float = number(0.9, 0, 1)
    temperature: float = number(0.1, 0.001)
    embedding_dim: int = integer(128)
    embedding_momentum: float = number(0.7, 0, 1)
    queue_size: int = integer(32)
    warmup_steps: int | None = integer(None, 0)
    hidden_dim: int | None = integer(None)

    def setup(self, model: nn.Module, task: Task) -> None:
        """A projection head, and the embedding and label (−1: not seen yet) of each labeled image."""
        self.projection = Projection.of(model, self.embedding_dim, self.hidden_dim)
        self.alignment = QueueAlignment(task.classes, self.queue_size)
        self.labeled_embeddings = nn.Buffer(F.normalize(torch.randn(task.labeled, self.embedding_dim), dim=1))
        self.embedded_labels = nn.Buffer(torch.full((task.labeled,), -1))

    def pseudo_label(self, calibrated: Calibrated, step: Step) -> PseudoLabels:
        """Soft targets, with weight 1 where the largest probability reaches the threshold."""
        return self._targets(calibrated, step)[0]

    def losses(self, step: Step) -> Iterator[Losses]:
        """The terms of `PseudoLabeling`, and the cross entropy between similarities."""
        batch = step.batch
        weak, (labeled, strong) = step.forward_weak_strong(batch.views["weak"], batch.x, batch.views["strong"])
        calibrated = step.confidence(batch.views["weak"], weak)
        pseudo, unfolded = self._targets(calibrated, step)
        # A copy: autograd needs the values before the update below.
        student = self._similarities(strong.features, self.labeled_embeddings.clone())
        instance = (F.cross_entropy(student, unfolded, reduction="none") * batch.weights).mean()
        if self.training:
            self._remember(step, self.projection(labeled.features.detach()).detach())
        yield Losses(
            pseudo,
            labeled=labeled_loss(labeled.logits, batch.y),
            unlabeled=self.weight * pseudo.loss(strong.logits, calibrated.sample_weights(batch)),
            instance=self.instance_weight * self._started(step) * instance,
            calibration=calibrated.loss,
        )

    def _started(self, step: Step) -> bool:
        return step.number >= (epoch_steps(step.steps) if self.warmup_steps is None else self.warmup_steps)

    @torch.no_grad()
    def _targets(self, calibrated: Calibrated, step: Step) -> tuple[PseudoLabels, Tensor]:
        """Pseudo labels, and similarities of the weak view, reweighted by the probability of each image's class."""
        probs = self.alignment(calibrated.probs, step.gather)
        teacher = self._similarities(calibrated.features, self.labeled_embeddings).softmax(1)
        labels = self.embedded_labels.clamp(min=0)
        unfolded = F.normalize(teacher * probs[:, labels], p=1, dim=1)
        aggregated = torch.zeros_like(probs).index_add_(1, labels, teacher)
        targets = self.smoothing * probs + (1 - self.smoothing) * aggregated if self._started(step) else probs
        return PseudoLabels(targets, (targets.amax(1) >= self.threshold).float()), unfolded

    def _similarities(self, features: Tensor, embeddings: Tensor) -> Tensor:
        """Logits over labeled images; those not seen yet are masked out."""
        logits = similarity(self.projection(features), embeddings, self.temperature)
        return logits.masked_fill(self.embedded_labels < 0, torch.finfo(logits.dtype).min)

    @torch.no_grad()
    def _remember(self, step: Step, projections: Tensor) -> None:
        """Update the embeddings of the batch; of a repeated id, the last row counts."""
        ids = step.gather(step.batch.ids)
        last = last_occurrence(ids)
        new = step.gather(projections)[last].lerp(self.labeled_embeddings[ids], self.embedding_momentum)
        self.labeled_embeddings[ids] = F.normalize(new, dim=1)
        self.embedded_labels[ids] = step.gather(step.batch.y)[last]

"""DASO (Oh et al., CVPR 2022): blend the pseudo label of the classifier with that of the nearest class prototype."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import check_integer, check_range
from ...types import Calibrated, Step, Task
from ...utils.device import class_counts
from ...utils.ring_buffer import ClassMemory
from ..base import PseudoLabeling
from ..ops import head_of, similarity
from .wrapper import WrappedStep, Wrapper


class DASO(Wrapper):
    """The more often a class is predicted, the more its pseudo labels rely on prototypes, which ignore frequency.

    Args:
        align_weight: factor of the loss between the prototype similarities of the weak and the strong view.
        temperature: of the similarity to prototypes.
        dist_temperature: flattens the frequency of predictions (0.3 for CIFAR-100, for STL-10 and for a pool whose
            imbalance differs from that of the labels).
        memory: labeled images per class; their mean feature is the prototype.
        warmup_fraction: fraction of the run in which the base is used alone (5000 of 250000 steps).
        refresh: steps over which predictions are counted before the counts are used (at most the warm-up).

    References:
        Oh, Kim and Kweon, DASO: Distribution-Aware Semantics-Oriented Pseudo-label for Imbalanced Semi-Supervised
        Learning, CVPR 2022.
    """

    needs_strong = True
    lazy_strong = False  # all rows are aligned with the prototypes

    def __init__(
        self,
        base: PseudoLabeling | None = None,
        *,
        align_weight: float = 1.0,
        temperature: float = 0.05,
        dist_temperature: float = 1.5,
        memory: int = 256,
        warmup_fraction: float = 0.02,
        refresh: int = 100,
    ) -> None:
        super().__init__(base)
        self.align_weight = check_range("align_weight", align_weight)
        self.temperature = check_range("temperature", temperature, 1e-3)
        self.dist_temperature = check_range("dist_temperature", dist_temperature, 1e-3)
        self.memory = check_integer("memory", memory)
        self.warmup_fraction = check_range("warmup_fraction", warmup_fraction, 0, 1)
        self.refresh = check_integer("refresh", refresh)

    def setup(self, model: nn.Module, task: Task) -> None:
        """Labeled features per class; prediction counts of the current period, and of the last complete one."""
        super().setup(model, task)
        self.class_queue = ClassMemory(task.classes, self.memory, head_of(model).in_features)
        self.current_counts = nn.Buffer(torch.zeros(task.classes))
        self.counts = nn.Buffer(torch.zeros(task.classes))

    def warmup_steps(self, step: Step) -> int:
        """Steps in which the base is used alone."""
        return int(self.warmup_fraction * step.steps)

    def blend(self) -> Tensor:
        """Weight of the prototypes, per predicted class; zero before the first complete count."""
        weight = (self.counts / self.counts.max().clamp(min=1)) ** (1 / self.dist_temperature)
        return weight.where(self.counts > 0, 0)

    def prototype_logits(self, features: Tensor) -> Tensor:
        """Similarity to each prototype; classes without labeled images so far are masked out."""
        prototypes = F.normalize(self.class_queue.means(), dim=1)
        logits = similarity(F.normalize(features.float(), dim=1), prototypes, self.temperature)
        return logits.masked_fill(~self.class_queue.known, torch.finfo(logits.dtype).min)

    @torch.no_grad()
    def correct(self, calibrated: Calibrated, step: Step) -> Calibrated:
        """Probabilities of the classifier, blended with those of the prototypes."""
        if self.training:
            self._remember(step)
        if step.number >= self.warmup_steps(step):
            weight = self.blend()[calibrated.labels][:, None]
            probs = calibrated.probs.float().lerp(self.prototype_logits(calibrated.features).softmax(1), weight)
            calibrated = calibrated._replace(probs=probs, confidence=probs.amax(1))
        if self.training:
            self.current_counts.add_(class_counts(step.gather(calibrated.labels), len(self.current_counts)))
        return calibrated

    def wrapper_losses(self, step: WrappedStep) -> dict[str, Tensor]:
        """Cross entropy between the prototype similarities of strong and weak views."""
        if step.number < self.warmup_steps(step):
            return {}
        assert step.weak is not None
        with torch.no_grad():
            target = self.prototype_logits(step.weak.features).softmax(1)
        losses = F.cross_entropy(self.prototype_logits(step.outputs[1].features), target, reduction="none")
        return {"alignment": self.align_weight * (losses * step.batch.weights).mean()}

    def _remember(self, step: Step) -> None:
        """Store the features of labeled images under the averaged model; start a new count at the end of a period."""
        features = step.ema(step.batch.x).features
        self.class_queue.push(step.gather(features.float()), step.gather(step.batch.y))
        # The first count must be complete when the warm-up ends.
        period = min(self.refresh, max(1, self.warmup_steps(step)))
        if step.number % period == 0 and step.number > 0:
            self.counts.copy_(self.current_counts)
            self.current_counts.zero_()

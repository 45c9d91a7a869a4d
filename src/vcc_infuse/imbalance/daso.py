"""DASO (Oh et al., CVPR 2022): blend the classifier's pseudo label with that of the nearest class prototype."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..algorithms.base import PseudoLabeling
from ..algorithms.projection import similarity
from ..memory import ClassMemory
from ..types import Calibrated, Step, Task
from ..validation import check_integer, check_range
from .plugin import Plugin, Seen


class DASO(Plugin):
    """The more often a class is predicted, the more its pseudo labels listen to prototypes, which know no frequency.

    Args:
        base: the method whose pseudo labels are blended; FixMatch if not given.
        align_weight: factor of the loss between the prototypes that weak and strong view are near.
        temperature: of the similarity to prototypes.
        dist_temperature: flattens the frequency of predictions (0.3 for CIFAR-100, STL-10 and a pool that is
            imbalanced otherwise than the labels).
        memory: labeled images a class, whose mean feature is its prototype.
        warmup_share: share of the run in which the base goes alone (5000 steps of 250000).
        refresh: steps over which predictions are counted before the count is used (the warm-up, where it is shorter).
    """

    needs_strong = True
    counting: Tensor
    counted: Tensor

    def __init__(
        self,
        base: PseudoLabeling | None = None,
        align_weight: float = 1.0,
        temperature: float = 0.05,
        dist_temperature: float = 1.5,
        memory: int = 256,
        warmup_share: float = 0.02,
        refresh: int = 100,
    ) -> None:
        super().__init__(base)
        self.align_weight = check_range("align_weight", align_weight)
        self.temperature = check_range("temperature", temperature, 1e-3)
        self.dist_temperature = check_range("dist_temperature", dist_temperature, 1e-3)
        self.memory = check_integer("memory", memory, 1)
        self.warmup_share = check_range("warmup_share", warmup_share, 0, 1)
        self.refresh = check_integer("refresh", refresh, 1)

    def setup(self, model: nn.Module, task: Task) -> None:
        """Labeled features by class; predictions being counted, and those of the last full count."""
        super().setup(model, task)
        head = model.get_submodule("head")
        assert isinstance(head, nn.Linear)
        self.bank = ClassMemory(task.classes, self.memory, head.in_features)
        self.register_buffer("counting", torch.zeros(task.classes))
        self.register_buffer("counted", torch.zeros(task.classes))

    def warmup_steps(self, step: Step) -> int:
        """Steps in which the base goes alone."""
        return int(self.warmup_share * step.steps)

    def blend(self) -> Tensor:
        """The prototypes' share in a label, by the class the classifier names; zero before the first count."""
        share = (self.counted / self.counted.max().clamp(min=1)) ** (1 / self.dist_temperature)
        return share.where(self.counted > 0, 0)

    def semantics(self, features: Tensor) -> Tensor:
        """Similarity to each prototype, as logits; a class without labeled images yet is like nothing."""
        prototypes = F.normalize(self.bank.means(), dim=1)
        logits = similarity(F.normalize(features.float(), dim=1), prototypes, self.temperature)
        return logits.masked_fill(~self.bank.known, torch.finfo(logits.dtype).min)

    @torch.no_grad()
    def correct(self, calibrated: Calibrated, step: Step) -> Calibrated:
        """Probabilities of each example, blended with the prototypes' of the same example."""
        assert step.weak is not None
        if self.training:
            self._remember(step)
        if step.number >= self.warmup_steps(step):
            share = self.blend()[calibrated.labels][:, None]
            probs = calibrated.probs.float().lerp(self.semantics(step.weak.features).softmax(1), share)
            calibrated = Calibrated(probs, probs.amax(1), calibrated.loss)
        if self.training:
            self.counting += torch.bincount(step.gather(calibrated.labels), minlength=len(self.counting))
        return calibrated

    def extra(self, step: Seen) -> dict[str, Tensor]:
        """Strong views shall be near the prototypes that their weak views are near."""
        if step.number < self.warmup_steps(step):
            return {}
        assert step.weak is not None
        with torch.no_grad():
            target = self.semantics(step.weak.features).softmax(1)
        each = F.cross_entropy(self.semantics(step.taught[1].features), target, reduction="none")
        return {"alignment": self.align_weight * (each * step.batch.weights).mean()}

    def _remember(self, step: Step) -> None:
        """Take in the labeled images as the averaged model sees them; begin a new count when it is time."""
        features = step.ema(step.batch.x).features
        self.bank.push(step.gather(features.float()), step.gather(step.batch.y))
        # A count must be there when the warm-up ends.
        period = min(self.refresh, max(1, self.warmup_steps(step)))
        if step.number % period == 0 and step.number > 0:
            self.counted.copy_(self.counting)
            self.counting.zero_()

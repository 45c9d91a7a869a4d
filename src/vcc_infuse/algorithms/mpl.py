"""Meta Pseudo Labels (Pham et al., CVPR 2021): a teacher learns from how much its labels helped the student."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.classifier import frozen_statistics
from ..types import Losses, Outputs, PseudoLabels, Step, Task
from ..validation import check_range
from .base import Algorithm
from .ops import labeled_loss, ramp, sharpen


class MPL(Algorithm):
    """The student learns only the teacher's labels; the teacher learns labels, consistency (UDA) and the feedback.

    The feedback is the student's labeled loss before its update minus the loss after. The last part of the run
    fine-tunes the student on the labels alone. The student's average is what is evaluated.

    It takes no calibrator: the student learns every label, and the threshold belongs to the teacher's own
    consistency, while a calibrator learns from the features of the student.

    Differences from the paper: the teacher starts from the student's initial weights; both follow the trainer's
    learning rate, from the first step on, also while fine-tuning (the paper: 8000 steps at 3e-5).

    Args:
        weight: factor of the teacher's consistency loss.
        rampup_fraction: share of the run over which that factor rises from zero (the paper's code: 5000 of 300k steps).
        threshold: probability that the teacher's weak view must reach to teach its strong view.
        temperature: sharpens that target.
        smoothing: label smoothing of the teacher's labeled and the student's loss.
        finetune: share of the run, at its end, in which the student learns the labels (the paper: 0.008). More
            than a hundredth made digits with 40 labels (one seed) no more accurate and less calibrated.
    """

    def __init__(
        self,
        weight: float = 8.0,
        rampup_fraction: float = 1 / 60,
        threshold: float = 0.6,
        temperature: float = 0.7,
        smoothing: float = 0.15,
        finetune: float = 0.01,
    ) -> None:
        super().__init__()
        self.weight = check_range("weight", weight)
        self.rampup_fraction = check_range("rampup_fraction", rampup_fraction, 0, 1)
        self.threshold = check_range("threshold", threshold, 0, 1)
        self.temperature = check_range("temperature", temperature, 0.01, 100)
        self.smoothing = check_range("smoothing", smoothing, 0, 1)
        self.finetune = check_range("finetune", finetune, 0, 1)

    def setup(self, model: nn.Module, task: Task) -> None:
        """The teacher is a second network of the same kind."""
        self.teacher = copy.deepcopy(model)

    def losses(self, step: Step) -> Iterator[Losses]:
        """One update of the student, then one of the teacher."""
        batch = step.batch
        if step.progress >= 1 - self.finetune:
            (outputs,) = step.forward(batch.x)
            yield Losses(finetune=labeled_loss(outputs.logits, batch.y))
            return
        weak, labeled, strong = self.forward_weak_strong(step)
        pseudo = PseudoLabels(strong.logits.detach().argmax(1), torch.ones_like(batch.weights))
        before = student_loss(step)
        (student,) = step.forward(batch.views["strong"])
        yield Losses(pseudo, student=(batch.weights * self.smoothed(student, pseudo.targets)).mean())
        with frozen_statistics(step.model):
            feedback = before - student_loss(step)
        yield Losses(
            teacher_labeled=self.smoothed(labeled, batch.y).mean(),
            teacher_consistency=self.consistency_weight(step) * self.consistency(weak, strong, batch.weights),
            teacher_feedback=feedback * pseudo.loss(strong.logits, batch.weights),
        )

    def forward_weak_strong(self, step: Step) -> tuple[Outputs, Outputs, Outputs]:
        """The teacher's word on the weak view (no gradient), the labeled images and the strong view.

        One forward for all three: the threshold is low, and apart from the others the weak view would be normalized
        by other statistics than those the labels were learned with. Running statistics are never needed.
        """
        images = [step.batch.views["weak"], step.batch.x, step.batch.views["strong"]]
        with frozen_statistics(self.teacher):
            weak, labeled, strong = self.teacher(torch.cat(images)).split([len(part) for part in images])
        return weak.detach(), labeled, strong

    def smoothed(self, outputs: Outputs, labels: Tensor) -> Tensor:
        """Each example's cross entropy with smoothed labels."""
        return F.cross_entropy(outputs.logits.float(), labels, reduction="none", label_smoothing=self.smoothing)

    def consistency(self, weak: Outputs, strong: Outputs, weights: Tensor) -> Tensor:
        """UDA's loss: the strong view learns the sharpened weak view where that is confident."""
        probs = weak.logits.float().softmax(1)
        sure = (probs.amax(1) >= self.threshold).float()
        return PseudoLabels(sharpen(probs, self.temperature), sure).loss(strong.logits, weights)

    def consistency_weight(self, step: Step) -> float:
        """Rises over the first part of the run, counting from one as in the paper's code."""
        return self.weight * ramp((step.number + 1) / step.steps, self.rampup_fraction)


@torch.no_grad()
def student_loss(step: Step) -> Tensor:
    """The student's loss on the whole labeled batch, in float32: the feedback is a small difference.

    Asked before the update it also moves the statistics, which otherwise would know strong views only.
    """
    with torch.autocast(step.batch.x.device.type, enabled=False):
        logits = step.model(step.batch.x).logits
    return step.gather(F.cross_entropy(logits, step.batch.y, reduction="none")).mean()

"""Meta Pseudo Labels (Pham et al., CVPR 2021): a teacher is trained by how much its labels improve the student."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.classifier import frozen_statistics
from ..types import Losses, Outputs, PseudoLabels, Step, Task
from ..utils.params import number
from .base import Algorithm
from .ops import labeled_loss, ramp, sharpen


@dataclass(kw_only=True, eq=False, repr=False)
class MPL(Algorithm):
    """The student learns only pseudo labels; the teacher learns from labels, consistency (UDA) and feedback.

    The feedback is the labeled loss of the student before its update minus the loss after it. The last part of the
    run fine-tunes the student on the labels alone. The averaged student is evaluated.

    No calibrator applies: the student learns every pseudo label, and the threshold is used only in the consistency
    loss of the teacher, whereas a calibrator is trained on the features of the student.

    Differences from the paper: the teacher starts from the initial weights of the student, whose target is the most
    likely class instead of a distribution. Both use the learning rate of the trainer from the first step on, also for
    fine-tuning (the paper: 8000 steps at 3e-5).

    Args:
        weight: factor of the consistency loss of the teacher.
        rampup_fraction: fraction of the run over which that factor rises from zero (paper's code: 5000 of 300k steps).
        threshold: probability that the weak view must reach to become a target of the strong view.
        temperature: sharpens that target.
        smoothing: label smoothing of the labeled loss of the teacher and of the loss of the student.
        finetune_fraction: last fraction of the run, in which the student learns the labels (the paper: 0.008). On
            digits with 40 labels (one seed), more than 0.01 did not improve accuracy and made calibration worse.

    References:
        Pham et al., Meta Pseudo Labels, CVPR 2021.
    """

    weight: float = number(8.0)
    rampup_fraction: float = number(1 / 60, 0, 1)
    threshold: float = number(0.6, 0, 1)
    temperature: float = number(0.7, 0.01, 100)
    smoothing: float = number(0.15, 0, 1)
    finetune_fraction: float = number(0.01, 0, 1)

    def setup(self, model: nn.Module, task: Task) -> None:
        """The teacher is a copy of the model."""
        self.teacher = copy.deepcopy(model)

    def losses(self, step: Step) -> Iterator[Losses]:
        """One update of the student, then one of the teacher."""
        batch = step.batch
        if step.progress >= 1 - self.finetune_fraction:
            (outputs,) = step.forward(batch.x)
            yield Losses(finetune=labeled_loss(outputs.logits, batch.y))
            return
        # One forward: the weak view must be normalized by the statistics that the labels were learned with. The running
        # statistics of the teacher are never used.
        images = [batch.views["weak"], batch.x, batch.views["strong"]]
        with frozen_statistics(self.teacher):
            weak, labeled, strong = self.teacher(torch.cat(images)).split([len(part) for part in images])
        pseudo = PseudoLabels(strong.logits.detach().argmax(1), torch.ones_like(batch.weights))
        before = student_loss(step)
        (student,) = step.forward(batch.views["strong"])
        yield Losses(pseudo, student=(batch.weights * self.smoothed(student, pseudo.targets)).mean())
        with frozen_statistics(step.model):
            feedback = before - student_loss(step)
        rise = ramp((step.number + 1) / step.steps, self.rampup_fraction)  # from step one, as in the paper's code
        yield Losses(
            teacher_labeled=self.smoothed(labeled, batch.y).mean(),
            teacher_consistency=self.weight * rise * self.consistency(weak.detach(), strong, batch.weights),
            teacher_feedback=feedback * pseudo.loss(strong.logits, batch.weights),
        )

    def smoothed(self, outputs: Outputs, labels: Tensor) -> Tensor:
        """Cross entropy per example with smoothed labels."""
        return F.cross_entropy(outputs.logits.float(), labels, reduction="none", label_smoothing=self.smoothing)

    def consistency(self, weak: Outputs, strong: Outputs, weights: Tensor) -> Tensor:
        """The loss of UDA: confident weak views, sharpened, are the targets of the strong views."""
        probs = weak.logits.float().softmax(1)
        confident = (probs.amax(1) >= self.threshold).float()
        return PseudoLabels(sharpen(probs, self.temperature), confident).loss(strong.logits, weights)


@torch.no_grad()
def student_loss(step: Step) -> Tensor:
    """The loss of the student on the labeled batch of all processes, in float32: the feedback is a small difference.

    Outside `frozen_statistics` this forward also updates BatchNorm, which would otherwise see strong views only.
    """
    with torch.autocast(step.batch.x.device.type, enabled=False):
        logits = step.model(step.batch.x).logits
    return step.gather(F.cross_entropy(logits, step.batch.y, reduction="none")).mean()

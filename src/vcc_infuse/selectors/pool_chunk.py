"""A piece of the pool as the algorithm would learn from it now: pseudo labels, their weights, the student's outputs."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..algorithms import Algorithm
from ..types import Calibrated, Outputs, PseudoLabels, Step


class Chunk(NamedTuple):
    """Rows of the pool. `outputs` belong to the view that learns; they are zero where the weight is zero."""

    ids: Tensor
    targets: Tensor
    labels: Tensor
    weights: Tensor
    confidence: Tensor
    images: Tensor
    outputs: Outputs

    @property
    def errors(self) -> Tensor:
        """Gradient of each example's loss in its logits: weight · (softmax − target)."""
        return self.weights[:, None] * (self.outputs.logits.softmax(1) - self.targets)


@torch.no_grad()
def judge(step: Step, algorithm: Algorithm) -> Chunk:
    """Ask calibrator and algorithm (both in eval mode) what each example of the step would teach."""
    views = step.batch.views
    weak: Outputs = step.model(views["weak"])
    step.weak = weak
    calibrated = step.confidence(views["weak"], weak)
    pseudo = pseudo_labels(algorithm, calibrated, step)
    images = views[student_view(algorithm)]
    outputs = Outputs(*(part.float() for part in weak))
    if images is not views["weak"]:
        outputs = _forward_where(step.model, images, pseudo.weights > 0, outputs)
    targets = pseudo.targets if pseudo.targets.ndim == 2 else F.one_hot(pseudo.targets, weak.logits.shape[1])
    confidence = calibrated.confidence.float()
    return Chunk(
        step.batch.pool_ids, targets.float(), pseudo.labels, pseudo.weights.float(), confidence, images, outputs
    )


def pseudo_labels(algorithm: Algorithm, calibrated: Calibrated, step: Step) -> PseudoLabels:
    """The algorithm's own; for a method without pseudo labels, the likeliest class of every example."""
    rule = getattr(algorithm, "pseudo_label", None)
    if rule is None:
        return PseudoLabels(calibrated.labels, torch.ones_like(calibrated.confidence))
    return rule(calibrated, step)


def student_view(algorithm: Algorithm) -> str:
    """The view whose prediction is corrected: the strong one, or the last that the method asks for."""
    return "strong" if "strong" in algorithm.views else algorithm.views[-1]


def _forward_where(model: nn.Module, images: Tensor, wanted: Tensor, like: Outputs) -> Outputs:
    """Outputs of the wanted rows, zeros elsewhere: an example without weight has no gradient to compute."""
    blank = Outputs(*(torch.zeros_like(part) for part in like))
    if wanted.any():
        for part, values in zip(blank, model(images[wanted]), strict=True):
            part[wanted] = values.float()
    return blank

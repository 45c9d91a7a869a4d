"""A chunk of the pool as the algorithm would learn from it now: pseudo labels, their weights, the student's outputs."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..algorithms import Algorithm, PseudoLabeling
from ..types import Calibrated, Outputs, PseudoLabels, Step


class PoolChunk(NamedTuple):
    """Rows of the pool. `outputs` belong to the view with gradient; they are zero where the weight is zero."""

    ids: Tensor
    targets: Tensor
    labels: Tensor
    weights: Tensor
    confidence: Tensor
    images: Tensor
    outputs: Outputs

    @property
    def errors(self) -> Tensor:
        """Gradient of each example's loss with respect to its logits: weight · (softmax − target)."""
        return self.weights[:, None] * (self.outputs.logits.softmax(1) - self.targets)


@torch.no_grad()
def evaluate_chunk(step: Step, algorithm: Algorithm) -> PoolChunk:
    """Pseudo-label the step's unlabeled examples; calibrator and algorithm must be in eval mode."""
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
    weights = pseudo.weights * calibrated.sample_weights(step.batch)
    confidence = calibrated.confidence.float()
    return PoolChunk(step.batch.pool_ids, targets.float(), pseudo.labels, weights.float(), confidence, images, outputs)


def pseudo_labels(algorithm: Algorithm, calibrated: Calibrated, step: Step) -> PseudoLabels:
    """The algorithm's own; for a method without pseudo labels, the most likely class of every example."""
    if isinstance(algorithm, PseudoLabeling):
        return algorithm.pseudo_label(calibrated, step)
    return PseudoLabels(calibrated.labels, torch.ones_like(calibrated.confidence))


def student_view(algorithm: Algorithm) -> str:
    """The view that is trained on: the strong one, or the last one that the method uses."""
    return "strong" if "strong" in algorithm.views else algorithm.views[-1]


def _forward_where(model: nn.Module, images: Tensor, wanted: Tensor, like: Outputs) -> Outputs:
    """Outputs of the wanted rows, zeros elsewhere: an example without weight has no gradient to compute."""
    outputs = Outputs(*(torch.zeros_like(part) for part in like))
    if wanted.any():
        for part, values in zip(outputs, model(images[wanted]), strict=True):
            part[wanted] = values.float()
    return outputs

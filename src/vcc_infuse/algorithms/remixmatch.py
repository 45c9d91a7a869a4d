"""ReMixMatch (Berthelot et al., ICLR 2020): MixMatch with aligned guesses, strong views and a rotation task."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError
from ..models.classifier import frozen_statistics
from ..types import Losses, PseudoLabels, Step, Task
from ..utils.params import number
from .mixmatch import MixMatch
from .ops import EMAAlignment, head_of, interleaved_forward, mixup, ramp, sharpen


@dataclass(kw_only=True, eq=False, repr=False)
class ReMixMatch(MixMatch):
    """The prediction for the weak view, aligned and sharpened, is the target of two strong views, mixed and unmixed.

    The paper uses eight strong views, and strong views of labeled images; here there are two, and weak ones.
    A mixed example carries the core-set weight of its dominant half.

    Args:
        weight: factor of the mixed unlabeled loss.
        strong_weight: factor of the loss of the unmixed strong view.
        rotation_weight: factor of the loss of predicting by how many quarter turns the strong view was rotated.
        rampup_fraction: fraction of the run over which the first two factors rise from zero.
        momentum: of the mean guess that is aligned to `target` (the paper: the mean of the last 128 batches); less in
            short runs, see `Step.momentum`.
        target: class distribution that guesses are aligned to: that of the labels, or uniform.

    References:
        Berthelot et al., ReMixMatch: Semi-Supervised Learning with Distribution Alignment and Augmentation Anchoring,
        ICLR 2020.
    """

    views = ("weak", "strong", "strong_2")  # type: ignore[assignment]  # inferred as a pair in MixMatch

    weight: float = number(1.5)
    strong_weight: float = number(0.5)
    rotation_weight: float = number(0.5)
    momentum: float = number(0.992, 0, 1)
    target: Literal["labeled", "uniform"] = "labeled"

    def setup(self, model: nn.Module, task: Task) -> None:
        """A head that classifies four rotations, and the running mean of the guesses."""
        self.rotation = nn.Linear(head_of(model).in_features, 4)
        counts = task.label_counts.cpu() if self.target == "labeled" else None
        self.alignment = EMAAlignment(task.classes, momentum=self.momentum, target=counts)

    @torch.no_grad()
    def guess(self, step: Step) -> Tensor:
        """The prediction for the weak view, aligned and sharpened."""
        with frozen_statistics(step.model):
            probs = step.model(step.batch.views["weak"]).logits.float().softmax(1)
        return sharpen(self.alignment(probs, step.gather, step.momentum(self.momentum)), self.temperature)

    def losses(self, step: Step) -> Iterator[Losses]:
        """Mixed labeled, mixed unlabeled, unmixed strong and rotation loss."""
        batch = step.batch
        views = batch.views
        size = len(batch.x)
        check_square(views["strong"])
        guess = self.guess(step)
        labels = F.one_hot(batch.y, guess.shape[1]).to(guess.dtype)
        inputs = torch.cat([batch.x, views["strong"], views["strong_2"], views["weak"]])
        inputs, targets = mixup(inputs, torch.cat([labels, guess, guess, guess]), self.alpha)
        logits = interleaved_forward(step, inputs, size)
        mixed = PseudoLabels(targets[size:], batch.weights.repeat(3))
        rise = ramp(step.progress, self.rampup_fraction)
        pseudo = PseudoLabels(guess, torch.ones_like(batch.weights))
        turns = torch.randint(4, (len(batch.weights),), device=batch.weights.device)
        with frozen_statistics(step.model):
            (strong,) = step.forward(views["strong"])
            (turned,) = step.forward(rotate(views["strong"], turns))
        rotation = PseudoLabels(turns, batch.weights).loss(self.rotation(turned.features))
        yield Losses(
            pseudo,
            labeled=F.cross_entropy(logits[:size].float(), targets[:size]),
            unlabeled=self.weight * rise * mixed.loss(logits[size:]),
            strong=self.strong_weight * rise * pseudo.loss(strong.logits, batch.weights),
            rotation=self.rotation_weight * rotation,
        )


def rotate(images: Tensor, turns: Tensor) -> Tensor:
    """Rotate each image by its own number of quarter turns, counterclockwise."""
    rotated = torch.stack([images.rot90(k, (2, 3)) for k in range(4)])
    return rotated[turns, torch.arange(len(images), device=images.device)]


def check_square(images: Tensor) -> None:
    """Refuse inputs that cannot be rotated by 90 degrees."""
    if images.ndim != 4:
        raise UserError("ReMixMatch rotates images and cannot rotate vectors; choose MixMatch instead")
    height, width = images.shape[2:]
    if height != width:
        raise UserError(f"ReMixMatch needs square images, got {height}×{width}; set size or choose MixMatch")

"""The values that travel between data, model, calibrator, algorithm and trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Outputs(NamedTuple):
    """The output of a model for a batch: class logits, and the pooled features they came from."""

    logits: Tensor
    features: Tensor

    def detach(self) -> Outputs:
        """The same values, cut from the graph."""
        return Outputs(self.logits.detach(), self.features.detach())

    @classmethod
    def cat(cls, pieces: Sequence[Outputs]) -> Outputs:
        """Join along the batch."""
        return cls(*(torch.cat(tensors) for tensors in zip(*pieces, strict=True)))

    def split(self, sizes: list[int]) -> list[Outputs]:
        """Undo a concatenation along the batch."""
        parts = zip(torch.split(self.logits, sizes), torch.split(self.features, sizes), strict=True)
        return [Outputs(*part) for part in parts]


@dataclass(frozen=True)
class Task:
    """The sizes an algorithm, calibrator or selector needs before the first step."""

    classes: int
    labeled: int
    pool: int
    label_counts: Tensor
    steps: int
    batch_size: int
    unlabeled_batch_size: int


class Batch(NamedTuple):
    """One step's data on this process: labeled images, unlabeled views, and who they are.

    `ids` count within the labeled set, `pool_ids` within the unlabeled pool; `weights` come from the core set.
    `held_out_y` are the labels of the view "held_out", for a calibrator that asks for images kept out of training.
    """

    x: Tensor
    y: Tensor
    ids: Tensor
    views: dict[str, Tensor]
    pool_ids: Tensor
    weights: Tensor
    held_out_y: Tensor | None = None


class Calibrated(NamedTuple):
    """Trust in each class, trust in the pseudo label, and the loss of learning that trust (None if nothing is learned).

    The largest of `probs` marks the label, which is always the classifier's; `confidence` is compared with thresholds.
    """

    probs: Tensor
    confidence: Tensor
    loss: Tensor | None = None

    @property
    def labels(self) -> Tensor:
        """The most trusted class."""
        return self.probs.argmax(1)


class PseudoLabels(NamedTuple):
    """Targets (classes, or one distribution per row) and how much each counts."""

    targets: Tensor
    weights: Tensor

    @property
    def labels(self) -> Tensor:
        """The target class of each example."""
        return self.targets if self.targets.ndim == 1 else self.targets.argmax(1)

    def loss(self, logits: Tensor, sample_weights: Tensor | None = None) -> Tensor:
        """Weighted cross entropy, averaged over the whole batch: examples with weight zero count in the denominator."""
        each = F.cross_entropy(logits.float(), self.targets, reduction="none") * self.weights
        return (each if sample_weights is None else each * sample_weights).mean()


class Losses(dict[str, Tensor]):
    """Named, already weighted terms: their sum is minimized and each is logged; `pseudo` is logged for its quality."""

    def __init__(self, pseudo: PseudoLabels | None = None, **terms: Tensor | None) -> None:
        super().__init__({name: term for name, term in terms.items() if term is not None})
        self.pseudo = pseudo

    def total(self) -> Tensor:
        """What the optimizer minimizes."""
        return torch.stack([term.float() for term in self.values()]).sum()


class Coreset(NamedTuple):
    """The pool ids to train on until the next refresh, and their weights (mean 1)."""

    ids: Tensor
    weights: Tensor


def identity_gather(tensor: Tensor) -> Tensor:
    """`gather` for a single process."""
    return tensor


@dataclass
class Step:
    """Everything an algorithm may look at in one training step."""

    batch: Batch
    model: nn.Module
    ema: nn.Module
    calibrate: Callable[[Step, Tensor, Outputs], Calibrated]
    number: int = 0
    steps: int = 1
    joint: bool = False
    gather: Callable[[Tensor], Tensor] = field(default=identity_gather)
    micro_batch: int | None = None
    """Examples per forward and backward, so that memory stays bounded; the whole batch if None."""
    weak: Outputs | None = None
    """The model's outputs for the weak view, once computed."""

    @property
    def progress(self) -> float:
        """The fraction of the run that is done, 0…1."""
        return self.number / self.steps

    def confidence(self, images: Tensor, outputs: Outputs) -> Calibrated:
        """Where a calibrator plugs in."""
        return self.calibrate(self, images, outputs)

    def forward(self, *inputs: Tensor) -> list[Outputs]:
        """One forward with gradient for several inputs, which share their BatchNorm statistics.

        With `micro_batch` each piece is computed without storing activations, and again during the backward pass: the
        gradient is that of the whole batch, unless BatchNorm normalizes by the piece.
        """
        joined = torch.cat(inputs)
        if self.micro_batch is None or len(joined) <= self.micro_batch:
            outputs: Outputs = self.model(joined)
        else:
            pieces = torch.split(joined, self.micro_batch)
            outputs = Outputs.cat([checkpoint(self.model, piece, use_reentrant=False) for piece in pieces])
        return outputs.split([len(x) for x in inputs])

    def forward_weak_strong(self, weak: Tensor, *inputs: Tensor) -> tuple[Outputs, list[Outputs]]:
        """Outputs of the weak view without gradient, of the other inputs with gradient.

        The weak view is evaluated like a test image, with BatchNorm's running statistics: normalized by its own
        statistics it would meet a classifier trained under those of the strong views, and whole classes would never
        reach the threshold. `joint` is the papers' single forward with shared statistics, whose backward pass
        includes the weak view to no effect.
        """
        if self.joint:
            *others, last = self.forward(*inputs, weak)
            self.weak = last.detach()
            return self.weak, others
        self.weak = self.forward_eval(weak)
        return self.weak, self.forward(*inputs)

    @torch.no_grad()
    def forward_eval(self, images: Tensor) -> Outputs:
        """Outputs as at inference: no gradient, no dropout, running statistics."""
        training = self.model.training
        self.model.eval()
        outputs = [self.model(piece) for piece in torch.split(images, self.micro_batch or max(1, len(images)))]
        self.model.train(training)
        return outputs[0] if len(outputs) == 1 else Outputs.cat(outputs)

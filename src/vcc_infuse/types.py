"""The values that travel between data, model, calibrator, algorithm and trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

__all__ = ["Batch", "Calibrated", "Coreset", "Losses", "Outputs", "PseudoLabels", "Step", "Task", "WeakOutputs"]


class Outputs(NamedTuple):
    """The output of a model for a batch.

    Args:
        logits: class logits, (batch, classes).
        features: the pooled features they were computed from, (batch, width).
    """

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

    def spread(self, rows: Tensor, count: int) -> Outputs:
        """As `rows` of a batch of `count`, with zeros elsewhere."""
        if len(rows) == count:
            return self
        return Outputs(*(part.new_zeros(count, part.shape[1]).index_copy_(0, rows, part) for part in self))


class WeakOutputs(NamedTuple):
    """The model's outputs for the weak view, detached, and what a calibrator has to know about how they were computed.

    Args:
        logits: (batch, classes).
        features: (batch, width).
        with_gradient: the same outputs in the graph, if they are in one: for a calibrator whose loss trains the
            network too.
        at_inference: whether running statistics normalized them and no dropout was active.
    """

    logits: Tensor
    features: Tensor
    with_gradient: Outputs | None = None
    at_inference: bool = False

    @property
    def outputs(self) -> Outputs:
        """Logits and features alone."""
        return Outputs(self.logits, self.features)


@dataclass(frozen=True)
class Task:
    """The sizes an algorithm, calibrator or selector needs before the first step.

    Args:
        classes: number of classes.
        labeled: number of labeled examples.
        pool: number of unlabeled examples.
        label_counts: labeled examples per class, (classes,).
        steps: steps of the run.
        batch_size: labeled examples per step, over all processes.
        unlabeled_batch_size: unlabeled examples per step, over all processes.
        label_groups: the group of each label, (labeled,), where some belong together; they share a fold.
        pool_shares: estimated class shares of the pool, (classes,), if a part asks for them.
            They may leave out what seems to be of no class.
    """

    classes: int
    labeled: int
    pool: int
    label_counts: Tensor
    steps: int
    batch_size: int
    unlabeled_batch_size: int
    label_groups: Tensor | None = None
    pool_shares: Tensor | None = None


class LazyViews(Mapping[str, Tensor]):
    """Views of a batch: those in `ready`, and those that `later` makes when somebody reads them, whole or by `rows`."""

    def __init__(self, ready: Mapping[str, Tensor], later: Mapping[str, Callable[[Tensor | slice], Tensor]]) -> None:
        self.ready = dict(ready)
        self.later = dict(later)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.ready:
            self.ready[name] = self.later[name](slice(None))
        return self.ready[name]

    def __contains__(self, name: object) -> bool:
        return name in self.ready or name in self.later  # Mapping's own would make the view

    def __iter__(self) -> Iterator[str]:
        return iter({**self.ready, **self.later})

    def __len__(self) -> int:
        return len({**self.ready, **self.later})

    def rows(self, name: str, rows: Tensor | slice) -> Tensor:
        """Some rows of a view; the others are not made."""
        return self.ready[name][rows] if name in self.ready else self.later[name](rows)


class Batch(NamedTuple):
    """One step's data on this process.

    Args:
        x: weak views of labeled examples, (batch, …).
        y: their labels, (batch,).
        ids: their rows within the labeled set, (batch,).
        views: views of unlabeled examples by name, (unlabeled batch, …) each; and those a calibrator asks for.
        pool_ids: rows of the unlabeled examples within the pool, (unlabeled batch,).
        weights: how much each of them counts, by its core set, (unlabeled batch,).
        held_out_y: labels of the view "held_out", for a calibrator that asks for examples kept out of training.
    """

    x: Tensor
    y: Tensor
    ids: Tensor
    views: Mapping[str, Tensor]
    pool_ids: Tensor
    weights: Tensor
    held_out_y: Tensor | None = None

    def rows(self, view: str, rows: Tensor | slice) -> Tensor:
        """Some rows of a view."""
        views = self.views
        return views.rows(view, rows) if isinstance(views, LazyViews) else views[view][rows]


class Calibrated(NamedTuple):
    """How far the classifier's answers for a batch are trusted.

    Args:
        probs: trust in each class, (batch, classes); the largest marks the label, which is always the classifier's.
        confidence: trust in that label, (batch,), which is compared with thresholds.
        loss: the loss of learning that trust; None if nothing is learned.
        weights: how much a label counts in the loss if it is trusted, (batch,) with mean 1; None means all the same.
        outputs: those of the weak view that this judges, added by `Step.confidence` for rules that look at them.
    """

    probs: Tensor
    confidence: Tensor
    loss: Tensor | None = None
    weights: Tensor | None = None
    outputs: WeakOutputs | None = None

    @property
    def labels(self) -> Tensor:
        """The most trusted class."""
        return self.probs.argmax(1)

    @property
    def features(self) -> Tensor:
        """Features of the weak view."""
        assert self.outputs is not None, "made by Step.confidence"
        return self.outputs.features

    def sample_weights(self, batch: Batch) -> Tensor:
        """How much each unlabeled example of the batch counts, by its core set and by this."""
        return batch.weights if self.weights is None else batch.weights * self.weights


class PseudoLabels(NamedTuple):
    """What unlabeled examples are trained towards.

    Args:
        targets: classes, (batch,), or distributions, (batch, classes).
        weights: how much each counts, (batch,).
    """

    targets: Tensor
    weights: Tensor

    @property
    def labels(self) -> Tensor:
        """The target class of each example."""
        return self.targets if self.targets.ndim == 1 else self.targets.argmax(1)

    def rows(self, sample_weights: Tensor) -> Tensor:
        """The rows that count, in order."""
        return (self.weights * sample_weights).nonzero()[:, 0]

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
    """The part of the pool to train on until the next refresh.

    Args:
        ids: rows of the pool.
        weights: how much each counts, with mean 1.
    """

    ids: Tensor
    weights: Tensor


def identity_gather(tensor: Tensor) -> Tensor:
    """`gather` for a single process."""
    return tensor


@dataclass
class Step:
    """Everything an algorithm may look at in one training step.

    Args:
        batch: the data.
        model: the model that is trained.
        ema: the model with averaged weights.
        calibrate: the calibrator; call `confidence` instead.
        number: how many steps were taken before.
        steps: steps of the run.
        joint: one forward for all views, with shared BatchNorm statistics.
        gather: collects the rows of all processes.
        micro_batch: examples per forward and backward, so that memory stays bounded; the whole batch if None.
        lazy: compute the strong view only where the pseudo label has weight.
    """

    batch: Batch
    model: nn.Module
    ema: nn.Module
    calibrate: Callable[[Step, Tensor, WeakOutputs], Calibrated]
    number: int = 0
    steps: int = 1
    joint: bool = False
    gather: Callable[[Tensor], Tensor] = field(default=identity_gather)
    micro_batch: int | None = None
    lazy: bool = False

    @property
    def progress(self) -> float:
        """The fraction of the run that is done, 0…1."""
        return self.number / self.steps

    def momentum(self, limit: float) -> float:
        """The momentum of a running mean: `limit`, or less in a short run, so that the mean follows in a 20th of it."""
        return min(limit, max(0.0, 1 - 20 / self.steps))

    def confidence(self, images: Tensor, outputs: WeakOutputs) -> Calibrated:
        """Where a calibrator plugs in."""
        return self.calibrate(self, images, outputs)._replace(outputs=outputs)

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

    def forward_weak_strong(self, weak: Tensor, *inputs: Tensor) -> tuple[WeakOutputs, list[Outputs]]:
        """Outputs of the weak view without gradient, of the other inputs with gradient.

        The weak view is evaluated like a test image, with BatchNorm's running statistics: normalized by its own
        statistics it would meet a classifier trained under those of the strong views, and whole classes would never
        reach the threshold. `joint` is the papers' single forward with shared statistics, whose backward pass
        includes the weak view to no effect, unless a calibrator uses `with_gradient`.
        """
        if self.joint:
            *others, last = self.forward(*inputs, weak)
            return WeakOutputs(*last.detach(), with_gradient=last), others
        return self.forward_weak(weak), self.forward(*inputs)

    def forward_weak(self, images: Tensor) -> WeakOutputs:
        """Outputs of the weak view, as at inference."""
        return WeakOutputs(*self.forward_eval(images), at_inference=True)

    def forward_strong(self, rows: Tensor) -> list[Outputs]:
        """Outputs with gradient of the labeled images, and of `rows` of the strong view: zero for its other rows."""
        labeled, strong = self.forward(self.batch.x, self.batch.rows("strong", rows))
        return [labeled, strong.spread(rows, len(self.batch.pool_ids))]

    def forward_eval(self, images: Tensor, gradient: bool = False) -> Outputs:
        """Outputs as at inference: no dropout, running statistics, and no gradient unless asked for."""
        training = self.model.training
        self.model.eval()
        with torch.set_grad_enabled(gradient):
            outputs = [self.model(piece) for piece in torch.split(images, self.micro_batch or max(1, len(images)))]
        self.model.train(training)
        return outputs[0] if len(outputs) == 1 else Outputs.cat(outputs)

"""What several methods share: sharpening, MixUp, schedules, repeated ids, projections, distribution alignment."""

import math
from collections.abc import Callable
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.classifier import frozen_statistics
from ..types import Step, identity_gather
from ..utils.ring_buffer import RingBuffer


def sharpen(probs: Tensor, temperature: float) -> Tensor:
    """p^(1/T), normalized per row; equals softmax(logits / T) where p is softmax(logits)."""
    logs = probs.float().clamp(min=torch.finfo(torch.float32).tiny).log()
    return (logs / temperature).softmax(1)


def last_occurrence(ids: Tensor, eligible: Tensor | None = None) -> Tensor:
    """For each row, the position of the last row with the same id, or of the last eligible one if there is any.

    `table[ids] = values[last_occurrence(ids)]` is deterministic on every device, although ids may repeat.
    """
    keys = ids if eligible is None else 2 * ids + eligible.long()
    order = torch.argsort(keys, stable=True)
    ends = torch.searchsorted(ids[order], ids, right=True)
    return order[ends - 1]


def labeled_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Mean cross entropy in float32, also under autocast."""
    return F.cross_entropy(logits.float(), y)


def ramp(progress: float, fraction: float) -> float:
    """A linear rise from 0 to 1 over the first `fraction` of the run."""
    return min(1.0, progress / fraction) if fraction > 0 else 1.0


def epoch_steps(steps: int) -> int:
    """An epoch in the papers' sense: 1,024 optimizer steps, or one twentieth of a shorter run."""
    return min(1024, math.ceil(steps / 20))


def head_of(model: nn.Module) -> nn.Linear:
    """The last layer of a classifier."""
    head = model.get_submodule("head")
    assert isinstance(head, nn.Linear)
    return head


def mixup(inputs: Tensor, targets: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """λ·(row) + (1−λ)·(another row) for inputs and targets, with one λ ≥ ½ from Beta(α, α); α = 0 mixes nothing."""
    lam = sample_lambda(alpha)
    others = torch.randperm(len(inputs)).to(inputs.device)
    return lam * inputs + (1 - lam) * inputs[others], lam * targets + (1 - lam) * targets[others]


def sample_lambda(alpha: float) -> float:
    """max(λ, 1 − λ) with λ from Beta(α, α)."""
    if alpha == 0:
        return 1.0
    lam = torch.distributions.Beta(alpha, alpha).sample().item()
    return max(lam, 1 - lam)


def interleaved_forward(step: Step, inputs: Tensor, size: int) -> Tensor:
    """Logits computed in chunks of `size` rows; only the first chunk updates the BatchNorm statistics.

    Row i goes to chunk i mod k, so that each chunk holds labeled and unlabeled rows and normalizes them together.
    """
    count = len(inputs) // size
    (first,) = step.forward(inputs[::count])
    with frozen_statistics(step.model):
        rest = [step.forward(inputs[start::count])[0] for start in range(1, count)]
    return torch.stack([outputs.logits for outputs in (first, *rest)], 1).flatten(0, 1)


def full_precision(tensor: Tensor) -> torch.autocast:
    """Autocast disabled: bf16 is too coarse for cosines divided by a small temperature."""
    return torch.autocast(tensor.device.type, enabled=False)


class Projection(nn.Module):
    """Two layers from the features of a model to unit vectors of `embedding_dim` dimensions."""

    def __init__(self, features: int, embedding_dim: int, hidden_dim: int | None = None) -> None:
        super().__init__()
        hidden = hidden_dim or features
        self.layers = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, embedding_dim))

    @classmethod
    def of(cls, model: nn.Module, embedding_dim: int, hidden_dim: int | None = None) -> Self:
        """A projection of the features that enter `model.head`."""
        return cls(head_of(model).in_features, embedding_dim, hidden_dim)

    def forward(self, features: Tensor) -> Tensor:
        """Embeddings with norm 1."""
        with full_precision(features):
            return F.normalize(self.layers(features.float()), dim=1)


def similarity(rows: Tensor, others: Tensor, temperature: float) -> Tensor:
    """Cosine similarities of unit rows, divided by the temperature."""
    with full_precision(rows):
        return rows.float() @ others.float().T / temperature


Gather = Callable[[Tensor], Tensor]


def align(probs: Tensor, mean: Tensor, target: Tensor | float, eps: float = 1e-6) -> Tensor:
    """Distribution alignment (Berthelot et al., ICLR 2020): multiply by target / mean, then normalize each row."""
    scaled = probs * ((target + eps) / (mean + eps))
    return scaled / scaled.sum(1, keepdim=True)


class EMAAlignment(nn.Module):
    """Aligns to `target` (uniform if None) by a moving average of batch means, which starts at that of the first batch.

    The average is updated with a batch before that batch is aligned.
    """

    def __init__(self, classes: int, *, momentum: float = 0.999, target: Tensor | None = None) -> None:
        super().__init__()
        self.momentum = momentum
        target = torch.full((classes,), 1 / classes) if target is None else target.float() / target.sum()
        self.target = nn.Buffer(target)
        self.mean = nn.Buffer(target.clone())  # the identity until the first batch
        self.started = nn.Buffer(torch.zeros((), dtype=torch.bool))

    @torch.no_grad()
    def forward(self, probs: Tensor, gather: Gather = identity_gather, momentum: float | None = None) -> Tensor:
        """Aligned probabilities; the average changes only in training mode, by `momentum` or the module's own."""
        probs = probs.float()
        if self.training:
            batch = gather(probs).mean(0)
            kept = self.momentum if momentum is None else momentum
            self.mean.copy_(torch.where(self.started, batch.lerp(self.mean, kept), batch))
            self.started.fill_(True)
        return align(probs, self.mean, self.target)


class QueueAlignment(nn.Module):
    """Aligns to the uniform distribution by the mean of the last `size` batch means."""

    def __init__(self, classes: int, size: int = 32) -> None:
        super().__init__()
        self.target = 1 / classes
        self.means = RingBuffer(size, {"mean": ((classes,), torch.float32)})

    @torch.no_grad()
    def forward(self, probs: Tensor, gather: Gather = identity_gather) -> Tensor:
        """Aligned probabilities; in training mode the batch enters the queue first."""
        probs = probs.float()
        if self.training:
            self.means.push(mean=gather(probs).mean(0, keepdim=True))
        mean = self.means["mean"].sum(0) / self.means.filled.clamp(min=1)
        return align(probs, mean, self.target)

"""Distribution alignment (Berthelot et al., ICLR 2020): scale probabilities so that their mean approaches a target."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..types import identity_gather
from ..utils.ring_buffer import RingBuffer

Gather = Callable[[Tensor], Tensor]


def align(probs: Tensor, mean: Tensor, target: Tensor | float, eps: float = 1e-6) -> Tensor:
    """Multiply each class by target / mean, then normalize each row."""
    scaled = probs * ((target + eps) / (mean + eps))
    return scaled / scaled.sum(1, keepdim=True)


class EMAAlignment(nn.Module):
    """Aligns by a moving average of batch means; the average is updated with a batch before that batch is aligned.

    Args:
        classes: number of classes.
        momentum: of the average, which starts at the mean of the first batch.
        target: the distribution to approach; uniform by default.
    """

    def __init__(self, classes: int, *, momentum: float = 0.999, target: Tensor | None = None) -> None:
        super().__init__()
        self.momentum = momentum
        target = torch.full((classes,), 1 / classes) if target is None else target.float() / target.sum()
        self.target = nn.Buffer(target)
        self.mean = nn.Buffer(target.clone())  # the identity until the first batch
        self.started = nn.Buffer(torch.zeros((), dtype=torch.bool))

    @torch.no_grad()
    def forward(self, probs: Tensor, gather: Gather = identity_gather) -> Tensor:
        """Aligned probabilities; the average changes only in training mode."""
        probs = probs.float()
        if self.training:
            batch = gather(probs).mean(0)
            self.mean.copy_(torch.where(self.started, batch.lerp(self.mean, self.momentum), batch))
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

"""Heads that were never shown a part of the labels, so that their predictions for that part are unbiased.

A classifier is right on the labels it was trained on, which proves nothing. The labels are divided into folds. Each
fold has a linear head that is trained, like the classifier, on the labels of all other folds and on its own confident
predictions. If the network is trained too, its features have seen all labels, and only the last layer is out of fold;
on frozen features the whole prediction is.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

THRESHOLD = 0.95  # of the pseudo labels that a head learns from


class FoldHeads(nn.Module):
    """One linear head per fold; a label's fold is decided when it is first seen, in turns within its class."""

    def __init__(self, classes: int, width: int, *, labeled: int, folds: int) -> None:
        super().__init__()
        self.classes = classes
        self.folds = folds
        self.linear = nn.Linear(width, folds * classes)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.fold = nn.Buffer(torch.full((labeled,), -1))
        self.counts = nn.Buffer(torch.zeros(classes, dtype=torch.long))

    def forward(self, features: Tensor) -> Tensor:
        """Logits (batch, folds, classes) of features (batch, width)."""
        logits: Tensor = self.linear(features)
        return logits.view(len(features), self.folds, self.classes)

    @torch.no_grad()
    def assign(self, ids: Tensor, y: Tensor) -> None:
        """Decide the folds of labels that have none yet."""
        for row in (self.fold[ids] < 0).nonzero()[:, 0].tolist():
            if self.fold[ids[row]] < 0:  # an image can be twice in a batch
                self.fold[ids[row]] = self.counts[y[row]] % self.folds
                self.counts[y[row]] += 1

    def loss(
        self, labeled: Tensor, y: Tensor, gather: Callable[[Tensor], Tensor], ids: Tensor, weak: Tensor, strong: Tensor
    ) -> Tensor:
        """Cross entropy of the labels outside the fold, and of strong views with a head's own pseudo labels.

        The inputs are features; `weak` and `strong` are of the same pool rows. Means are over whole batches, so that
        several processes can average them.
        """
        self.assign(gather(ids), gather(y))
        logits = self(torch.cat([labeled, strong]))
        shown = self.fold[ids][:, None] != torch.arange(self.folds, device=ids.device)
        supervised = cross_entropy(logits[: len(y)], y[:, None].expand(-1, self.folds)) * shown
        with torch.no_grad():
            confidence, pseudo = self(weak).softmax(2).max(2)
        consistent = cross_entropy(logits[len(y) :], pseudo) * (confidence >= THRESHOLD)
        share = self.folds / (self.folds - 1)  # of the labels, one fold is hidden
        total: Tensor = share * supervised.sum() / max(1, len(y)) + consistent.sum() / max(1, len(pseudo))
        return total


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Of each row and head."""
    return F.cross_entropy(logits.flatten(0, 1), targets.reshape(-1), reduction="none").view(targets.shape)

"""What semi-supervised methods are compared with: training on labels alone, a linear probe, label spreading."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..models import Backbone, Classifier
from ..models.classifier import set_up
from ..models.linear_probe import probe_on
from ..types import Losses, PseudoLabels, Step
from ..utils.neighbors import nearest_of_all, use_graph
from ..utils.params import integer, number
from .base import Algorithm
from .ops import labeled_loss

COLUMNS = 2**16  # stored rows that new images are compared with at a time


class Supervised(Algorithm):
    """Train on the labeled images alone: the lower reference."""

    views = ()

    def losses(self, step: Step) -> Iterator[Losses]:
        """Cross entropy of the labeled images."""
        (outputs,) = step.forward(step.batch.x)
        yield Losses(labeled=labeled_loss(outputs.logits, step.batch.y))


class FullySupervised(Supervised):
    """Train on the labels of all training images: the upper reference."""

    all_labels = True


class Solution(NamedTuple):
    """What a method without training steps arrives at.

    Args:
        model: the classifier.
        pseudo: what it learned from, (pool,), if it trusts only a part of its labels.
    """

    model: Classifier
    pseudo: PseudoLabels | None = None


class ClosedForm(Algorithm):
    """A method without training steps: a subclass writes `solve`."""

    views = ()
    needs_pool: ClassVar[bool] = False
    """Whether `solve` looks at the unlabeled pool."""

    def pool_rows(self, rows: np.ndarray, classes: int) -> np.ndarray:
        """Those of the pool's rows whose features are computed for `solve`: all."""
        return rows

    def products(self, pool: int, width: int, classes: int) -> float:
        """About how many pairs of numbers a fit multiplies, for the time it takes; 0 where that is soon done."""
        return 0.0

    def solve(
        self, model: Classifier, labeled: Tensor, y: Tensor, pool: Tensor, shares: Tensor | None = None
    ) -> Solution:
        """The classifier, given a model whose head is a linear probe, its features of labeled images, their labels, and
        features of the pool.

        `shares` are the class shares of the pool, if they were estimated.
        """
        raise NotImplementedError

    def losses(self, step: Step) -> Iterator[Losses]:
        """None: there is nothing to train."""
        return iter(())


@dataclass(kw_only=True, eq=False, repr=False)
class LinearProbe(ClosedForm):
    """Logistic regression on the features, its regularization chosen by cross-validation on the labels.

    Args:
        seed: seed of the folds.
    """

    seed: int = integer(0, 0)

    def solve(
        self, model: Classifier, labeled: Tensor, y: Tensor, pool: Tensor, shares: Tensor | None = None
    ) -> Solution:
        """The same backbone under the fitted head."""
        probe_on(model.backbone, labeled, y, model.head.out_features, self.seed).copy_to(model.head)
        return Solution(model)


@dataclass(kw_only=True, eq=False, repr=False)
class LabelSpreading(ClosedForm):
    """scikit-learn's LabelSpreading: labels spread over the neighbors of each image in feature space.

    New images get the label distribution of their nearest neighbors in the pool.

    Args:
        n_neighbors: neighbors of each image.
        alpha: weight of the neighbors' labels against an image's own, between 0 and 1.
        max_iter: largest number of iterations.

    References:
        Zhou et al., Learning with Local and Global Consistency, NeurIPS 2003.
    """

    needs_pool = True

    n_neighbors: int = integer(10)
    alpha: float = number(0.2, 0, 1, open_low=True, open_high=True)
    max_iter: int = integer(30)

    def solve(
        self, model: Classifier, labeled: Tensor, y: Tensor, pool: Tensor, shares: Tensor | None = None
    ) -> Solution:
        """The same backbone, then the vote of neighbors, under a head that passes the votes through."""
        from sklearn.semi_supervised import LabelSpreading as Spreading

        classes = model.head.out_features
        rows = torch.cat([labeled, pool])
        targets = torch.cat([y, torch.full((len(pool),), -1)])
        near = min(self.n_neighbors, len(rows))
        kernel = neighbor_kernel(rows, near) if use_graph(len(rows)) else "knn"
        spreading = Spreading(kernel, n_neighbors=near, alpha=self.alpha, max_iter=self.max_iter)
        x = rows.float().numpy() if kernel == "knn" else np.zeros((len(rows), 1), np.float32)  # the graph is the kernel
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "not converged" and divisions by the labels of isolated images
            spreading.fit(x, targets.numpy())
        spread = torch.from_numpy(spreading.label_distributions_).float().nan_to_num(1 / classes)
        votes = NeighborVotes(model.backbone, rows=len(rows), width=rows.shape[1], classes=classes, n_neighbors=near)
        votes.attach(rows, spread)
        head = nn.Linear(classes, classes)
        nn.init.eye_(head.weight)
        nn.init.zeros_(head.bias)
        return Solution(Classifier(votes, head))


def neighbor_kernel(rows: Tensor, count: int) -> Callable[..., Any]:
    """What scikit-learn's kernel "knn" computes, found by a graph instead of all pairs."""
    from scipy.sparse import csr_matrix

    near = nearest_of_all(rows, count).int().numpy().ravel()
    ends = np.arange(len(rows) + 1) * count
    links = csr_matrix((np.ones(len(near), np.float32), near, ends), shape=(len(rows), len(rows)))
    return lambda *_: links


class NeighborVotes(Backbone):
    """Log of the mean label distribution of the nearest rows: features of a classifier whose head is the identity."""

    def __init__(self, encoder: nn.Module, *, rows: int, width: int, classes: int, n_neighbors: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.rows = rows
        self.width = width
        self.classes = classes
        self.n_neighbors = n_neighbors

    def setup(self, shape: tuple[int, ...]) -> None:
        """Room for the stored rows, which come with a saved run or from `attach`."""
        set_up(self.encoder, shape)
        self.attach(torch.zeros(self.rows, self.width), torch.ones(self.rows, self.classes) / self.classes)

    def attach(self, stored: Tensor, spread: Tensor) -> None:
        """Set the rows and their label distributions."""
        self.stored = nn.Buffer(stored.half())
        self.spread = nn.Buffer(spread)
        self.features = self.classes

    def forward(self, x: Tensor) -> Tensor:
        """Log probabilities."""
        features: Tensor = self.encoder(x)
        best: list[Tensor] = []
        places: list[Tensor] = []
        for start in range(0, self.rows, COLUMNS):  # in parts, because a batch against many rows takes gigabytes
            part = self.stored[start : start + COLUMNS].float()
            top = torch.cdist(features.float(), part).topk(min(self.n_neighbors, len(part)), largest=False)
            best.append(top.values)
            places.append(top.indices + start)
        order = torch.cat(best, 1).topk(self.n_neighbors, largest=False).indices
        near = torch.cat(places, 1).gather(1, order)
        return self.spread[near].mean(1).clamp(min=1e-6).log()

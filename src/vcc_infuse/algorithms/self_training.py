"""Self-training of a linear head on features: no steps, and no views of an image but the plain one."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..models import Classifier, Identity
from ..models.linear_probe import logistic_regression, probe_on
from ..types import PseudoLabels
from ..utils.params import integer, number
from .baselines import ClosedForm, Solution

MOST = 20_000  # rows of the pool, or so many of each class: a linear head learns little from more
PER_CLASS = 100
PASSES = 14  # over the pool in a round: some 13 iterations of two passes over half of it on average, and the answers
UNKNOWN = 0.5  # error of a probe, as a part of that of chance, where a class has a single label
LABELS = 0.1  # the labels weigh at least this part of what a head learns from
# How far apart (in total variation, of ten classes) estimated shares and those of even labels are before they are
# believed to differ, and from where on they surely do.
SURE = (0.15, 0.25)
FLOOR = 0.1  # of even shares in any estimate: with few labels it can leave a class without any
HALFWAY = 4  # labels per class, of ten, with which quotas lie half-way between even ones and predictions
ALIKE = 1.25  # times the labels of the rarest class that the most frequent one has where labels are even


@dataclass(kw_only=True, eq=False, repr=False)
class SelfTraining(ClosedForm):
    """A linear probe that learns from its own labels in rounds, in each from more of the most confident of each class.

    Every round fits the head again, so that a wrong label of an early round can be taken back later. Without
    the quota per class, the class with the most confident predictions would swallow its neighbors. What a class
    weighs in a fit depends on the labels, however many images of the pool are trusted.

    Args:
        rounds: of self-training, each from an equal part of the pool more than the one before.
        pool_fraction: the largest part of the pool that the last round learns from, the most confident one. It is less
            where a cross-validated probe errs nearly as often as chance: its labels would teach its mistakes.
        shares: quotas of the classes: `equal`; or with `auto`, on features, by what the pool seems to hold. Where all
            classes have about as many labels, these are even quotas, unless an estimate of the pool's shares is
            clearly another. Where they have not, the labels were drawn, suggested or found, and their counts are
            chance or habit: the quotas lie between even ones and the predictions of a head that prefers no class, the
            nearer to these the more labels there are. What seems to be of no class is not trusted.
        strength: scikit-learn's C, for features of unit length.
        seed: of the rows that are drawn from a pool of more than 20,000.

    References:
        Zou et al., Unsupervised Domain Adaptation for Semantic Segmentation via Class-Balanced Self-Training, ECCV
        2018. Cascante-Bonilla et al., Curriculum Labeling, AAAI 2021. Here with a linear head on fixed features.
    """

    needs_pool = True

    rounds: int = integer(10)
    pool_fraction: float = number(0.9, 0, 1, open_low=True)
    shares: Literal["auto", "equal"] = "auto"
    strength: float = number(10.0, 0, open_low=True)
    seed: int = integer(0, 0)

    def pool_rows(self, rows: np.ndarray, classes: int) -> np.ndarray:
        """At most so many rows that a large pool costs neither time nor memory."""
        most = max(MOST, PER_CLASS * classes)
        if len(rows) <= most:
            return rows
        drawn = np.random.default_rng(self.seed).choice(len(rows), most, replace=False)
        return np.asarray(rows[np.sort(drawn)])

    def products(self, pool: int, width: int, classes: int) -> float:
        """Those of all rounds, each of which passes over its rows a number of times."""
        return self.rounds * PASSES * len(self.pool_rows(np.arange(pool), classes)) * float(width * classes)

    def solve(
        self, model: Classifier, labeled: Tensor, y: Tensor, pool: Tensor, shares: Tensor | None = None
    ) -> Solution:
        """The same backbone under the head of the last round; the first starts at the model's head, a linear probe."""
        classes = model.head.out_features
        rows = torch.cat([labeled, pool])
        mean, scale = _unit_length(rows, standardized=isinstance(model.backbone, Identity))
        rows = (rows - mean) / scale
        estimated = shares.numpy() if shares is not None and self.shares == "auto" else None
        head = model.head
        probe = head.weight.detach().cpu()  # where the rows are
        weight = probe * scale
        bias = head.bias.detach().cpu() + probe @ mean
        pseudo = None
        parts = self.parts(probe_on(model.backbone, labeled, y, classes, self.seed).error, classes) if len(pool) else ()
        for part in parts:
            probs = (rows @ weight.T + bias).softmax(1).numpy()
            kept, labels = self.trusted(probs, y.numpy(), part, estimated)
            weights = row_weights(labels, len(y), classes)
            weight, bias = logistic_regression(rows[kept].numpy(), labels, self.strength, weights, start=(weight, bias))
            counts = torch.isin(torch.arange(len(y), len(rows)), torch.from_numpy(kept)).float()
            pseudo = PseudoLabels(torch.from_numpy(probs[len(y) :].argmax(1)), counts)
        with torch.no_grad():
            head.weight.copy_(weight / scale)
            head.bias.copy_(bias - weight / scale @ mean)
        return Solution(model, pseudo)

    def parts(self, error: float | None, classes: int) -> np.ndarray:
        """The part of the pool that each round learns from, given the error of the probe, if it is known.

        >>> SelfTraining(rounds=3).parts(0.4, 5).round(2).tolist()
        [0.25, 0.5, 0.75]
        """
        of_chance = UNKNOWN if error is None else min(error / (1 - 1 / classes), 1.0)
        return min(self.pool_fraction, 1 - of_chance**2) * np.arange(1, self.rounds + 1) / self.rounds

    def trusted(
        self, probs: np.ndarray, y: np.ndarray, part: float, estimated: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows to learn from, all the labeled ones first, and their labels.

        Args:
            probs: (rows, classes), those with labels first.
            y: (labels,).
            part: of the pool.
            estimated: class shares of the pool, (classes,), if there is an estimate.
        """
        labels = probs.argmax(1)
        classes = probs.shape[1]
        shares = np.full(classes, 1 / classes)
        if estimated is not None:
            counts = np.bincount(y, minlength=classes)
            shares = quota_shares(estimated, counts, np.bincount(labels, minlength=classes))
        quotas = np.maximum(1, np.rint(part * len(labels) * shares))
        confidence = probs.max(1)
        labels[: len(y)] = y
        confidence[: len(y)] = 1.0
        best = most_confident(labels, confidence, quotas)
        kept = np.concatenate([np.arange(len(y)), best[best >= len(y)]])
        return kept, labels[kept]


def most_confident(labels: np.ndarray, confidence: np.ndarray, quotas: np.ndarray) -> np.ndarray:
    """The rows of each class with the highest confidence, as many as its quota says.

    >>> most_confident(np.array([0, 1, 0, 0]), np.array([0.5, 0.6, 0.9, 0.7]), np.array([2, 2])).tolist()
    [1, 2, 3]
    """
    order = np.lexsort((-confidence, labels))
    counts = np.bincount(labels, minlength=len(quotas))
    starts = np.cumsum(counts) - counts
    place = np.arange(len(order)) - starts[labels[order]]
    return np.sort(order[place < quotas[labels[order]]])


def row_weights(labels: np.ndarray, given: int, classes: int) -> np.ndarray:
    """Weights of rows, of which the first are `given`, so that no class weighs more because the pool has more of it.

    The weights of classes lie half-way between equal ones and the shares of the given labels, which may be chance.

    >>> row_weights(np.array([0, 1, 0, 0]), 2, 2).tolist()
    [0.6666666666666666, 2.0, 0.6666666666666666, 0.6666666666666666]
    """
    weights = np.ones(len(labels))
    weights[:given] = max(1.0, LABELS * len(labels) / given)
    wanted = np.sqrt(np.bincount(labels[:given], minlength=classes))
    wanted /= wanted.sum()
    present = np.bincount(labels, weights, minlength=classes) / weights.sum()
    return np.asarray(weights * (wanted / np.maximum(present, 1e-12))[labels])


def alike(counts: np.ndarray) -> bool:
    """Whether classes have about as many labels each, as someone gives them who wants the same of every class.

    >>> alike(np.array([2, 3, 2])), alike(np.array([20, 25, 22])), alike(np.array([2, 5, 4]))
    (True, True, False)
    """
    return bool(counts.max() <= max(counts.min() + 1, ALIKE * counts.min()))


def quota_shares(estimated: np.ndarray, counts: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """The part of the pool that is thought to be of each class.

    Args:
        estimated: of the pool, (classes,), of predictions if labels are uneven; what they lack of 1 is of no class.
        counts: of the labels, (classes,).
        predicted: counts of the predictions, (classes,). They follow what a head prefers, and the estimate what few
            labels suggest: their geometric mean is nearer to the truth than either.
    """
    even = 1 / len(counts)
    chance = math.sqrt(len(counts) / 10)  # of more shares more is chance
    known = estimated.sum()
    estimated = estimated / known
    floored = (1 - FLOOR) * estimated + FLOOR * even
    if not alike(counts):  # drawn, suggested or found: such counts say less of the pool than predictions do
        between = floored ** (1 / (1 + chance * math.sqrt(HALFWAY / counts.mean())))  # the more labels, the less
        return np.asarray(known * between / between.sum())
    start, end = np.array(SURE) * chance
    apart = float(np.abs(estimated - even).sum()) / 2
    trust = min(max((apart - start) / (end - start), 0.0), 1.0)
    other = np.sqrt(floored * predicted)
    return np.asarray(known * ((1 - trust) * even + trust * other / max(other.sum(), 1e-12)))


def _unit_length(rows: Tensor, *, standardized: bool) -> tuple[Tensor, Tensor]:
    """Mean and scale that give rows unit length on average; features that are not standardized get one scale each."""
    mean = rows.mean(0)
    std = torch.ones_like(mean) if standardized else rows.std(0, correction=0)
    std = std.clamp(min=max(0.1 * float(std.square().mean().sqrt()), 1e-6))
    length = ((rows - mean) / std).square().sum(1).mean().sqrt().clamp(min=1e-12)
    return mean, std * length

"""Evidence: the probability that a pseudo label is right, from the classifier, the image's neighbors and a witness.

The scores of VCC look at one network and one image, and rank pseudo labels hardly better than the softmax. The
predictions for the nearest neighbors of an image in the pool say something that its own prediction does not, and so do
heads that never see pseudo labels; earlier views of the image can be asked as well. How much each counts is learned
from labeled images, each judged by a head that was not shown its label. The result is the probability that a label is
right, while training and at inference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...errors import check_choice, check_integer, check_range
from ...types import Calibrated, Outputs, Step, Task, WeakOutputs
from ..base import Calibrator, set_top_confidence
from ..history import History, Visit
from ..scale_matching import ScaleMatching
from ..vcc.vcc import DENSE_CLASSES
from .fold_heads import FoldHeads
from .logistic import NormalScores, Reliability, cross_fitted
from .neighbors import FeatureMemory, mean_over, support_of
from .out_of_fold import HonestRows
from .risk_control import class_thresholds

MAX_AGE_PASSES = 4
SCORES = ("neighbors", "visits", "witness")
TOP_K = 8  # classes kept of a prediction if there are many
FIT_EVERY = 5  # learning steps between two fits
TINY = 1e-6


class Evidence(Calibrator):
    """Orders pseudo labels by the probability that they are right; the softmax confidence decides how many count.

    Args:
        scores: what is asked beside the classifier itself: "neighbors" (the classifier's predictions for the nearest
            examples of the pool), "visits" (for the image itself, at its two last visits, in other views), "witness"
            (heads that learn from labels alone).
        match: the scale on which a threshold judges; the order within a pseudo class is that of the probability.
            "balanced" takes the scale of the softmax confidence of all classes together (as many are selected as
            without this, the same fraction of each class), "confidence" that of the class itself, "none" the
            probability itself.
        max_label_error: trust as many labels as possible while at most this part of the pool is expected to be trusted
            and wrong, whatever the threshold of the method. Replaces `match` and the warm-up.
        weigh: count a trusted label in the loss by its probability, relative to the mean of its pseudo class. For
            methods whose thresholds adapt (FlexMatch, FreeMatch), which in short runs trust nearly every label.
        neighbors: nearest examples of the pool whose predictions are averaged.
        code_size: numbers kept of an example's features to find its neighbors.
        refreshes: how often in a run neighbors are found anew, the first time after one pass through the pool.
        folds: parts of the labels of which each is hidden from one head; no more than the rarest class has labels. If
            a class has a single label, nothing is learned, and all evidence counts the same.
        every: steps between two steps in which the heads learn.
        min_per_class: examples of a class that must be known before its confidence is changed.
        warmup_fraction: fraction of the run in which the softmax confidence still selects.
    """

    thresholds: Tensor

    def __init__(
        self,
        scores: Sequence[str] = ("neighbors", "witness"),
        match: Literal["balanced", "confidence", "none"] = "balanced",
        max_label_error: float | None = None,
        weigh: bool = False,
        neighbors: int = 10,
        code_size: int = 64,
        refreshes: int = 2,
        folds: int = 4,
        every: int = 2,
        min_per_class: int = 16,
        warmup_fraction: float = 0.1,
    ) -> None:
        super().__init__()
        self.scores = tuple(check_choice("scores", score, SCORES) for score in scores)
        self.match = check_choice("match", match, ("balanced", "confidence", "none"))
        self.max_label_error = max_label_error
        if max_label_error is not None:
            check_range("max_label_error", max_label_error, 0, 1, open_low=True, open_high=True)
        self.weigh = weigh
        self.neighbors = check_integer("neighbors", neighbors)
        self.code_size = check_integer("code_size", code_size)
        self.refreshes = check_integer("refreshes", refreshes)
        self.folds = check_integer("folds", folds, 2)
        self.every = check_integer("every", every)
        self.min_per_class = check_integer("min_per_class", min_per_class)
        self.warmup_fraction = check_range("warmup_fraction", warmup_fraction, 0, 1)

    def setup(self, model: nn.Module, task: Task) -> None:
        """Create the memories, the heads and the model of reliability."""
        head: Any = model.head
        classes, width, folds = task.classes, head.in_features, min(self.folds, int(task.label_counts.min()))
        one_pass, top_k = math.ceil(task.pool / task.unlabeled_batch_size), TOP_K if classes > DENSE_CLASSES else 0
        age, near = MAX_AGE_PASSES * one_pass, max(1, min(self.neighbors, task.pool - 2))
        self.memory = FeatureMemory(task.pool, task.labeled, width, self.code_size, near)
        columns = 1 + len(self.scores)
        self.history, self.ranks = History(task.pool, classes, top_k, 2, age), NormalScores(columns)
        self.honest = None
        if folds > 1:
            past = History(task.pool + task.labeled, folds * classes, folds * top_k, 2, self.every * age)
            heads, witness = (FoldHeads(classes, width, task.labeled, folds) for _ in range(2))
            self.honest = HonestRows(self.scores, heads, witness if "witness" in self.scores else None, past)
        self.reliability = Reliability(columns, classes)
        self.scale = ScaleMatching(self.match, classes, 128 * classes, self.min_per_class)
        self.register_buffer("thresholds", torch.full((classes,), torch.inf))
        first = min(one_pass, math.ceil(task.steps / 4))
        self.refresh_steps = {first + i * (task.steps - first) // self.refreshes for i in range(self.refreshes)}

    def forward(self, step: Step, images: Tensor, outputs: WeakOutputs) -> Calibrated:
        """The confidence that selects; in training mode, after learning from the batch."""
        probs, features = outputs.logits.detach().float().softmax(1), outputs.features.detach().float()
        with torch.autocast(probs.device.type, enabled=False):
            support = self.support(step, probs, features)
            (confidence, labels), loss = probs.max(1), None
            score = self.probability(support, labels)
            if self.training:
                columns = {"score": score, "confidence": confidence, "labels": labels}
                self.scale.memory.push(**{name: step.gather(column) for name, column in columns.items()})
                self._remember(step, probs, features)
                loss = self._learn(step, features, support) if step.number % self.every == 0 else None
        if step.progress < self.warmup_fraction and self.max_label_error is None:
            return Calibrated(probs, confidence, loss)
        probs = set_top_confidence(probs, self._selection(score, confidence, labels))
        return Calibrated(probs, probs.amax(1), loss, self._weights(score, labels) if self.weigh else None)

    @torch.no_grad()
    def predict(self, outputs: Outputs) -> Tensor:
        """The probability that the label of each image is right; its neighbors are looked up in the pool."""
        probs, features = outputs.logits.float().softmax(1), outputs.features.float()
        new = Visit(probs, torch.zeros(len(probs), dtype=torch.bool, device=probs.device))
        asked = {
            "neighbors": lambda: mean_over(self.memory.look_up(features), self.history),
            "witness": lambda: self._witness(probs, features),
        }
        others = (asked.get(score, lambda: new)() for score in self.scores)
        return self.probability(support_of(probs, *others), probs.argmax(1))

    def probability(self, support: Tensor, labels: Tensor) -> Tensor:
        """The probability that labels with such support are right."""
        found: Tensor = self.reliability(self.ranks(support), labels)
        return found

    @torch.no_grad()
    def support(self, step: Step, probs: Tensor, features: Tensor) -> Tensor:
        """The probability of the classifier's label, by itself and by each score (NaN if unknown)."""
        ids, now = step.batch.pool_ids, step.number
        asked = {
            "neighbors": lambda: self.memory.mean_prediction(ids, self.history, now),
            "visits": lambda: self.history.read(ids, now),
            "witness": lambda: self._witness(probs, features),
        }
        return support_of(probs, *(asked[score]() for score in self.scores))

    def _witness(self, probs: Tensor, features: Tensor) -> Visit:
        """The mean of the heads that never see pseudo labels; unknown if there are none."""
        heads = None if self.honest is None else self.honest.witness
        said = probs if heads is None else heads(features).softmax(2).mean(1)
        return Visit(said, torch.full_like(probs[:, 0], heads is not None, dtype=torch.bool))

    def _selection(self, score: Tensor, confidence: Tensor, labels: Tensor) -> Tensor:
        if self.max_label_error is not None:
            return (score > self.thresholds[labels]).float()
        matched: Tensor = self.scale(score, confidence, labels)
        return matched

    def _weights(self, score: Tensor, labels: Tensor) -> Tensor:
        """Probabilities by the mean of their class, which is drawn to that of all where little is known."""
        memory, few = self.scale.memory, self.min_per_class
        counts = memory.valid.float()
        past, classes = memory["score"].where(memory.valid, 0), memory["labels"].where(memory.valid, 0)
        total, count = (score.new_zeros(self.scale.classes).index_add(0, classes, part) for part in (past, counts))
        common = total.sum() / count.sum().clamp_min(1)
        return score / ((total + few * common) / (count + few)).clamp_min(TINY)[labels]

    def _remember(self, step: Step, probs: Tensor, features: Tensor) -> None:
        """Store the predictions and the features of the batch, and find neighbors if it is time."""
        ids = step.gather(step.batch.pool_ids)
        self.history.write(ids, step.gather(probs), step.number)
        self.memory.write(ids, step.gather(features))
        if step.number in self.refresh_steps:
            self.memory.find_neighbors()

    def _learn(self, step: Step, features: Tensor, support: Tensor) -> Tensor | None:
        """Refit what is due, and return the loss of the heads."""
        self.ranks.observe(step.gather(support))
        if self.honest is None:
            return None
        labeled, strong = further_features(step, features)
        loss = self.honest.loss(step, labeled, features[: len(strong)], strong)
        self.honest.observe(step, self.memory, features, labeled)
        if step.number // self.every % FIT_EVERY == FIT_EVERY - 1:
            self._refit(self.honest)
        return loss

    def _refit(self, honest: HonestRows) -> None:
        evidence, labels, right, folds = honest.rows()
        self.reliability.fit(evidence, labels, right)
        if self.max_label_error is not None:
            classes = len(self.thresholds)
            scores = cross_fitted(evidence, labels, right, folds, classes)
            self.thresholds.copy_(class_thresholds(scores, labels, right, classes, self.max_label_error))


@torch.no_grad()
def further_features(step: Step, weak: Tensor) -> tuple[Tensor, Tensor]:
    """Features of the labeled images, and of strong views of as many pool rows (weak ones if there are no others)."""
    batch, count = step.batch, len(step.batch.x)
    if "strong" not in batch.views:
        return step.forward_eval(batch.x).features.float(), weak[:count]
    features = step.forward_eval(torch.cat([batch.x, batch.rows("strong", slice(count))])).features.float()
    return features[:count], features[count:]

"""Evidence: the probability that a pseudo label is right, from the classifier, the image's neighbors and a witness.

The scores of VCC look at one network and one image, and rank pseudo labels hardly better than the softmax. The
predictions for an image's nearest neighbors in the pool carry information that its own prediction does not, and so do
heads that never see pseudo labels (the witness); earlier views of the image can be used as well. How much each of them
counts is learned from labeled images, each judged by a head that was not shown its label. The result is the probability
that a label is right, during training and at inference.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...errors import check_choice
from ...types import Calibrated, Outputs, Step, Task, WeakOutputs
from ...utils.params import integer, number
from ..base import Calibrator, set_top_confidence
from ..history import DENSE_CLASSES, History, Visit
from ..scale_matching import ScaleMatching
from .logistic import LogisticModel, NormalScores, class_thresholds, cross_fitted
from .neighbors import FeatureMemory, mean_over, support_of
from .out_of_fold import FoldHeads, OutOfFoldRows

MAX_AGE_PASSES = 4
SCORES = ("neighbors", "visits", "witness")
TOP_K = 8  # classes kept of a prediction if there are many
FIT_EVERY = 5  # learning steps between two fits
TINY = 1e-6


@dataclass(kw_only=True, eq=False, repr=False)
class Evidence(Calibrator):
    """Orders pseudo labels by the probability that they are right; the softmax confidence decides how many count.

    Args:
        scores: the evidence beside the classifier's own prediction: "neighbors" (its predictions for the nearest
            examples of the pool), "visits" (those for the image itself, at its two last visits, in other views),
            "witness" (heads that learn from labels alone).
        match: the scale on which a threshold judges; the order within a pseudo class is that of the probability.
            "balanced" takes the scale of the softmax confidence of all classes together (as many are selected as
            without Evidence, the same fraction of each class), "confidence" that of the class itself, "none" the
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

    follows_schedule = True
    learns_from_labeled = True

    scores: Sequence[str] = ("neighbors", "witness")
    match: Literal["balanced", "confidence", "none"] = "balanced"
    max_label_error: float | None = number(None, 0, 1, open_low=True, open_high=True)
    weigh: bool = False
    neighbors: int = integer(10)
    code_size: int = integer(64)
    refreshes: int = integer(2)
    folds: int = integer(4, 2)
    every: int = integer(2)
    min_per_class: int = integer(16)
    warmup_fraction: float = number(0.1, 0, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scores = tuple(check_choice("scores", score, SCORES) for score in self.scores)

    def setup(self, model: nn.Module, task: Task) -> None:
        """Create the memories, the heads and the model that weighs the evidence."""
        head: Any = model.head
        classes = task.classes
        columns = 1 + len(self.scores)
        one_pass = math.ceil(task.pool / task.unlabeled_batch_size)
        top_k = TOP_K if classes > DENSE_CLASSES else 0
        max_age = MAX_AGE_PASSES * one_pass
        self.memory = FeatureMemory(
            task.pool,
            labeled=task.labeled,
            width=head.in_features,
            code_size=self.code_size,
            neighbors=max(1, min(self.neighbors, task.pool - 2)),
        )
        self.history = History(task.pool, classes, top_k=top_k, window=2, max_age=max_age)
        self.ranks = NormalScores(columns)
        self.out_of_fold = None
        folds = min(self.folds, int(task.label_counts.min()))
        if folds > 1:
            heads = FoldHeads(classes, head.in_features, labeled=task.labeled, folds=folds)
            witness = FoldHeads(classes, head.in_features, labeled=task.labeled, folds=folds)
            past = History(
                task.pool + task.labeled, folds * classes, top_k=folds * top_k, window=2, max_age=self.every * max_age
            )
            self.out_of_fold = OutOfFoldRows(self.scores, heads, witness if "witness" in self.scores else None, past)
        self.logistic = LogisticModel(columns, classes)
        self.scale = ScaleMatching(self.match, classes=classes, size=128 * classes, min_per_class=self.min_per_class)
        self.thresholds = nn.Buffer(torch.full((classes,), torch.inf))
        first = min(one_pass, math.ceil(task.steps / 4))
        self.refresh_steps = {first + i * (task.steps - first) // self.refreshes for i in range(self.refreshes)}

    def forward(self, step: Step, images: Tensor, outputs: WeakOutputs) -> Calibrated:
        """The confidence that selects; in training mode, after learning from the batch."""
        probs = outputs.logits.detach().float().softmax(1)
        features = outputs.features.detach().float()
        confidence, labels = probs.max(1)
        loss = None
        with torch.autocast(probs.device.type, enabled=False):
            support = self.support(step, probs, features)
            score = self.probability(support, labels)
            if self.training:
                self.scale.observe(step.gather, score=score, confidence=confidence, labels=labels)
                ids = step.gather(step.batch.pool_ids)
                self.history.write(ids, step.gather(probs), step.number)
                self.memory.write(ids, step.gather(features))
                if step.number in self.refresh_steps:
                    self.memory.find_neighbors()
                if step.number % self.every == 0:
                    loss = self._learn(step, features, support)
        if step.progress < self.warmup_fraction and self.max_label_error is None:
            return Calibrated(probs, confidence, loss)
        if self.max_label_error is None:
            selection = self.scale(score, confidence, labels)
        else:
            selection = (score > self.thresholds[labels]).float()
        probs = set_top_confidence(probs, selection)
        return Calibrated(probs, probs.amax(1), loss, self._weights(score, labels) if self.weigh else None)

    @torch.no_grad()
    def predict(self, outputs: Outputs) -> Tensor:
        """The probability that the label of each image is right; its neighbors are looked up in the pool."""
        probs = outputs.logits.float().softmax(1)
        features = outputs.features.float()
        sources = {
            "neighbors": lambda: mean_over(self.memory.look_up(features), self.history),
            "visits": lambda: Visit(probs, torch.zeros_like(probs[:, 0], dtype=torch.bool)),  # a new image has none
            "witness": lambda: self._witness(probs, features),
        }
        return self.probability(support_of(probs, *(sources[score]() for score in self.scores)), probs.argmax(1))

    def probability(self, support: Tensor, labels: Tensor) -> Tensor:
        """The probability that labels with such support are right."""
        probability: Tensor = self.logistic(self.ranks(support), labels)
        return probability

    @torch.no_grad()
    def support(self, step: Step, probs: Tensor, features: Tensor) -> Tensor:
        """The probability of the classifier's label, by itself and by each score (NaN if unknown)."""
        ids = step.batch.pool_ids
        sources = {
            "neighbors": lambda: self.memory.mean_prediction(ids, self.history, step.number),
            "visits": lambda: self.history.read(ids, step.number),
            "witness": lambda: self._witness(probs, features),
        }
        return support_of(probs, *(sources[score]() for score in self.scores))

    def _witness(self, probs: Tensor, features: Tensor) -> Visit:
        """The mean of the heads that never see pseudo labels; unknown if there are none."""
        heads = None if self.out_of_fold is None else self.out_of_fold.witness
        mean = probs if heads is None else heads(features).softmax(2).mean(1)
        return Visit(mean, torch.full_like(probs[:, 0], heads is not None, dtype=torch.bool))

    def _weights(self, score: Tensor, labels: Tensor) -> Tensor:
        """Each probability relative to the mean of its class, shrunk to the overall mean if little is known."""
        memory = self.scale.memory
        classes = memory["labels"].where(memory.valid, 0)
        zeros = score.new_zeros(self.scale.classes)
        total = zeros.index_add(0, classes, memory["score"].where(memory.valid, 0))
        count = zeros.index_add(0, classes, memory.valid.float())
        overall = total.sum() / count.sum().clamp_min(1)
        few = self.min_per_class
        return score / ((total + few * overall) / (count + few)).clamp_min(TINY)[labels]

    def _learn(self, step: Step, features: Tensor, support: Tensor) -> Tensor | None:
        """Refit what is due and return the loss of the heads."""
        self.ranks.observe(step.gather(support))
        if self.out_of_fold is None:
            return None
        labeled, strong = further_features(step, features)
        loss = self.out_of_fold.loss(step, labeled, features[: len(strong)], strong)
        self.out_of_fold.observe(step, self.memory, features, labeled)
        if step.number // self.every % FIT_EVERY == FIT_EVERY - 1:
            self._refit(self.out_of_fold)
        return loss

    def _refit(self, out_of_fold: OutOfFoldRows) -> None:
        evidence, labels, right, folds = out_of_fold.rows()
        self.logistic.fit(evidence, labels, right)
        if self.max_label_error is not None:
            classes = len(self.thresholds)
            scores = cross_fitted(evidence, labels, right, folds, classes=classes)
            thresholds = class_thresholds(scores, labels, right, classes=classes, max_error=self.max_label_error)
            self.thresholds.copy_(thresholds)


@torch.no_grad()
def further_features(step: Step, weak: Tensor) -> tuple[Tensor, Tensor]:
    """Features of the labeled images, and of strong views of as many pool rows (weak ones if there are no others)."""
    batch = step.batch
    count = len(batch.x)
    if "strong" not in batch.views:
        return step.forward_eval(batch.x).features.float(), weak[:count]
    features = step.forward_eval(torch.cat([batch.x, batch.rows("strong", slice(count))])).features.float()
    return features[:count], features[count:]

"""Evidence: the probability that a pseudo label is right, from the classifier, the image's neighbors and a witness.

The scores of VCC look at one network and one image, and rank pseudo labels hardly better than the softmax. The
predictions for an image's nearest neighbors in the pool carry information that its own prediction does not, and so do
heads that never see pseudo labels (the witness); earlier views of the image can be used as well. How much each of them
counts is learned from labeled images, each judged by a head that was not shown its label. The result is the probability
that a label is right: during training by ranks, which only order; at inference by the softmax and how far it is
right on such images, because a classifier with all labels is better than heads that lack some of them.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...errors import OptionError, check_choice
from ...types import Calibrated, Outputs, Step, Task, WeakOutputs
from ...utils.device import product_type
from ...utils.params import integer, number
from ...utils.ring_buffer import RingBuffer
from ..base import Calibrator, set_top_confidence
from ..history import DENSE_CLASSES, History, Visit
from ..scale_matching import ScaleMatching
from .logistic import (
    LogisticModel,
    NormalScores,
    class_thresholds,
    cross_fitted,
    labels_needed,
    log_odds,
    softened_softmax,
    trusted_threshold,
)
from .neighbors import FeatureMemory, mean_over, support_of
from .out_of_fold import FoldHeads, OutOfFoldRows

MAX_AGE_PASSES = 4
SCORES = ("neighbors", "visits", "witness")
TOP_K = 8  # classes kept of a prediction if there are many
FIT_EVERY = 5  # learning steps between two fits
WARM_ROUNDS = 4  # Newton steps of a fit, which starts where the last one ended
STRONG_ROWS = 512  # pool rows whose strong view tells how far a network that learns can be believed
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
        shares: what "balanced" takes a class's fraction of: the examples "predicted" to be of it, or its share of the
            pool, "estimated" on frozen features before the first step; "auto" does so if every class has ten labels.
        max_pool_error: trust as many labels as possible while at most this part of the whole pool is expected to be
            trusted and wrong, whatever the threshold of the method. Replaces `match` and the warm-up.
        max_trusted_error: trust as many labels as possible while at most this part of the trusted ones is expected to
            be wrong. Stricter than `max_pool_error`, and only one of the two can be given. Where the labels are too few
            to promise anything, nothing is trusted.
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
    shares: Literal["auto", "predicted", "estimated"] = "auto"
    max_pool_error: float | None = number(None, 0, 1, open_low=True, open_high=True)
    max_trusted_error: float | None = number(None, 0, 1, open_low=True, open_high=True)
    weigh: bool = False
    neighbors: int = integer(10)
    code_size: int = integer(64)
    refreshes: int = integer(2)
    folds: int = integer(4, 2)
    every: int = integer(4)
    min_per_class: int = integer(16)
    warmup_fraction: float = number(0.1, 0, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scores = tuple(check_choice("scores", score, SCORES) for score in self.scores)
        if self.max_pool_error is not None and self.max_trusted_error is not None:
            raise OptionError("max_trusted_error", self.max_trusted_error, "cannot be given beside max_pool_error")

    @property
    def promise(self) -> dict[str, float]:
        """The option that promises a share of wrong labels, and its value."""
        given = {"max_pool_error": self.max_pool_error, "max_trusted_error": self.max_trusted_error}
        return {name: value for name, value in given.items() if value is not None}

    def setup(self, model: nn.Module, task: Task) -> None:
        """Create the memories, the heads and the model that weighs the evidence."""
        head: Any = model.head
        own = set(head.parameters())
        self.learns = any(p.requires_grad for p in model.parameters() if p not in own)  # the network, not only the head
        self._warn_of_few(task)
        classes = task.classes
        columns = 1 + len(self.scores)
        self.one_pass = math.ceil(task.pool / task.unlabeled_batch_size)
        top_k = TOP_K if classes > DENSE_CLASSES else 0
        max_age = MAX_AGE_PASSES * self.one_pass
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
            heads, witness = (
                FoldHeads(classes, head.in_features, labeled=task.labeled, folds=folds, groups=task.label_groups)
                for _ in range(2)
            )
            past = History(
                task.pool + task.labeled, folds * classes, top_k=folds * top_k, window=2, max_age=self.every * max_age
            )
            self.out_of_fold = OutOfFoldRows(self.scores, heads, witness if "witness" in self.scores else None, past)
        self.logistic = LogisticModel(columns, classes)
        self.inference = LogisticModel(columns, classes, softened_softmax(columns))
        kinds = {"evidence": ((columns,), torch.float32), "labels": ((), torch.long), "right": ((), torch.bool)}
        self.strong_rows = RingBuffer(STRONG_ROWS, kinds)  # also where unused: a saved model is loaded into another one
        shares = None if self.shares == "predicted" else task.pool_shares
        self.scale = ScaleMatching(
            self.match, classes=classes, size=128 * classes, min_per_class=self.min_per_class, shares=shares
        )
        self.thresholds = nn.Buffer(torch.full((classes,), torch.inf))
        first = min(self.one_pass, math.ceil(task.steps / 4))
        self.refresh_steps = {first + i * (task.steps - first) // self.refreshes for i in range(self.refreshes)}

    def forward(self, step: Step, images: Tensor, outputs: WeakOutputs) -> Calibrated:
        """The confidence that selects; in training mode, after learning from the batch."""
        probs = outputs.logits.detach().float().softmax(1)
        features = outputs.features.detach().float()
        confidence, labels = probs.max(1)
        kind = product_type(probs.device)
        loss = None
        with torch.autocast(probs.device.type, enabled=False):
            support = self.support(step, probs, features.to(kind))
            score = self.probability(support, labels)
            if self.training:
                ids = step.gather(step.batch.pool_ids)
                self.history.write(ids, step.gather(probs), step.number)
                if self._codes_matter(step.number):
                    self.memory.write(ids, step.gather(features))
                if step.number in self.refresh_steps:
                    self.memory.find_neighbors()
                if step.number % self.every == 0:
                    self.scale.observe(step.gather, score=score, confidence=confidence, labels=labels)
                    loss = self._learn(step, Outputs(outputs.logits, outputs.features), support, kind)
        if step.progress < self.warmup_fraction and not self.promise:
            return Calibrated(probs, confidence, loss)
        promised = (score > self.thresholds[labels]).float()
        selection = promised if self.promise else self.scale(score, confidence, labels)
        probs = set_top_confidence(probs, selection)
        return Calibrated(probs, probs.amax(1), loss, self._weights(score, labels) if self.weigh else None)

    @torch.no_grad()
    def predict(self, outputs: Outputs) -> Tensor:
        """The probability that the label of each image is right; its neighbors are looked up in the pool."""
        probs = outputs.logits.float().softmax(1)
        features = outputs.features.float()
        own, labels = probs.max(1, keepdim=True)
        sources = {
            "neighbors": lambda: mean_over(self.memory.look_up(features), labels, self.history),
            "visits": lambda: Visit(own, torch.zeros_like(own[:, 0], dtype=torch.bool)),  # a new image has none
            "witness": lambda: self._witness(own, labels, features),
        }
        support = support_of(own, *(sources[score]() for score in self.scores))[:, 0]
        confidence: Tensor = self.inference(self._log_odds_and_ranks(support), labels[:, 0])
        return confidence

    def _log_odds_and_ranks(self, support: Tensor) -> Tensor:
        """What the model for inference looks at: the softmax itself, and the ranks of the other evidence."""
        return torch.cat([log_odds(support[:, :1]), self.ranks(support)[:, 1:]], 1)

    def probability(self, support: Tensor, labels: Tensor) -> Tensor:
        """The probability that labels with such support are right."""
        probability: Tensor = self.logistic(self.ranks(support), labels)
        return probability

    @torch.no_grad()
    def support(self, step: Step, probs: Tensor, features: Tensor) -> Tensor:
        """The probability of the classifier's label, by itself and by each score (NaN if unknown)."""
        ids = step.batch.pool_ids
        own, labels = probs.max(1, keepdim=True)
        sources = {
            "neighbors": lambda: self.memory.mean_prediction(ids, labels, self.history, step.number),
            "visits": lambda: self._earlier(ids, labels, step.number),
            "witness": lambda: self._witness(own, labels, features),
        }
        return support_of(own, *(sources[score]() for score in self.scores))[:, 0]

    def _earlier(self, ids: Tensor, labels: Tensor, now: int) -> Visit:
        """What was said of the same images at their last visits."""
        probs, known = self.history.read_classes(ids[:, None], labels, now)
        return Visit(probs[..., 0], known[:, 0])

    def _witness(self, own: Tensor, labels: Tensor, features: Tensor) -> Visit:
        """The mean of the heads that never see pseudo labels; unknown if there are none."""
        heads = None if self.out_of_fold is None else self.out_of_fold.witness
        mean = own if heads is None else heads.probs(features).mean(1).gather(1, labels)
        return Visit(mean, torch.full_like(own[:, 0], heads is not None, dtype=torch.bool))

    def _codes_matter(self, number: int) -> bool:
        """Whether features are kept: always of a network that learns; of another, in the pass before a refresh."""
        return self.learns or any(step - self.one_pass <= number <= step for step in self.refresh_steps)

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

    def _learn(self, step: Step, weak: Outputs, support: Tensor, kind: torch.dtype) -> Tensor | None:
        """Refit what is due and return the loss of the heads, whose products are computed in the type `kind`."""
        self.ranks.observe(step.gather(support))
        if self.out_of_fold is None:
            return None
        features = weak.features.detach().to(kind)
        labeled, strong = further_outputs(step, weak)
        if self.learns and "strong" in step.batch.views:
            self._compare_views(step, support, weak.logits.argmax(1), strong.logits.argmax(1))
        if not self.learns:
            self.out_of_fold.start(step, labeled, weak)
        shown = labeled.features.to(kind)
        loss = self.out_of_fold.loss(step, shown, features[: len(strong.features)], strong.features.to(kind))
        self.out_of_fold.observe(step, self.memory, features, labeled.features)
        if step.number // self.every % FIT_EVERY == FIT_EVERY - 1:
            self._refit(self.out_of_fold)
        return loss

    def _compare_views(self, step: Step, support: Tensor, weak: Tensor, strong: Tensor) -> None:
        """Remember whether strong views of pool rows keep the label of the weak one.

        A network that learns makes the features of its labeled images what their labels say, and no head on top is
        honest about them. Whether a label survives a strong view is known for the pool, without labels.
        """
        count = len(strong)
        evidence = self._log_odds_and_ranks(support[:count])
        columns = {"evidence": evidence, "labels": weak[:count], "right": weak[:count] == strong}
        self.strong_rows.push(**{name: step.gather(column) for name, column in columns.items()})

    def _refit(self, out_of_fold: OutOfFoldRows) -> None:
        evidence, labels, right, folds = out_of_fold.rows()
        self.logistic.fit(evidence, labels, right, rounds=WARM_ROUNDS)
        valid = self.strong_rows.valid
        names = ("evidence", "labels", "right")
        strong = [self.strong_rows[name][valid] for name in names]
        seen, said, kept = strong if self.learns else out_of_fold.inference_rows()
        self.inference.fit(seen, said, kept, rounds=WARM_ROUNDS)
        if self.promise:
            classes = len(self.thresholds)
            scores = cross_fitted(evidence, labels, right, folds, classes=classes)
            self.thresholds.copy_(self._thresholds(scores, labels, right))

    def _thresholds(self, scores: Tensor, labels: Tensor, right: Tensor) -> Tensor:
        """By the promise that was asked for."""
        if self.max_trusted_error is None:
            (max_error,) = self.promise.values()
            return class_thresholds(scores, labels, right, classes=len(self.thresholds), max_error=max_error)
        memory = self.scale.memory
        return trusted_threshold(scores, right, memory["score"][memory.valid], self.max_trusted_error)

    def _warn_of_few(self, task: Task) -> None:
        """Say beforehand that a promise cannot be kept, and what would be needed."""
        for name, value in self.promise.items():
            least = labels_needed(value)
            few = f"at least {least} labels, not {task.labeled}" if task.labeled < least else ""
            few = few or ("two labels of every class" if task.label_counts.min() < 2 else "")
            if few:
                warnings.warn(f"{name}={value:g} needs {few}: no pseudo label is trusted in this run", stacklevel=2)


@torch.no_grad()
def further_outputs(step: Step, weak: Outputs) -> list[Outputs]:
    """Outputs for the labeled images, and for strong views of as many pool rows (weak if there are no others)."""
    batch = step.batch
    count = len(batch.x)
    if "strong" not in batch.views:
        pieces = [step.forward_eval(batch.x), Outputs(weak.logits[:count], weak.features[:count])]
    else:
        joined = step.forward_eval(torch.cat([batch.x, batch.rows("strong", slice(count))]))
        pieces = joined.split([count, len(joined.logits) - count])
    return [Outputs(piece.logits.detach(), piece.features.detach().float()) for piece in pieces]

"""The memory of VCC, a history of predictions and a queue of scores, and the target confidence derived from it."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ...models.classifier import borrowed_statistics
from ...types import Step, WeakOutputs
from ...utils.ring_buffer import RingBuffer
from ..history import History
from .fusion import Fusion, Rows, target_confidence
from .scores import Head, ensemble_score, temporal_score, view_score


class ScoreMemory(nn.Module):
    """`observe` scores and stores examples, `target` gives r̃; the options are those of VCC."""

    def __init__(
        self,
        history: History,
        *,
        scores: Sequence[str],
        queue_size: int,
        mc_samples: int,
        dropout: float,
        fusion: Fusion,
        min_per_class: int,
    ) -> None:
        super().__init__()
        self.scores = scores
        self.mc_samples = mc_samples
        self.dropout = dropout
        self.fusion: Fusion = fusion
        self.min_per_class = min_per_class
        self.history = history
        columns = {"scores": ((len(scores),), torch.float32), "confidence": ((), torch.float32)}
        self.memory = RingBuffer(queue_size, {**columns, "labels": ((), torch.long)})

    @torch.no_grad()
    def observe(self, step: Step, images: Tensor, outputs: WeakOutputs, rows: Tensor | slice = slice(None)) -> Rows:
        """Score the examples `rows` of a batch and add them to the queue; add the whole batch to the history."""
        probs = outputs.logits.detach().float().softmax(1)
        columns = [self._score(name, step, images, outputs, probs, rows)[:, None] for name in self.scores]
        scores = torch.cat([probs.new_empty(len(probs[rows]), 0), *columns], 1)
        scored = Rows(scores, *probs[rows].max(1))
        self.history.write(step.gather(step.batch.pool_ids), step.gather(probs), step.number)
        self.memory.push(**{name: step.gather(column) for name, column in scored._asdict().items()})
        return scored

    def target(self, rows: Rows) -> Tensor:
        """The target confidence r̃ of these examples."""
        classes = self.history.classes + 1
        return target_confidence(rows, self.queue(), classes, fusion=self.fusion, min_per_class=self.min_per_class)

    def queue(self) -> Rows:
        """The queue; rows not yet filled have no scores and an extra class of their own."""
        valid = self.memory.valid
        scores = torch.where(valid[:, None], self.memory["scores"], torch.nan)
        labels = torch.where(valid, self.memory["labels"], self.history.classes)
        return Rows(scores, self.memory["confidence"], labels)

    def _score(
        self, name: str, step: Step, images: Tensor, outputs: WeakOutputs, probs: Tensor, rows: Tensor | slice
    ) -> Tensor:
        if name == "ensemble":
            head = cast(nn.Linear, step.model.head)
            return ensemble_score(outputs.features[rows], head, mc_samples=self.mc_samples, dropout=self.dropout)
        if name == "temporal":
            return temporal_score(probs[rows], *self.history.read(step.batch.pool_ids[rows], step.number))
        features = _features_for_view(step, images, outputs, rows)
        return view_score(
            features, step.ema(images[rows]).features, cast(Head, step.model.head), cast(Head, step.ema.head)
        )


def _features_for_view(step: Step, images: Tensor, outputs: WeakOutputs, rows: Tensor | slice) -> Tensor:
    """Features under the BatchNorm statistics of the EMA, or two identical networks would disagree.

    The EMA uses running statistics as of the last step. If the model used those of the batch, it is evaluated again.
    """
    if outputs.at_inference:
        return outputs.features[rows]
    with borrowed_statistics(step.model, step.ema):
        return step.forward_eval(images[rows]).features

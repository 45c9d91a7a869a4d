"""The memory of VCC, a history of predictions and a queue of scores, and the target confidence derived from it."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from ...models.classifier import borrowed_statistics
from ...types import Outputs, Step, WeakOutputs
from ...utils.ring_buffer import RingBuffer
from ..history import History
from .fusion import Rows, interpolate
from .scores import Head, ensemble_score, temporal_score, view_score


class ScoreMemory(nn.Module):
    """`observe` scores and stores examples, `target` gives r̃."""

    def __init__(
        self, scores: tuple[str, ...], history: History, size: int, mc_samples: int, dropout: float,
        fusion: str, min_per_class: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.scores, self.mc_samples, self.dropout = scores, mc_samples, dropout
        self.classes, self.fusion, self.min_per_class = history.classes, fusion, min_per_class
        self.history = history
        columns = {"scores": ((len(scores),), torch.float32), "confidence": ((), torch.float32)}
        self.memory = RingBuffer(size, {**columns, "labels": ((), torch.long)})

    @torch.no_grad()
    def observe(self, step: Step, images: Tensor, outputs: WeakOutputs, rows: Tensor | slice = slice(None)) -> Rows:
        """Score the examples `rows` of a batch and add them to the queue; add the whole batch to the history."""
        probs, ids = outputs.logits.detach().float().softmax(1), step.batch.pool_ids
        columns = [probs.new_empty(len(probs[rows]), 0)]
        for name in self.scores:
            if name == "ensemble":
                score = ensemble_score(
                    cast(nn.Linear, step.model.head), outputs.features[rows], self.mc_samples, self.dropout
                )
            elif name == "temporal":
                score = temporal_score(probs[rows], *self.history.read(ids[rows], step.number))
            else:
                score = _view(step, images, outputs, rows)
            columns.append(score[:, None])
        scored = Rows(torch.cat(columns, 1), *probs[rows].max(1))
        self.history.write(step.gather(ids), step.gather(probs), step.number)
        self.memory.push(**{name: step.gather(column) for name, column in scored._asdict().items()})
        return scored

    def target(self, rows: Rows) -> Tensor:
        """The target confidence r̃ of these examples."""
        return interpolate(rows, self.queue(), self.classes + 1, self.fusion, self.min_per_class)

    def queue(self) -> Rows:
        """The queue; rows not yet filled have no scores and an extra class of their own."""
        valid = self.memory.valid
        scores = torch.where(valid[:, None], self.memory["scores"], torch.nan)
        return Rows(scores, self.memory["confidence"], torch.where(valid, self.memory["labels"], self.classes))


def _view(step: Step, images: Tensor, outputs: WeakOutputs, rows: Tensor | slice) -> Tensor:
    """The view score. Model and EMA need the same BatchNorm statistics, or two identical networks would disagree.

    The EMA uses running statistics as of the last step. If the model used those of the batch, it is evaluated again.
    """
    if outputs.at_inference:
        online = Outputs(outputs.logits[rows], outputs.features[rows])
    else:
        with borrowed_statistics(step.model, step.ema):
            online = step.forward_eval(images[rows])
    head, ema_head = cast(Head, step.model.head), cast(Head, step.ema.head)
    return view_score(online, step.ema(images[rows]), head, ema_head)

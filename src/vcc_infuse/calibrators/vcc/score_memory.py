"""The memory of VCC, a history of predictions and a queue of scores, and the confidences derived from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from ...memory import Memory
from ...types import Outputs, Step
from .consistency import Head, ensemble_score, temporal_score, view_score
from .fusion import Rows, class_counts, interpolate
from .history import History
from .quantile_matching import match_classwise, match_pooled


class ScoreMemory(nn.Module):
    """`observe` scores and stores examples, `target` gives r̃, `matched` maps a score to another scale."""

    def __init__(
        self, scores: tuple[str, ...], history: History, size: int, mc_samples: int, dropout: float,
        fusion: str, min_per_class: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.scores, self.mc_samples, self.dropout = scores, mc_samples, dropout
        self.classes, self.fusion, self.min_per_class = history.classes, fusion, min_per_class
        self.history = history
        numbers = dict.fromkeys(("confidence", "tempered", "raw"), ((), torch.float32))
        self.memory = Memory(size, {"scores": ((len(scores),), torch.float32), "labels": ((), torch.long), **numbers})

    def observe(
        self, step: Step, images: Tensor, outputs: Outputs, rows: Tensor, raw: Tensor, tempered: Tensor
    ) -> Rows:
        """Score the examples `rows` of a batch and add them to the queue; add the whole batch to the history.

        `raw` and `tempered` are the batch's selection score and its confidence at the learned temperature.
        """
        probs = outputs.logits.float().softmax(1)
        chosen = Outputs(outputs.logits[rows], outputs.features[rows])
        ids = step.batch.pool_ids
        scores = self._scores(step, images[rows], chosen, probs[rows], ids[rows])
        scored = Rows(scores, *probs[rows].max(1))
        self.history.write(step.gather(ids), step.gather(probs), step.number)
        columns = {**scored._asdict(), "raw": raw[rows], "tempered": tempered[rows]}
        self.memory.push(**{name: step.gather(column) for name, column in columns.items()})
        return scored

    def target(self, rows: Rows) -> Tensor:
        """The target confidence r̃ of these examples."""
        return interpolate(rows, self.queue(), self.classes + 1, self.fusion, self.min_per_class)

    def matched(self, raw: Tensor, probs: Tensor, match: str, direct: bool = False) -> Tensor:
        """`raw` mapped to the scale `match`; the softmax confidence where the queue has too few of a class.

        With `direct`, `raw` is the target itself.
        """
        confidence, labels = probs.max(1)
        queue = self.queue()
        if match != "none":
            own = self.target(queue) if direct else self.memory["raw"]
            reference, match_to = self._reference(match, queue)
            raw = match_to(raw, labels, own, reference, queue.labels, self.classes + 1)
        enough = class_counts(queue.labels, self.classes + 1)[labels] >= max(self.min_per_class, 1)
        return torch.where(enough, raw, confidence)

    def queue(self) -> Rows:
        """The queue; rows not yet filled have no scores and an extra class of their own."""
        valid = self.memory.valid
        scores = torch.where(valid[:, None], self.memory["scores"], torch.nan)
        return Rows(scores, self.memory["confidence"], torch.where(valid, self.memory["labels"], self.classes))

    def _reference(self, match: str, queue: Rows) -> tuple[Tensor, Callable[..., Tensor]]:
        """The values whose distribution is matched, and the function that matches it."""
        if match == "balanced":
            return torch.where(self.memory.valid, queue.confidence, torch.nan), match_pooled
        return self.target(queue) if match == "target" else self.memory[match], match_classwise

    def _scores(self, step: Step, images: Tensor, outputs: Outputs, probs: Tensor, ids: Tensor) -> Tensor:
        """One column per score; the EMA model runs only for the view score."""
        columns = [probs.new_empty(len(probs), 0)]
        head = cast(Head, step.model.head)
        for name in self.scores:
            if name == "ensemble":
                columns.append(ensemble_score(head, outputs.features, self.mc_samples, self.dropout)[:, None])
            elif name == "temporal":
                columns.append(temporal_score(probs, *self.history.read(ids, step.number))[:, None])
            else:
                columns.append(self._view(step, images, outputs)[:, None])
        return torch.cat(columns, 1)

    @torch.no_grad()
    def _view(self, step: Step, images: Tensor, outputs: Outputs) -> Tensor:
        head, ema_head = cast(Head, step.model.head), cast(Head, step.ema.head)
        return view_score(outputs, step.ema(images), head, ema_head)

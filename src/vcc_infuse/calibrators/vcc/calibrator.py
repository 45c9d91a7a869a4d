"""What VCC's options may be, and what is said of one that may not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ...errors import UserError
from ...types import Calibrated, Outputs, Step, Task
from ...utils.numerics import to_float64
from ..base import Calibrator, move
from .history import History
from .reconstruction import MLP, VAE
from .score_memory import Evidence
from .temperature_estimate import VIEW, Scale

SCORES = ("ensemble", "temporal", "view")


_CHOICES = {
    "reconstruct": ("vae", "mlp", "none"),
    "fusion": ("corrected", "paper"),
    "output": ("scalar", "distribution"),
    "match": ("balanced", "confidence", "tempered", "target", "none"),
    "inference": ("temperature", "reconstruction", "both"),
}


_MANY = 2**31


_RANGES = {
    "copies": (1, _MANY), "dropout": (0, 0.99), "window": (1, 1000), "stale": (0, _MANY), "top": (0, _MANY),
    "queue": (1, _MANY), "min_per_class": (1, _MANY), "latent": (1, _MANY), "target_fraction": (0.001, 1),
    "warmup": (0, 1), "weight": (0, _MANY), "share": (0, 0.9),
}  # fmt: skip


def check_options(vcc: object) -> None:
    """Refuse a value out of range or unknown, by its name."""
    for name in vcc.scores:  # type: ignore[attr-defined]
        if name not in SCORES:
            raise UserError(f"scores: {name!r} is not known; choose from {', '.join(SCORES)}")
    for name, (low, high) in _RANGES.items():
        value = getattr(vcc, name)
        if value is not None and not low <= value <= high:
            raise UserError(f"{name}={value!r} is out of range; give a value from {low:g} to {high:g}")
    for name, choices in _CHOICES.items():
        value = getattr(vcc, name)
        if value not in choices:
            raise UserError(f"{name}={value!r} is not known; choose from {', '.join(choices)}")


class Seen(NamedTuple):
    """The rows of a batch whose target was computed, and that target."""

    rows: Tensor
    target: Tensor


class VCC(Calibrator):
    """Replaces the confidence of any pseudo-label method; the label stays the classifier's.

    With the view "labeled_strong" in the batch it also learns a temperature for `predict`.

    Args:
        scores: which of "ensemble", "temporal", "view" count beside the softmax confidence.
        reconstruct: "vae" or "mlp" learn the target; "none" selects by the target itself, on whole batches.
        fusion: "corrected", or "paper" as printed, which trusts unsure predictions more.
        output: the network gives a "scalar" confidence, or a class "distribution".
        match: the scale of the selection score, its order within each pseudo class being kept: "balanced" takes that of
            the softmax confidence of all classes together (as many are selected as without VCC, the same share of each
            class), "confidence" that of the class itself (each class selects as many as without VCC), "tempered"
            that at the learned temperature (never more), "target" that of the target, "none" its own (as printed).
        inference: the confidence of `predict`: the softmax at the learned "temperature", the "reconstruction", "both".
        direct: select by the target itself where it was computed, by its reconstruction elsewhere.
        residual: the network starts at the softmax confidence instead of at 1/2.
        copies: heads with dropout in the ensemble.
        dropout: their dropout rate.
        window: visits averaged by the temporal score.
        stale: passes through the pool after which an earlier visit no longer counts.
        top: classes kept of an earlier prediction where there are more than 128 (0: all).
        queue: examples last_occurrence; 128 a class if not given.
        min_per_class: examples of a class that the queue needs before its confidence is touched.
        latent: size of the VAE's z.
        target_fraction: random part of each batch on which the target is computed and learned.
        warmup: part of the run in which the softmax confidence still selects.
        weight: factor of the loss.
        share: part of the labeled images kept out of training, at least one of each class, from which the temperature
            is learned; with 0 from labeled images made harder, which a network that knows them by heart passes.
        memorization_gate: without held-out labels, count the temperature as far as accuracy on labeled images differs from
            confidence in unlabeled ones, which is much where labels are known by heart; else count it in full.
    """

    def __init__(
        self,
        scores: Sequence[str] = SCORES,
        reconstruct: Literal["vae", "mlp", "none"] = "vae",
        fusion: Literal["corrected", "paper"] = "corrected",
        output: Literal["scalar", "distribution"] = "scalar",
        match: Literal["balanced", "confidence", "tempered", "target", "none"] = "balanced",
        inference: Literal["temperature", "reconstruction", "both"] = "temperature",
        direct: bool = False,
        residual: bool = True,
        copies: int = 8,
        dropout: float = 0.3,
        window: int = 1,
        stale: float = 4.0,
        top: int = 8,
        queue: int | None = None,
        min_per_class: int = 16,
        latent: int = 16,
        target_fraction: float = 0.25,
        warmup: float = 0.1,
        weight: float = 1.0,
        share: float = 0.0,
        memorization_gate: bool = True,
    ) -> None:
        super().__init__()
        self.scores, self.reconstruct, self.fusion, self.output = tuple(scores), reconstruct, fusion, output
        self.match, self.inference, self.direct, self.residual = match, inference, direct, residual
        self.copies, self.dropout = copies, dropout
        self.window, self.stale, self.top, self.queue = window, stale, top, queue
        self.min_per_class, self.latent, self.target_fraction = min_per_class, latent, target_fraction
        self.warmup, self.weight, self.share, self.memorization_gate = warmup, weight, share, memorization_gate
        check_options(self)
        self.labeled_views = () if share else ("strong",)

    @property
    def held_out(self) -> float:
        """The part of the labeled images that training must not see."""
        return self.share

    def setup(self, model: nn.Module, task: Task) -> None:
        """Make the history, the queue and the network."""
        head: Any = model.head
        one_pass = math.ceil(task.pool / task.unlabeled_batch_size)
        top = self.top if task.classes > 128 else 0
        history = History(task.pool, task.classes, top, self.window, math.ceil(self.stale * one_pass))
        self.evidence = Evidence(
            self.scores, history, self.queue or 128 * task.classes, self.copies, self.dropout,
            self.fusion, self.min_per_class,
        )  # fmt: skip
        self.scale = Scale(task.classes, self.share > 0, self.memorization_gate)
        self.network = self._network(task.classes, head.in_features)

    def forward(self, step: Step, images: Tensor, outputs: Outputs) -> Calibrated:
        """In training mode take in the batch and learn its target; then trust by what was learned."""
        outputs = outputs.detach()
        probs = outputs.logits.float().softmax(1)
        raw = self._reconstructed(probs, outputs.features)
        seen, loss = self._learn(step, images, outputs, probs, raw) if self.training else (None, None)
        trusted = probs if step.progress < self.warmup else move(probs, self._selection(raw, probs, seen))
        return Calibrated(trusted, trusted.amax(1), loss)

    @torch.no_grad()
    def predict(self, outputs: Outputs) -> Tensor:
        """Confidence in the predicted class at inference, with z at the prior's mean."""
        probs, tempered = outputs.logits.float().softmax(1), to_float64(self.scale(outputs.logits.float())).softmax(1)
        if self.inference == "temperature":
            return tempered.amax(1)
        score = self._reconstructed(probs, outputs.features)
        if self.inference == "both":
            before, after = (p.amax(1).logit(1e-6) for p in (probs, tempered))
            score = (score.logit(1e-6) + after - before).sigmoid()
        return move(probs, score).amax(1)

    @torch.no_grad()
    def _reconstructed(self, probs: Tensor, features: Tensor) -> Tensor:
        """What the network makes of the confidence; the confidence itself without a network."""
        if self.network is None:
            return probs.amax(1)
        with torch.autocast(probs.device.type, enabled=False):
            return self.network.confidence(probs, features.float())

    def _selection(self, raw: Tensor, probs: Tensor, seen: Seen | None) -> Tensor:
        """The confidence that thresholds judge: by the network, or by the target where it is known and wanted."""
        chosen = self.evidence.matched(raw, probs, self.match) if self.network else probs.amax(1)
        if seen is None or (self.network and not self.direct):
            return chosen
        known = self.evidence.matched(seen.target, probs[seen.rows], self.match, direct=True)
        return chosen.index_copy(0, seen.rows, known)

    def _learn(
        self, step: Step, images: Tensor, outputs: Outputs, probs: Tensor, raw: Tensor
    ) -> tuple[Seen, Tensor | None]:
        """The target of a random part of the batch (of all without a network), and the loss of missing it."""
        if ("held_out" if self.share else VIEW) in step.batch.views:
            self.scale.observe(step, self._part(len(step.batch.y), probs.device), images)
        tempered = self.scale(outputs.logits.float()).softmax(1).amax(1)
        rows = self._part(len(probs), probs.device)
        target = self.evidence.target(self.evidence.observe(step, images, outputs, rows, raw, tempered))
        if self.network is None:
            return Seen(rows, target), None
        goal = target if self.output == "scalar" else move(probs[rows], target)
        with torch.autocast(probs.device.type, enabled=False):
            loss = self.network.loss(probs[rows], outputs.features[rows].float(), goal)
        return Seen(rows, target), self.weight * loss

    def _part(self, count: int, device: torch.device) -> Tensor:
        """Random rows of a batch of `count`: `target_fraction` of them, or all where nothing is learned from a part."""
        part = count if self.network is None else math.ceil(self.target_fraction * count)
        return torch.randperm(count, device=device)[:part].sort().values

    def _network(self, classes: int, features: int) -> MLP | None:
        if self.reconstruct == "vae":
            return VAE(classes, features, self.output, self.latent, self.residual)
        return MLP(classes, features, self.output, 0, self.residual) if self.reconstruct == "mlp" else None

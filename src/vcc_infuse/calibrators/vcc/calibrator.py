"""VCC (Fang et al., IJCAI 2024): trust a pseudo label that is stable under dropout, over time and between two networks.

Three consistency scores and the softmax confidence make a target r̃; a small network learns it from class probabilities
and features. Its order within each pseudo class decides what is selected, the softmax confidence how much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ...types import Calibrated, Outputs, Step, Task
from ...utils.numerics import to_float64
from ...validation import check_choice, check_integer, check_range
from ..base import Calibrator, set_top_confidence
from .history import History
from .reconstruction import MLPReconstruction, VAEReconstruction
from .score_memory import ScoreMemory
from .temperature_estimate import VIEW, TemperatureEstimate

SCORES = ("ensemble", "temporal", "view")
DENSE_CLASSES = 128  # up to this many classes the history keeps every probability


class VCC(Calibrator):
    """Replaces the confidence of any pseudo-label method; the label stays the classifier's.

    If the batch has the view "labeled_strong", it also learns a temperature for `predict`.

    Args:
        scores: which of "ensemble", "temporal", "view" count beside the softmax confidence.
        reconstruct: "vae" or "mlp" learn the target; "none" selects by the target itself, on whole batches.
        fusion: "corrected", or "paper" as printed, which trusts uncertain predictions more.
        output: the network gives a "scalar" confidence, or a class "distribution".
        match: the scale of the selection score, whose order within each pseudo class is kept: "balanced" takes that of
            the softmax confidence of all classes together (as many are selected as without VCC, the same fraction of
            each class), "confidence" that of the class itself (each class selects as many as without VCC), "tempered"
            that at the learned temperature (never more), "target" that of the target, "none" its own (as printed).
        inference: the confidence of `predict`: the softmax at the learned "temperature", the "reconstruction", "both".
        direct: select by the target itself where it was computed, by its reconstruction elsewhere.
        residual: the network starts at the softmax confidence instead of at 1/2.
        mc_samples: dropout samples of the head for the ensemble score.
        dropout: their dropout rate.
        window: visits averaged by the temporal score.
        max_age_passes: passes through the pool after which an earlier visit no longer counts.
        top_k: classes kept of an earlier prediction if there are more than 128 (0: all).
        queue_size: examples in the score memory; 128 per class by default.
        min_per_class: examples of a class in the queue before its confidence is changed.
        latent_dim: size of the VAE's z.
        target_fraction: random fraction of each batch on which the target is computed and learned.
        warmup_fraction: fraction of the run in which the softmax confidence still selects.
        weight: factor of the loss.
        holdout_fraction: fraction of the labeled images kept out of training, at least one per class, from which the
            temperature is learned. With 0 it is learned from harder versions of labeled images, which a network that
            has memorized them still gets right.
        memorization_gate: without held-out labels, weaken the temperature where accuracy on labeled images is close to
            confidence in unlabeled ones, which means that no labels are memorized; else apply it in full.
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
        mc_samples: int = 8,
        dropout: float = 0.3,
        window: int = 1,
        max_age_passes: float = 4.0,
        top_k: int = 8,
        queue_size: int | None = None,
        min_per_class: int = 16,
        latent_dim: int = 16,
        target_fraction: float = 0.25,
        warmup_fraction: float = 0.1,
        weight: float = 1.0,
        holdout_fraction: float = 0.0,
        memorization_gate: bool = True,
    ) -> None:
        super().__init__()
        self.scores = tuple(check_choice("scores", score, SCORES) for score in scores)
        self.reconstruct = check_choice("reconstruct", reconstruct, ("vae", "mlp", "none"))
        self.fusion = check_choice("fusion", fusion, ("corrected", "paper"))
        self.output = check_choice("output", output, ("scalar", "distribution"))
        self.match = check_choice("match", match, ("balanced", "confidence", "tempered", "target", "none"))
        self.inference = check_choice("inference", inference, ("temperature", "reconstruction", "both"))
        self.direct, self.residual, self.memorization_gate = direct, residual, memorization_gate
        self.mc_samples = check_integer("mc_samples", mc_samples)
        self.dropout = check_range("dropout", dropout, 0, 0.99)
        self.window = check_integer("window", window, 1, 1000)
        self.max_age_passes = check_range("max_age_passes", max_age_passes, 0, 1e9)
        self.top_k = check_integer("top_k", top_k, 0)
        self.queue_size = None if queue_size is None else check_integer("queue_size", queue_size)
        self.min_per_class = check_integer("min_per_class", min_per_class)
        self.latent_dim = check_integer("latent_dim", latent_dim)
        self.target_fraction = check_range("target_fraction", target_fraction, 0.001, 1)
        self.warmup_fraction = check_range("warmup_fraction", warmup_fraction, 0, 1)
        self.weight = check_range("weight", weight)
        self.holdout_fraction = check_range("holdout_fraction", holdout_fraction, 0, 0.9)
        self.labeled_views = () if holdout_fraction else ("strong",)

    @property
    def held_out(self) -> float:
        """The fraction of the labeled images to keep out of training."""
        return self.holdout_fraction

    def setup(self, model: nn.Module, task: Task) -> None:
        """Create the history, the queue and the network."""
        head: Any = model.head
        one_pass = math.ceil(task.pool / task.unlabeled_batch_size)
        top_k = self.top_k if task.classes > DENSE_CLASSES else 0
        history = History(task.pool, task.classes, top_k, self.window, math.ceil(self.max_age_passes * one_pass))
        self.score_memory = ScoreMemory(
            self.scores, history, self.queue_size or 128 * task.classes, self.mc_samples, self.dropout,
            self.fusion, self.min_per_class,
        )  # fmt: skip
        self.temperature = TemperatureEstimate(task.classes, self.holdout_fraction > 0, self.memorization_gate)
        self.network = self._network(task.classes, head.in_features)

    def forward(self, step: Step, images: Tensor, outputs: Outputs) -> Calibrated:
        """The selection confidence; in training mode, after storing the batch and computing the loss of its target."""
        outputs = outputs.detach()
        probs = outputs.logits.float().softmax(1)
        raw = self._reconstructed(probs, outputs.features)
        targets, loss = self._learn(step, images, outputs, probs, raw) if self.training else (None, None)
        if step.progress >= self.warmup_fraction:
            probs = set_top_confidence(probs, self._selection(raw, probs, targets))
        return Calibrated(probs, probs.amax(1), loss)

    @torch.no_grad()
    def predict(self, outputs: Outputs) -> Tensor:
        """Confidence in the predicted class at inference, with z at the prior's mean."""
        probs = outputs.logits.float().softmax(1)
        tempered = to_float64(self.temperature(outputs.logits.float())).softmax(1)
        if self.inference == "temperature":
            return tempered.amax(1)
        score = self._reconstructed(probs, outputs.features)
        if self.inference == "both":
            before, after = (p.amax(1).logit(1e-6) for p in (probs, tempered))
            score = (score.logit(1e-6) + after - before).sigmoid()
        return set_top_confidence(probs, score).amax(1)

    @torch.no_grad()
    def _reconstructed(self, probs: Tensor, features: Tensor) -> Tensor:
        """The network's confidence; the softmax confidence without a network."""
        if self.network is None:
            return probs.amax(1)
        with torch.autocast(probs.device.type, enabled=False):
            return self.network.confidence(probs, features.float())

    def _selection(self, raw: Tensor, probs: Tensor, targets: BatchTargets | None) -> Tensor:
        """The confidence compared with thresholds: from the network, or from the target where known and wanted."""
        selection = self.score_memory.matched(raw, probs, self.match) if self.network else probs.amax(1)
        if targets is None or (self.network and not self.direct):
            return selection
        known = self.score_memory.matched(targets.confidence, probs[targets.rows], self.match, direct=True)
        return selection.index_copy(0, targets.rows, known)

    def _learn(
        self, step: Step, images: Tensor, outputs: Outputs, probs: Tensor, raw: Tensor
    ) -> tuple[BatchTargets, Tensor | None]:
        """The targets of a random part of the batch (of all without a network), and the network's loss on them."""
        if ("held_out" if self.holdout_fraction else VIEW) in step.batch.views:
            self.temperature.observe(step, self._sample_rows(len(step.batch.y), probs.device), images)
        tempered = self.temperature(outputs.logits.float()).softmax(1).amax(1)
        rows = self._sample_rows(len(probs), probs.device)
        target = self.score_memory.target(self.score_memory.observe(step, images, outputs, rows, raw, tempered))
        if self.network is None:
            return BatchTargets(rows, target), None
        goal = target if self.output == "scalar" else set_top_confidence(probs[rows], target)
        with torch.autocast(probs.device.type, enabled=False):
            loss = self.network.loss(probs[rows], outputs.features[rows].float(), goal)
        return BatchTargets(rows, target), self.weight * loss

    def _sample_rows(self, count: int, device: torch.device) -> Tensor:
        """Random rows of a batch of `count`: `target_fraction` of them, or all without a network."""
        part = count if self.network is None else math.ceil(self.target_fraction * count)
        return torch.randperm(count, device=device)[:part].sort().values

    def _network(self, classes: int, features: int) -> MLPReconstruction | None:
        if self.reconstruct == "vae":
            return VAEReconstruction(classes, features, self.output, self.latent_dim, self.residual)
        return (
            MLPReconstruction(classes, features, self.output, 0, self.residual) if self.reconstruct == "mlp" else None
        )


class BatchTargets(NamedTuple):
    """The rows of a batch whose target confidence was computed, and that confidence."""

    rows: Tensor
    confidence: Tensor

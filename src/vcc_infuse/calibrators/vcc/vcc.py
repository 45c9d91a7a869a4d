"""What VCC and RobustVCC share: consistency scores, the target made of them, and the network that learns it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...errors import check_choice, check_integer, check_range
from ...types import Calibrated, Outputs, Step, Task, WeakOutputs
from ..base import Calibrator, set_top_confidence
from ..history import History
from .reconstruction import MLPReconstruction, VAEReconstruction
from .score_memory import ScoreMemory

SCORES = ("ensemble", "temporal", "view")
DENSE_CLASSES = 128  # up to this many classes the history keeps every probability


class ConsistencyCalibrator(Calibrator):
    """Checks the common options and builds the parts; a subclass decides how they select and predict."""

    def __init__(
        self, scores: Sequence[str], reconstruct: str, fusion: str, output: str, residual: bool, mc_samples: int,
        dropout: float, window: int, max_age_passes: float, top_k: int, queue_size: int | None, min_per_class: int,
        latent_dim: int, weight: float,
    ) -> None:  # fmt: skip
        super().__init__()
        self.scores = tuple(check_choice("scores", score, SCORES) for score in scores)
        self.reconstruct = check_choice("reconstruct", reconstruct, ("vae", "mlp", "none"))
        self.fusion = check_choice("fusion", fusion, ("corrected", "printed"))
        self.output = check_choice("output", output, ("scalar", "distribution"))
        self.residual = residual
        self.mc_samples = check_integer("mc_samples", mc_samples)
        self.dropout = check_range("dropout", dropout, 0, 0.99)
        self.window = check_integer("window", window, 1, 1000)
        self.max_age_passes = check_range("max_age_passes", max_age_passes, 0, 1e9)
        self.top_k = check_integer("top_k", top_k, 0)
        self.queue_size = None if queue_size is None else check_integer("queue_size", queue_size)
        self.min_per_class = check_integer("min_per_class", min_per_class)
        self.latent_dim = check_integer("latent_dim", latent_dim)
        self.weight = check_range("weight", weight)

    def setup(self, model: nn.Module, task: Task) -> None:
        """Create the history, the queue and the network."""
        head: Any = model.head
        one_pass = math.ceil(task.pool / task.unlabeled_batch_size)
        top_k = self.top_k if task.classes > DENSE_CLASSES else 0
        history = History(task.pool, task.classes, top_k, self.window, math.ceil(self.max_age_passes * one_pass))
        self.score_memory = ScoreMemory(
            self.scores, history, self.queue_length(task), self.mc_samples, self.dropout, self.fusion,
            self.min_per_class,
        )  # fmt: skip
        self.network = self._network(task.classes, head.in_features)

    def queue_length(self, task: Task) -> int:
        """Examples in the queue."""
        return self.queue_size or 128 * task.classes

    @torch.no_grad()
    def reconstructed(self, probs: Tensor, features: Tensor) -> Tensor:
        """The network's confidence; the softmax confidence without a network."""
        if self.network is None:
            return probs.amax(1)
        with torch.autocast(probs.device.type, enabled=False):
            return self.network.confidence(probs, features.float())

    def loss(self, outputs: Outputs, target: Tensor) -> Tensor | None:
        """The network's weighted loss; its gradient reaches `outputs`, not the target."""
        if self.network is None:
            return None
        with torch.autocast(target.device.type, enabled=False):
            probs = outputs.logits.float().softmax(1)
            return self.weight * self.network.loss(probs, outputs.features.float(), self._goal(probs, target))

    def learn(self, outputs: Outputs, target: Tensor) -> tuple[Tensor, Tensor | None]:
        """The confidence of `reconstructed` and `loss` together, in less time; the target without a network."""
        if self.network is None:
            return target, None
        with torch.autocast(target.device.type, enabled=False):
            probs = outputs.logits.float().softmax(1)
            confidence, loss = self.network.learn(probs, outputs.features.float(), self._goal(probs, target))
        return confidence, self.weight * loss

    def _goal(self, probs: Tensor, target: Tensor) -> Tensor:
        return target if self.output == "scalar" else set_top_confidence(probs.detach(), target)

    def _network(self, classes: int, features: int) -> MLPReconstruction | None:
        if self.reconstruct == "vae":
            return VAEReconstruction(classes, features, self.output, self.latent_dim, self.residual)
        return (
            MLPReconstruction(classes, features, self.output, 0, self.residual) if self.reconstruct == "mlp" else None
        )


class VCC(ConsistencyCalibrator):
    """Replaces the confidence of any pseudo-label method; the label stays the classifier's.

    Args:
        scores: which of "ensemble", "temporal", "view" count beside the softmax confidence.
        reconstruct: "vae" or "mlp" learn the target; "none" selects by the target itself and predicts the softmax.
        fusion: "corrected", or "printed", which trusts uncertain predictions more.
        output: the network gives a "scalar" confidence, or a class "distribution".
        joint: the loss of the VAE also trains the classifier, through its probabilities and features; else these are
            constants to it. The paper does not say; where it was tried it gained nothing (docs/paper-notes.md).
        residual: the network starts at the softmax confidence instead of at 1/2.
        mc_samples: dropout samples of the head for the ensemble score.
        dropout: their dropout rate.
        window: visits averaged by the temporal score.
        max_age_passes: passes through the pool after which an earlier visit no longer counts.
        top_k: classes kept of an earlier prediction if there are more than 128 (0: all).
        queue_size: examples in the queue of scores; 128 per class by default.
        min_per_class: examples of a class in the queue before its target differs from the softmax confidence.
        latent_dim: size of the VAE's z.
        weight: factor of the loss.
    """

    def __init__(
        self,
        scores: Sequence[str] = SCORES,
        reconstruct: Literal["vae", "mlp", "none"] = "vae",
        fusion: Literal["corrected", "printed"] = "corrected",
        output: Literal["scalar", "distribution"] = "scalar",
        joint: bool = False,
        residual: bool = False,
        mc_samples: int = 8,
        dropout: float = 0.3,
        window: int = 1,
        max_age_passes: float = 4.0,
        top_k: int = 8,
        queue_size: int | None = None,
        min_per_class: int = 16,
        latent_dim: int = 16,
        weight: float = 2.0,
    ) -> None:
        super().__init__(
            scores, reconstruct, fusion, output, residual, mc_samples, dropout, window, max_age_passes, top_k,
            queue_size, min_per_class, latent_dim, weight,
        )  # fmt: skip
        self.joint = joint

    def forward(self, step: Step, images: Tensor, outputs: WeakOutputs) -> Calibrated:
        """r; in training mode, after storing the batch and computing the loss of its targets."""
        probs = outputs.logits.detach().float().softmax(1)
        if not self.training:
            confidence, loss = self.reconstructed(probs, outputs.features.detach()), None
        else:
            target = self.score_memory.target(self.score_memory.observe(step, images, outputs))
            confidence, loss = self._learn(step, images, outputs, target)
        return Calibrated(set_top_confidence(probs, confidence), confidence, loss)

    @torch.no_grad()
    def predict(self, outputs: Outputs) -> Tensor:
        """r, with z at the prior's mean; the softmax confidence without a network."""
        return self.reconstructed(outputs.logits.float().softmax(1), outputs.features)

    def _learn(self, step: Step, images: Tensor, outputs: WeakOutputs, target: Tensor) -> tuple[Tensor, Tensor | None]:
        """The confidence before this step and the loss; with a gradient for the classifier if `joint`."""
        if not self.joint or self.network is None:
            return self.learn(outputs.outputs.detach(), target)
        attached = outputs.with_gradient or step.forward_eval(images, gradient=True)
        probs = outputs.logits.detach().float().softmax(1)
        return self.reconstructed(probs, outputs.features.detach()), self.loss(attached, target)

"""VCC (Fang et al., IJCAI 2024): trust a pseudo label that is stable under dropout, over time and between two networks.

Three consistency scores and the softmax confidence make a target r̃. A variational autoencoder learns it from class
probabilities and features. Its output r is compared with the thresholds of the method, and is the confidence at
inference. This is the paper's method; docs/paper-notes.md lists the signs that are corrected and what is not stated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ...types import Calibrated, Outputs, Step
from ..base import set_top_confidence
from .base import SCORES, ConsistencyCalibrator


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

    def forward(self, step: Step, images: Tensor, outputs: Outputs) -> Calibrated:
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

    def _learn(self, step: Step, images: Tensor, outputs: Outputs, target: Tensor) -> tuple[Tensor, Tensor | None]:
        """The confidence before this step and the loss; with a gradient for the classifier if `joint`."""
        if not self.joint or self.network is None:
            return self.learn(outputs.detach(), target)
        attached = step.attached or step.forward_eval(images, gradient=True)
        probs = outputs.logits.detach().float().softmax(1)
        return self.reconstructed(probs, outputs.features.detach()), self.loss(attached, target)

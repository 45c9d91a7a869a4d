"""VCC (Fang et al., IJCAI 2024): confidence from how stable a prediction is, learned by a variational autoencoder."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ...errors import check_choice
from ...models.classifier import borrowed_statistics
from ...types import Calibrated, Outputs, Step, Task, WeakOutputs
from ...utils.device import product_type
from ...utils.params import integer, number
from ...utils.ring_buffer import RingBuffer
from ..base import Calibrator, set_top_confidence
from ..hard_view_temperature import sample_rows
from ..history import DENSE_CLASSES, History
from .reconstruction import Reconstruction
from .scores import Fusion, Head, Rows, ensemble_score, target_confidence, temporal_score, view_score

SCORES = ("ensemble", "temporal", "view")
# A staged start, in fractions of the run.
NETWORK_LEARNS_FROM = 0.17
TARGET_SELECTS_FROM = 0.34
NETWORK_SELECTS_FROM = 0.51


@dataclass(kw_only=True, eq=False, repr=False)
class VCC(Calibrator):
    """Replaces the confidence of any pseudo-label method; the label stays the classifier's.

    Args:
        scores: which of "ensemble", "temporal", "view" count beside the softmax confidence.
        reconstruct: "vae" or "mlp" learn the target; "none" selects by the target itself and predicts the softmax.
        start: "immediate" learns r and selects by it from the first step. "staged" learns it from 17 % of the run on,
            and selects by the softmax until 34 %, by the target r̃ until 51 %, then by r. Scans for a core set, which
            have no target, and `predict` give the softmax confidence until r selects.
        fusion: "corrected", "minus_square", or "printed", which trusts uncertain predictions more; see
            `functional.fuse`.
        normalize_confidence: the fusion scales the softmax confidence to 0…1 by its extremes in the queue, like the
            scores. The paper does not say.
        output: the network gives a "scalar" confidence, or a class "distribution".
        joint: the loss of the VAE also trains the classifier, through its probabilities and features; else these are
            constants to it. The paper does not say; where it was tried it gained nothing (docs/paper-notes.md).
        residual: the network starts at the softmax confidence, which it is given, instead of at 1/2. From 1/2 it
            selects too little for most of a run (docs/paper-notes.md).
        mc_samples: dropout samples of the head for the ensemble score.
        dropout: their dropout rate.
        window: visits averaged by the temporal score.
        max_age_passes: passes through the pool after which an earlier visit no longer counts.
        top_k: classes kept of an earlier prediction if there are more than 128 (0: all).
        queue_size: examples in the queue of scores; 128 per class by default.
        min_per_class: examples of a class in the queue before its target differs from the softmax confidence.
        latent_dim: size of the VAE's z.
        weight: factor of the loss.
        lr_scale: factor of the learning rate with which the network learns.
        every: steps between two steps that score their batch and learn from it; r selects in all of them. On a bank,
            where a head is all that learns beside it, 4 halves the time of a run with VCC (docs/speed.md).
        target_fraction: random fraction of each batch on which the target is computed and learned, once r selects; only
            this part of the weak views goes through the averaged network. The paper takes all of it.

    References:
        Fang, Feng and Lin, VCC-INFUSE: Towards Accurate and Efficient Selection of Unlabeled Examples in
        Semi-supervised Learning, IJCAI 2024.
    """

    scores: Sequence[str] = SCORES
    reconstruct: Literal["vae", "mlp", "none"] = "vae"
    start: Literal["immediate", "staged"] = "immediate"
    fusion: Fusion = "corrected"
    normalize_confidence: bool = False
    output: Literal["scalar", "distribution"] = "scalar"
    joint: bool = False
    residual: bool = True
    mc_samples: int = integer(8)
    dropout: float = number(0.3, 0, 0.99)
    window: int = integer(1, 1, 1000)
    max_age_passes: float = number(4.0, 0, 1e9)
    top_k: int = integer(8, 0)
    queue_size: int | None = integer(None)
    min_per_class: int = integer(16)
    latent_dim: int = integer(16)
    weight: float = number(2.0)
    lr_scale: float = number(1.0, 1e-6, 1e6)
    every: int = integer(1)
    target_fraction: float = number(1.0, 0.001, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scores = tuple(check_choice("scores", score, SCORES) for score in self.scores)
        self.follows_schedule = type(self).follows_schedule or self.start == "staged"

    def setup(self, model: nn.Module, task: Task) -> None:
        """Create the history, the queue and the network."""
        head: Any = model.head
        one_pass = math.ceil(task.pool / task.unlabeled_batch_size)
        self.history = History(
            task.pool,
            task.classes,
            top_k=self.top_k if task.classes > DENSE_CLASSES else 0,
            window=self.window,
            max_age=math.ceil(self.every * self.max_age_passes * one_pass),
        )
        columns = {"scores": ((len(self.scores),), torch.float32), "confidence": ((), torch.float32)}
        self.queue = RingBuffer(self.queue_length(task), {**columns, "labels": ((), torch.long)})
        self.network_selects = nn.Buffer(torch.tensor(self.start == "immediate"))
        self.network: Reconstruction | None = None
        if self.reconstruct != "none":
            latent_dim = self.latent_dim if self.reconstruct == "vae" else 0
            self.network = Reconstruction(
                task.classes, head.in_features, output=self.output, latent_dim=latent_dim, residual=self.residual
            )

    def queue_length(self, task: Task) -> int:
        """Examples in the queue."""
        return self.queue_size or 128 * task.classes

    def forward(self, step: Step, images: Tensor, outputs: WeakOutputs) -> Calibrated:
        """What selects now; in training mode, after storing the batch and computing the loss of its targets."""
        probs = outputs.logits.detach().float().softmax(1)
        softmax = probs.amax(1)
        loss = None
        if self.training:
            self.network_selects.fill_(self._reached(NETWORK_SELECTS_FROM, step))
        if self.training and self.due(step):
            rows = self._scored_rows(step, len(probs), probs.device)
            target = self.target(self.observe(step, images, outputs, rows))
            r, loss = self._learn(step, images, outputs, target, rows)
        else:
            target = softmax
            r = self.reconstructed(probs, outputs.features.detach())
        earlier = target if self._reached(TARGET_SELECTS_FROM, step) else softmax
        confidence = r if self._reached(NETWORK_SELECTS_FROM, step) else earlier
        return Calibrated(set_top_confidence(probs, confidence), confidence, loss)

    def due(self, step: Step) -> bool:
        """Whether this step scores its batch and learns; where the target itself selects, every step does."""
        needed = self.network is None or not self._reached(NETWORK_SELECTS_FROM, step)
        return needed or step.number % self.every == 0

    def _scored_rows(self, step: Step, count: int, device: torch.device) -> Tensor | slice:
        """The rows that get a target: all, unless a part is asked for and the target does not select."""
        whole = self.target_fraction == 1 or self.network is None or not self._reached(NETWORK_SELECTS_FROM, step)
        return slice(None) if whole else sample_rows(count, self.target_fraction, device)

    def _reached(self, fraction: float, step: Step) -> bool:
        """Whether a staged start has come so far; every stage begins at once otherwise."""
        return self.start == "immediate" or step.progress >= fraction

    @torch.no_grad()
    def predict(self, outputs: Outputs) -> Tensor:
        """r, with z at the prior's mean; the softmax confidence without a network, and until r selects."""
        probs = outputs.logits.float().softmax(1)
        return torch.where(self.network_selects, self.reconstructed(probs, outputs.features), probs.amax(1))

    @torch.no_grad()
    def observe(self, step: Step, images: Tensor, outputs: WeakOutputs, rows: Tensor | slice = slice(None)) -> Rows:
        """Score the examples `rows` of a batch and add them to the queue; add the whole batch to the history."""
        probs = outputs.logits.detach().float().softmax(1)
        columns = [self._score(name, step, images, outputs, probs, rows)[:, None] for name in self.scores]
        scores = torch.cat([probs.new_empty(len(probs[rows]), 0), *columns], 1)
        scored = Rows(scores, *probs[rows].max(1))
        self.history.write(step.gather(step.batch.pool_ids), step.gather(probs), step.number)
        self.queue.push(**{name: step.gather(column) for name, column in scored._asdict().items()})
        return scored

    def target(self, rows: Rows) -> Tensor:
        """The target confidence r̃ of scored examples."""
        classes = self.history.classes + 1
        return target_confidence(
            rows,
            self.queued(),
            classes,
            fusion=self.fusion,
            min_per_class=self.min_per_class,
            normalize_confidence=self.normalize_confidence,
        )

    def queued(self) -> Rows:
        """The queue; rows not yet filled have no scores or confidence, and an extra class of their own."""
        valid = self.queue.valid
        scores = torch.where(valid[:, None], self.queue["scores"], torch.nan)
        labels = torch.where(valid, self.queue["labels"], self.history.classes)
        confidence = torch.where(valid, self.queue["confidence"], torch.nan)
        return Rows(scores, confidence, labels)

    def _score(
        self, name: str, step: Step, images: Tensor, outputs: WeakOutputs, probs: Tensor, rows: Tensor | slice
    ) -> Tensor:
        head: Any = step.model.head
        if name == "ensemble":
            return ensemble_score(outputs.features[rows], head, mc_samples=self.mc_samples, dropout=self.dropout)
        if name == "temporal":
            return temporal_score(probs[rows], *self.history.read(step.batch.pool_ids[rows], step.number))
        if outputs.at_inference:
            features = outputs.features[rows]
        else:
            # The EMA uses running statistics as of the last step. Under others, two identical networks would disagree.
            with borrowed_statistics(step.model, step.ema):
                features = step.forward_eval(images[rows]).features
        return view_score(features, step.ema(images[rows]).features, head, cast(Head, step.ema.head))

    @torch.no_grad()
    def reconstructed(self, probs: Tensor, features: Tensor) -> Tensor:
        """The network's confidence; the softmax confidence without a network."""
        if self.network is None:
            return probs.amax(1)
        kind = product_type(probs.device)
        with torch.autocast(probs.device.type, enabled=False):
            return self.network.confidence(probs, features.float(), kind)

    def loss(self, outputs: Outputs, target: Tensor) -> Tensor | None:
        """The network's weighted loss; its gradient reaches `outputs`, not the target."""
        if self.network is None:
            return None
        kind = product_type(target.device)
        with torch.autocast(target.device.type, enabled=False):
            probs = outputs.logits.float().softmax(1)
            return self.weight * self.network.loss(probs, outputs.features.float(), self._goal(probs, target), kind)

    def _learn(
        self, step: Step, images: Tensor, outputs: WeakOutputs, target: Tensor, rows: Tensor | slice
    ) -> tuple[Tensor, Tensor | None]:
        """The confidence before this step and the loss of `rows`; with a gradient for the classifier if `joint`."""
        if self.network is None or not self._reached(NETWORK_LEARNS_FROM, step):
            return target, None
        probs = outputs.logits.detach().float().softmax(1)
        features = outputs.features.detach()
        if self.joint:
            attached = outputs.with_gradient or step.forward_eval(images, gradient=True)
            chosen = Outputs(attached.logits[rows], attached.features[rows])
            return self.reconstructed(probs, features), self.loss(chosen, target)
        if isinstance(rows, Tensor):
            chosen = Outputs(outputs.logits[rows], features[rows]).detach()
            return self.reconstructed(probs, features), self.loss(chosen, target)
        kind = product_type(target.device)
        with torch.autocast(target.device.type, enabled=False):
            confidence, loss = self.network.learn(probs, features.float(), self._goal(probs, target), kind)
        return confidence, self.weight * loss

    def _goal(self, probs: Tensor, target: Tensor) -> Tensor:
        return target if self.output == "scalar" else set_top_confidence(probs.detach(), target)

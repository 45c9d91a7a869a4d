"""How well a confidence tells right pseudo labels from wrong ones, measured inside a run that none of them changes.

The softmax selects. Beside it other confidences are computed and trained on the same batches, and each pool row's last
values in three windows of the run are kept: the scores of VCC, its target, its VAE, an MLP and RobustVCC; or Evidence
and what it is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vcc_infuse import metrics
from vcc_infuse.calibrators import VCC, Evidence, RobustVCC, Softmax
from vcc_infuse.calibrators.history import History
from vcc_infuse.calibrators.vcc.reconstruction import Reconstruction
from vcc_infuse.calibrators.vcc.scores import Rows, target_confidence
from vcc_infuse.data.ssl_data import SSLData
from vcc_infuse.types import Calibrated, Outputs, Step, Task, WeakOutputs

MOMENTS = {"quarter": 0.25, "half": 0.5, "end": 1.0}
WINDOW = 0.1  # of the run, before each moment
PARTS = 20
"""Equal parts of the run, for curves."""
COVERAGE = 0.7
THRESHOLD = 0.95  # of FixMatch, in whose runs all is measured
EDGES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, THRESHOLD, 0.99, 1.0)
"""Of the bins: finer where a label is trusted."""
SCORES = ("ensemble", "temporal", "view")
CONFIDENCES = (
    "softmax", *SCORES, "target", "target, printed", "VAE", "MLP", "temperature", "RobustVCC",
)  # fmt: skip
EVIDENCE_PARTS = ("softmax", "visits", "neighbors", "witness", "Evidence")


class Watched(Softmax):
    """The softmax confidence, with others measured beside it; `attach` the data before training."""

    names: ClassVar[tuple[str, ...]]
    """What is measured."""
    truth: Tensor
    kept: Tensor
    curve: Tensor

    def attach(self, data: SSLData) -> None:
        """Show it the labels of the pool that the method does not see."""
        self.register_buffer("truth", torch.as_tensor(data.hidden_truth), persistent=False)
        size = (len(MOMENTS), 1 + len(self.names), len(data.split.pool))
        self.register_buffer("kept", torch.full(size, torch.nan))
        self.register_buffer("curve", torch.full((PARTS, *size[1:]), torch.nan))

    def quality(self) -> dict[str, dict[str, float]]:
        """The metrics of each confidence: AUROC, ECE and the precision of the most trusted, at each moment."""
        quality: dict[str, dict[str, float]] = {name: {} for name in self.names}
        for moment, kept in zip(MOMENTS, self.kept.cpu(), strict=True):
            for name, values in zip(self.names, kept[1:], strict=True):
                known = ~(values.isnan() | kept[0].isnan())
                trusted = int((kept[1 + self.names.index("softmax")][known] >= THRESHOLD).sum())
                measured = measure(values[known], kept[0][known] == 1, name not in SCORES, trusted)
                quality[name] |= {f"{metric}_{moment}": value for metric, value in measured.items()}
        return quality

    def curves(self) -> dict[str, dict[str, Any]]:
        """Of each confidence, for each twentieth of the run: AUROC, and of a probability ECE, bias and coverage.

        Of a probability also the coverage of each true class, and at each moment its bins against the truth.
        """
        curves: dict[str, dict[str, Any]] = {}
        truth = self.truth.cpu()
        for name, values in zip(self.names, self.curve.cpu()[:, 1:].unbind(1), strict=True):
            right = self.curve.cpu()[:, 0]
            parts = [on_the_way(*part, name not in SCORES) for part in zip(values, right, strict=True)]
            metrics_known = dict.fromkeys(metric for part in parts for metric in part)
            curves[name] = {metric: [part.get(metric) for part in parts] for metric in metrics_known}
            if name not in SCORES:
                curves[name]["coverage_per_class"] = [covered(part, truth) for part in values]
                curves[name]["bins"] = self._bins(name)
        return curves

    def _bins(self, name: str) -> dict[str, dict[str, list[float | None]]]:
        kept = self.kept.cpu()[:, [0, 1 + self.names.index(name)]]
        return {moment: in_bins(values, right) for moment, (right, values) in zip(MOMENTS, kept, strict=True)}

    def _keep(self, step: Step, values: dict[str, Tensor], labels: Tensor) -> None:
        """Store the values of a batch, over those of an earlier visit in the same window."""
        truth = self.truth[step.batch.pool_ids]
        right = torch.where(truth >= 0, (labels == truth).float(), torch.nan)
        rows = torch.stack([right, *(values[name] for name in self.names)])
        for place, end in enumerate(MOMENTS.values()):
            if end - max(WINDOW, 1 / step.steps) <= step.progress < end:
                self.kept[place][:, step.batch.pool_ids] = rows
        self.curve[int(step.progress * PARTS)][:, step.batch.pool_ids] = rows


class WatchedSoftmax(Watched):
    """Measures the parts of VCC and RobustVCC, with their default options. Their losses do not reach the classifier."""

    names = CONFIDENCES
    labeled_views = ("strong",)  # RobustVCC learns its temperature from them

    def __init__(self) -> None:
        super().__init__()
        self.vcc = VCC()
        self.robust = RobustVCC()

    def setup(self, model: nn.Module, task: Task) -> None:
        """Set up what is measured."""
        self.vcc.setup(model, task)
        self.robust.setup(model, task)
        self.mlp = Reconstruction(task.classes, model.head.in_features, latent_dim=0, residual=self.vcc.residual)  # type: ignore[union-attr, arg-type]

    def forward(self, step: Step, images: Tensor, outputs: WeakOutputs) -> Calibrated:
        """The softmax; in training mode with the losses of all that is measured."""
        plain = super().forward(step, images, outputs)
        if not self.training:
            return plain
        scored = self.vcc.observe(step, images, outputs)
        robust = self.robust(step, images, outputs)
        target = self.vcc.target(scored)
        constant = outputs.outputs
        values = {"softmax": plain.confidence, **dict(zip(SCORES, -scored.scores.T, strict=True)), "target": target}
        values |= {"target, printed": self._printed(scored), "RobustVCC": robust.confidence}
        values |= self._learned(constant, plain.probs)
        self._keep(step, values, plain.labels)
        losses = [self.vcc.loss(constant, target), robust.loss, self._mlp_loss(constant, plain.probs, target)]
        return plain._replace(loss=torch.stack([loss for loss in losses if loss is not None]).sum())

    def _printed(self, scored: Rows) -> Tensor:
        vcc = self.vcc
        classes = vcc.history.classes + 1
        return target_confidence(scored, vcc.queued(), classes, fusion="printed", min_per_class=vcc.min_per_class)

    @torch.no_grad()
    def _learned(self, outputs: Outputs, probs: Tensor) -> dict[str, Tensor]:
        return {
            "VAE": self.vcc.reconstructed(probs, outputs.features),
            "MLP": self.mlp.confidence(probs, outputs.features.float()),
            "temperature": self.robust.temperature(outputs.logits.float()).softmax(1).amax(1),
        }

    def _mlp_loss(self, outputs: Outputs, probs: Tensor, target: Tensor) -> Tensor:
        with torch.autocast(target.device.type, enabled=False):
            return self.mlp.loss(probs, outputs.features.float(), target)


class WatchedEvidence(Watched):
    """Measures Evidence with some scores and what it is made of. Its loss does not reach the classifier."""

    names = EVIDENCE_PARTS

    def __init__(self, scores: Sequence[str] | None = None) -> None:
        super().__init__()
        self.evidence = Evidence() if scores is None else Evidence(scores=scores)
        self.scores = self.evidence.scores

    def setup(self, model: nn.Module, task: Task) -> None:
        """Set up what is measured."""
        self.evidence.setup(model, task)
        self.visits = History(task.pool, task.classes, window=8)

    def forward(self, step: Step, images: Tensor, outputs: WeakOutputs) -> Calibrated:
        """The softmax; in training mode with the loss of Evidence."""
        plain = super().forward(step, images, outputs)
        if not self.training:
            return plain
        features = outputs.features.float()
        ids = step.batch.pool_ids
        support = self.evidence.support(step, plain.probs, features)
        past, known = self.visits.read(ids, step.number)
        both = torch.where(known[:, None], (past + plain.probs) / 2, plain.probs)
        values = {"softmax": plain.confidence, "visits": of_labels(both, plain.labels)}
        supported = dict(zip(self.scores, support[:, 1:].T, strict=True))
        unknown = torch.full_like(plain.confidence, torch.nan)
        values |= {name: supported.get(name, unknown) for name in ("neighbors", "witness")}
        values["Evidence"] = self.evidence.probability(support, plain.labels)
        self._keep(step, values, plain.labels)
        self.visits.write(ids, plain.probs, step.number)
        return plain._replace(loss=self.evidence(step, images, outputs).loss)


def of_labels(probs: Tensor, labels: Tensor) -> Tensor:
    """The probability of each row's label: `(batch, classes)` and `(batch,)` to `(batch,)`."""
    return probs.gather(1, labels[:, None])[:, 0]


def on_the_way(values: Tensor, right: Tensor, probability: bool) -> dict[str, float]:
    """AUROC and, of a probability, ECE, mean minus share of right labels, and the share that reaches the threshold."""
    known = ~(values.isnan() | right.isnan())
    values = values[known]
    correct = right[known] == 1
    if not len(values):
        return {}
    curve = {"auroc": metrics.auroc(values, correct)}
    if probability:
        trusted = values >= THRESHOLD
        curve |= {"ece": metrics.ece(values, correct), "bias": (values.mean() - correct.float().mean()).item()}
        curve |= {"coverage": trusted.float().mean().item()}
        curve |= {"precision": correct[trusted].float().mean().item()} if trusted.any() else {}
    return curve


def covered(values: Tensor, truth: Tensor) -> list[float | None]:
    """The share of each true class that reaches the threshold; None for a class without known values."""
    known = (truth >= 0) & ~values.isnan()
    count = torch.bincount(truth[known], minlength=int(truth.max()) + 1)
    trusted = torch.bincount(truth[known & (values >= THRESHOLD)], minlength=len(count))
    return [
        round(part / whole, 4) if whole else None for part, whole in zip(trusted.tolist(), count.tolist(), strict=True)
    ]


def in_bins(values: Tensor, right: Tensor) -> dict[str, list[float | None]]:
    """A probability against the truth: the share of the rows in each bin, their mean confidence and their accuracy."""
    known = ~(values.isnan() | right.isnan())
    if not known.any():
        return {}
    table = metrics.reliability(values[known], right[known] == 1, EDGES)
    share = table.count / known.sum()
    columns = {"share": share, "confidence": table.confidence, "accuracy": table.accuracy}
    return {name: [None if value.isnan() else float(value) for value in column] for name, column in columns.items()}


def measure(values: Tensor, right: Tensor, probability: bool = True, trusted: int = 0) -> dict[str, float]:
    """AUROC, precision of the most trusted rows and, of a probability, ECE; empty without rows.

    The most trusted are 70 % and, for `precision_matched`, as many as the base trusts.
    """
    if not len(values):
        return {}
    counts = {"precision": max(1, round(COVERAGE * len(values))), "precision_matched": trusted}
    quality = {name: right[values.topk(count).indices].float().mean().item() for name, count in counts.items() if count}
    quality["auroc"] = metrics.auroc(values, right)
    return {**quality, "ece": metrics.ece(values, right)} if probability else quality

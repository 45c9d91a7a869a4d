"""What a cross-validated run hands out: the method, the linear probe or a mix of both, with a calibrated confidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..calibrators import Calibrator, Softmax
from ..calibrators.cross_fitted import CrossFitted
from ..models import Classifier, Identity
from ..types import Outputs
from .cross_fit import FoldAnswers

WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the method in a mix with the probe
SCALE_DEVIATION = 1.0  # of the prior of log(scale)


class Mix(NamedTuple):
    """(1 − weight) · probe + weight · method, of logits on a common scale; at 0 and 1 one of the two as it is."""

    weight: float
    method_scale: float = 1.0
    probe_scale: float = 1.0

    @property
    def factors(self) -> tuple[float, float]:
        """What the logits of method and probe are multiplied by."""
        if self.weight in (0.0, 1.0):
            return self.weight, 1 - self.weight
        return self.weight * self.method_scale, (1 - self.weight) * self.probe_scale

    def __call__(self, method: Tensor, probe: Tensor) -> Tensor:
        """The mixed logits, or weights or biases of heads."""
        of_method, of_probe = self.factors
        return of_method * method + of_probe * probe

    @property
    def name(self) -> str:
        """What is handed out, in a word."""
        return {0.0: "probe", 1.0: "method"}.get(self.weight, "mix")


class HandOut(NamedTuple):
    """A classifier with its calibrator, why it was chosen, and the figures behind it for summary.json."""

    model: Classifier
    calibrator: Calibrator
    mix: Mix
    cross_validated: dict[str, Any]

    def describe(self) -> str:
        """One line with the evidence."""
        figures = self.cross_validated
        rates = [f"{name} {100 * figures[name]['error']:.0f} %" for name in ("probe", "method") if name in figures]
        mixed = f" ({100 * self.mix.weight:.0f} % method)" if self.mix.name == "mix" else ""
        chosen = f"the {self.mix.name}{mixed} is handed out" if len(rates) > 1 else "its confidence is calibrated"
        return f"cross-validated on {figures['labels']} labels: {', '.join(rates)} error: {chosen}"


def hand_out(answers: Sequence[FoldAnswers], method: Classifier, probe: Classifier, calibrator: Calibrator) -> HandOut:
    """Choose by the answers for hidden labels, and fit the map of the confidence to those of what is chosen.

    Args:
        answers: of the folds.
        method: the trained classifier.
        probe: the linear probe on the same labels.
        calibrator: that of the run.
    """
    y = torch.cat([fold.y for fold in answers])
    of_method = torch.cat([fold.method.logits for fold in answers]).cpu()
    of_probe = torch.cat([fold.probe for fold in answers]).cpu()
    linear = isinstance(method.backbone, Identity)
    mix = choose_mix(of_method, of_probe, y, WEIGHTS if linear else (0.0, 1.0))
    model = method if mix.weight == 1 else probe if mix.weight == 0 else mixed_heads(mix, method, probe)
    usable = linear or mix.weight == 1  # a calibrator of other features says nothing of the probe's
    calibrated = CrossFitted(calibrator if usable else Softmax())
    confidence = torch.cat([fold_confidence(fold, mix, usable) for fold in answers])
    mixed = mix(of_method, of_probe)
    calibrated.fit(confidence, mixed.argmax(1) == y)
    figures: dict[str, Any] = {"labels": len(y), "folds": len(answers), "weight": mix.weight}
    for name, logits in (("method", of_method), ("probe", of_probe), ("handed_out", mixed)):
        figures[name] = figures_of(logits, y)
    return HandOut(model, calibrated.to(method.head.weight.device), mix, figures)


@torch.no_grad()
def fold_confidence(fold: FoldAnswers, mix: Mix, usable: bool) -> Tensor:
    """The confidence that the fold's own calibrator has in the mixed answers."""
    calibrator = fold.calibrator if usable else Softmax()
    return calibrator.predict(Outputs(mix(fold.method.logits, fold.probe), fold.method.features)).cpu()


def mixed_heads(mix: Mix, method: Classifier, probe: Classifier) -> Classifier:
    """One linear layer with the mixed logits of two on the same features."""
    head = nn.Linear(method.head.in_features, method.head.out_features).to(method.head.weight.device)
    with torch.no_grad():
        head.weight.copy_(mix(method.head.weight, probe.head.weight))
        head.bias.copy_(mix(method.head.bias, probe.head.bias))
    return Classifier(Identity(), head)


def fit_scale(logits: Tensor, y: Tensor) -> float:
    """The factor on logits (labels, classes) with the best likelihood of `y` (labels,), under a prior around 1."""
    from scipy.optimize import minimize_scalar

    values = logits.double()

    def loss(log_scale: float) -> float:
        return float(F.cross_entropy(math.exp(log_scale) * values, y, reduction="sum")) + log_scale**2 / (
            2 * SCALE_DEVIATION**2
        )

    return math.exp(minimize_scalar(loss, bounds=(-5, 5), method="bounded").x)


def log_losses(logits: Tensor, y: Tensor) -> Tensor:
    """The log loss of each label at the best scale."""
    return F.cross_entropy(fit_scale(logits, y) * logits.double(), y, reduction="none")


def choose_mix(method: Tensor, probe: Tensor, y: Tensor, weights: Sequence[float] = WEIGHTS) -> Mix:
    """The mix that answers for hidden labels speak for; the method, unless another is better beyond chance."""
    scales = (fit_scale(method, y), fit_scale(probe, y))
    mixes = [Mix(weight, *scales) for weight in weights]
    losses = [log_losses(mix(method, probe), y) for mix in mixes]
    best = min(range(len(mixes)), key=lambda i: float(losses[i].mean()))
    gain = losses[-1] - losses[best]
    if float(gain.mean()) <= standard_error(gain):
        return mixes[-1]
    return mixes[best]


def standard_error(values: Tensor) -> float:
    """Of the mean."""
    return float(values.double().std() / math.sqrt(len(values))) if len(values) > 1 else math.inf


def figures_of(logits: Tensor, y: Tensor) -> dict[str, float]:
    """Error and log loss with their standard errors."""
    wrong = (logits.argmax(1) != y).double()
    losses = log_losses(logits, y)
    return {
        "error": float(wrong.mean()),
        "error_se": standard_error(wrong),
        "log_loss": float(losses.mean()),
        "log_loss_se": standard_error(losses),
    }

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

PRIOR = {0.0: 0.05, 0.25: 0.1, 0.5: 0.2, 0.75: 0.35, 1.0: 0.3}
"""Weights of the method in a mix with the probe, and how likely each is before any label was asked."""
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
    mix = (choose_mix if linear else choose_one)(of_method, of_probe, y)
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


def choose_mix(method: Tensor, probe: Tensor, y: Tensor) -> Mix:
    """The mix of two linear heads that the answers for hidden labels speak for: the mean under their likelihood.

    Picking the best of a few mixes would follow the chance of few labels: with forty of them the better of two heads
    often looks worse. The mean stays near the prior, which prefers the method, until there is evidence.
    """
    if torch.equal(method, probe):
        return Mix(1.0)
    scales = (fit_scale(method, y), fit_scale(probe, y))
    losses = [log_losses(Mix(weight, *scales)(method, probe), y).sum() for weight in PRIOR]
    prior = torch.tensor(list(PRIOR.values()), dtype=torch.float64)
    shares = (prior.log() - torch.stack(losses)).softmax(0)
    return Mix(float(shares @ torch.tensor(list(PRIOR), dtype=torch.float64)), *scales)


def choose_one(method: Tensor, probe: Tensor, y: Tensor) -> Mix:
    """The method, unless the probe's answers for hidden labels are better by more than a standard error."""
    gain = log_losses(method, y) - log_losses(probe, y)
    return Mix(0.0 if float(gain.mean()) > standard_error(gain) else 1.0)


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

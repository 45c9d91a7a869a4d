"""What a cross-validated run hands out: the method, the linear probe or a mix of both, with a calibrated confidence."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..algorithms import Algorithm, LinearProbe
from ..algorithms.baselines import ClosedForm
from ..calibrators import Calibrator
from ..calibrators.cross_fitted import CrossFitted
from ..models import Classifier, Identity
from ..types import Outputs
from .config import TrainConfig
from .cross_fit import FoldAnswers

PRIOR = {0.0: 0.05, 0.25: 0.1, 0.5: 0.2, 0.75: 0.35, 1.0: 0.3}
"""Weights of the method in a mix with the probe, and how likely each is before any label was asked."""
# A probe that errs nearly as often as chance gives a method pseudo labels of which few are right. Chosen on STL-10 and
# CIFAR-10 at 32 pixels: mixes gained at 0.78 of the error of chance and lost at 0.83.
WEAK = 0.78  # of the error of chance, from where on the method gets less of the mix
DISTRUST = 60.0  # how much less


class ScalePrior(NamedTuple):
    """Which factor on logits is likely to calibrate them: mean and deviation of its logarithm."""

    center: float
    deviation: float


# A probe that few labels regularize is too modest. Chosen on STL-10 and CIFAR-10 with 4 and 25 labels per class; on
# other images it can overshoot (LinearProbe in results/hand_out).
OF_PROBE = ScalePrior(0.45, 0.2)
UNKNOWN = ScalePrior(0.0, 1.0)
NEAR_ONE = ScalePrior(0.0, 0.2)  # for a mix of what was scaled already


def scale_prior(algorithm: Algorithm, config: TrainConfig) -> ScalePrior:
    """That of the probe for a head that starts at it, `head_scale` times as large; else nothing is known."""
    if isinstance(algorithm, LinearProbe):
        return OF_PROBE
    if isinstance(algorithm, ClosedForm) or config.head_init != "probe":
        return UNKNOWN
    return ScalePrior(OF_PROBE.center - math.log(config.head_scale), OF_PROBE.deviation)


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

    def on_common_scale(self, method: Tensor, probe: Tensor) -> Tensor:
        """The mixed logits, at 0 and 1 too on the common scale."""
        return self.weight * self.method_scale * method + (1 - self.weight) * self.probe_scale * probe

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
        line = f"cross-validated on {figures['labels']} labels: {', '.join(rates)} error: {chosen}"
        naive = about_naive(figures) if "naive_error" in figures else ""
        return f"{line}; {naive}" if naive else line


def about_naive(figures: Mapping[str, Any]) -> str:
    """What a split that tears groups apart would have claimed; empty if that is no other figure."""
    naive, honest = (f"{100 * error:.0f} %" for error in (figures["naive_error"], figures["probe"]["error"]))
    if naive == honest:
        return ""
    together = f"{figures['grouped_labels']} labels belong to groups, such as near copies"
    return f"{together}: torn apart, the probe would claim {naive} error instead of {honest}"


def hand_out(
    answers: Sequence[FoldAnswers], method: Classifier, probe: Classifier, calibrator: Calibrator, prior: ScalePrior
) -> HandOut:
    """Choose by the answers for hidden labels, and fit the confidence to those of what is chosen.

    Args:
        answers: of the folds.
        method: the trained classifier.
        probe: the linear probe on the same labels.
        calibrator: that of the run.
        prior: what is known of the scale of the method's logits.
    """
    y = torch.cat([fold.y for fold in answers])
    of_method = torch.cat([fold.method.logits for fold in answers]).cpu()
    of_probe = torch.cat([fold.probe for fold in answers]).cpu()
    linear = isinstance(method.backbone, Identity)
    weights = label_weights(y)
    scales = (fit_scale(of_method, y, prior, weights), fit_scale(of_probe, y, OF_PROBE, weights))
    mix = choose_mix(of_method, of_probe, y, scales) if linear else choose_one(of_method, of_probe, y, scales)
    model = method if mix.weight == 1 else probe if mix.weight == 0 else mixed_heads(mix, method, probe)
    logits = mix(of_method, of_probe)
    usable = linear or mix.weight == 1  # a calibrator of other features says nothing of the probe's
    calibrated = CrossFitted(copy.deepcopy(calibrator) if usable else None).to("cpu")
    calibrated.scale.fill_({1.0: scales[0], 0.0: scales[1]}.get(mix.weight) or fit_scale(logits, y, NEAR_ONE, weights))
    calibrated.base_scale.fill_({1.0: 1.0, 0.0: scales[1] / scales[0]}.get(mix.weight, 1 / scales[0]))
    if calibrated.joins:
        columns = [fold_columns(calibrated, fold, mix) for fold in answers]
        calibrated.fit(torch.cat(columns), logits.argmax(1) == y)
    figures: dict[str, Any] = {"labels": len(y), "folds": len(answers), "weight": mix.weight}
    named = {"method": (of_method, scales[0]), "probe": (of_probe, scales[1])}
    named["handed_out"] = (logits, float(calibrated.scale))
    figures |= {name: figures_of(scale * values, y) for name, (values, scale) in named.items()}
    return HandOut(model, calibrated.to(method.head.weight.device).eval(), mix, figures)


def fold_columns(calibrated: CrossFitted, fold: FoldAnswers, mix: Mix) -> Tensor:
    """Both confidences in the mixed answers of a fold, by the fold's own calibrator."""
    outputs = Outputs(mix(fold.method.logits, fold.probe).cpu(), fold.method.features.cpu())
    return calibrated.columns(fold.calibrator.cpu(), outputs)


def mixed_heads(mix: Mix, method: Classifier, probe: Classifier) -> Classifier:
    """One linear layer with the mixed logits of two on the same features."""
    head = nn.Linear(method.head.in_features, method.head.out_features).to(method.head.weight.device)
    with torch.no_grad():
        head.weight.copy_(mix(method.head.weight, probe.head.weight))
        head.bias.copy_(mix(method.head.bias, probe.head.bias))
    return Classifier(Identity(), head)


def label_weights(y: Tensor) -> Tensor:
    """How much each label says, with mean 1: half-way between labels and classes that count alike, as in SelfTraining.

    Answers for a class with many labels are better than for one with few, and there are more of them.
    """
    weights = torch.bincount(y)[y].double() ** -0.5
    return weights / weights.mean()


def fit_scale(logits: Tensor, y: Tensor, prior: ScalePrior = NEAR_ONE, weights: Tensor | None = None) -> float:
    """The factor on logits (labels, classes) that makes `y` (labels,) most likely, under a prior of its logarithm."""
    from scipy.optimize import minimize_scalar

    values = logits.double()

    def loss(log_scale: float) -> float:
        losses = log_losses(math.exp(log_scale) * values, y)
        log_loss = losses.sum() if weights is None else losses @ weights
        return float(log_loss) + ((log_scale - prior.center) / prior.deviation) ** 2 / 2

    return math.exp(minimize_scalar(loss, bounds=(-6, 6), method="bounded").x)


def choose_mix(method: Tensor, probe: Tensor, y: Tensor, scales: tuple[float, float]) -> Mix:
    """The mix of two linear heads that the answers for hidden labels favor: the mean under their likelihood.

    Picking the best of a few mixes would follow the chance of few labels: with forty of them the better of two heads
    often looks worse. The mean stays near the prior, which prefers the method, until there is evidence.
    """
    if torch.equal(method, probe):
        return Mix(1.0, *scales)
    of_labels = label_weights(y)
    mixed = [Mix(weight, *scales).on_common_scale(method, probe) for weight in PRIOR]
    losses = [log_losses(fit_scale(z, y, NEAR_ONE, of_labels) * z, y) @ of_labels for z in mixed]
    prior = torch.tensor(list(PRIOR.values()), dtype=torch.float64)
    weights = torch.tensor(list(PRIOR), dtype=torch.float64)
    of_chance = float((probe.argmax(1) != y).double() @ of_labels / len(y)) / (1 - 1 / probe.shape[1])
    prior = prior.log() - DISTRUST * max(0.0, of_chance - WEAK) * weights
    return Mix(float((prior - torch.stack(losses)).softmax(0) @ weights), *scales)


def choose_one(method: Tensor, probe: Tensor, y: Tensor, scales: tuple[float, float]) -> Mix:
    """The method, unless the probe has a lower error on hidden labels and is better by more than a standard error.

    Both, because a difference in scale alone makes a log loss a little better for every label.
    """
    of_method, of_probe = (log_losses(scale * z, y) for scale, z in zip(scales, (method, probe), strict=True))
    gain = of_method - of_probe
    errs_less = bool((probe.argmax(1) != y).sum() < (method.argmax(1) != y).sum())
    return Mix(0.0 if errs_less and float(gain.mean()) > standard_error(gain) else 1.0, *scales)


def log_losses(logits: Tensor, y: Tensor) -> Tensor:
    """The log loss of each label."""
    return F.cross_entropy(logits.double(), y, reduction="none")


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

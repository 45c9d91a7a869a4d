"""The probability that a label is right, given several pieces of evidence, and thresholds on it with a guarantee.

More evidence never lowers the probability: weights are not negative. Few labels decide little, so the weights are drawn
to a prior, and the offset of each class to the common one. While training, evidence is ranks, and the prior is equal
shares; at inference it is the log-odds of the softmax beside ranks, and the prior is the softmax, softened.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...utils.device import to_float64
from ..scale_matching import in_order

# Normal priors: mean and standard deviation.
WEIGHT = 1.5  # of all weights together
WEIGHT_SD = 0.5  # of each
BIAS = 1.0
BIAS_SD = 1.0
CLASS_SD = 0.5  # of the offset of a class, around 0
# At inference; chosen with 40 labels of CIFAR-10, STL-10 and Fashion-MNIST (docs/beyond.md).
SLOPE = 0.8  # of the log-odds: nearly every softmax is too sure
SLOPE_SD = 0.15
RANK_SD = 0.3  # of the other evidence, around 0
SHIFT_SD = 0.25  # of the bias, around 0: as much as about a hundred labels
ODDS_EPS = 1e-4
REMEMBERED = 4096  # examples of the pool among which a probability is ranked


def log_odds(probs: Tensor) -> Tensor:
    """Bounded, because a softmax that is sure of everything tells nothing by how much."""
    return probs.logit(ODDS_EPS)


class NormalScores(nn.Module):
    """Ranks probabilities of the label in the last of the pool, by column, as quantiles of a normal; NaN is unknown.

    Two heads may be right equally often and yet differ in how sharp their probabilities are. Ranks make their evidence
    comparable, and keep probabilities near 1 apart.
    """

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.values = nn.Buffer(torch.full((columns, REMEMBERED), torch.nan))
        self.ordered = nn.Buffer(torch.full((columns, REMEMBERED), torch.inf))
        self.known = nn.Buffer(torch.zeros(columns, 1))
        self.cursor = nn.Buffer(torch.tensor(0))

    @torch.no_grad()
    def observe(self, probs: Tensor) -> None:
        """Add rows of probabilities of the label, in place of the oldest."""
        probs = probs[-REMEMBERED:]
        places = (self.cursor + torch.arange(len(probs), device=probs.device)) % REMEMBERED
        self.values[:, places] = probs.T
        self.cursor.add_(len(probs)).remainder_(REMEMBERED)
        self.ordered.copy_(in_order(self.values.nan_to_num(torch.inf)))
        self.known.copy_((~self.values.isnan()).sum(1, keepdim=True))

    def forward(self, probs: Tensor) -> Tensor:
        """Normal scores, 0 before anything was observed; what is unknown in a column is taken from the first."""
        columns = probs.T.contiguous()
        values = columns.nan_to_num(0)
        if torch.compiler.is_exporting():  # ONNX has neither searchsorted nor ndtri
            below = (self.ordered[:, None] < values[..., None]).sum(2)
            upto = (self.ordered[:, None] <= values[..., None]).sum(2)
        else:
            below = torch.searchsorted(self.ordered, values)
            upto = torch.searchsorted(self.ordered, values, right=True)
        share = ((below + upto) / 2 + 0.5) / (self.known + 1)
        quantiles = normal_quantile(share) if torch.compiler.is_exporting() else torch.special.ndtri(share)
        scores = quantiles.masked_fill(columns.isnan() | (self.known == 0), torch.nan)
        return torch.where(scores.isnan(), scores[:1], scores).nan_to_num(0).T


# Coefficients of Acklam's rational approximation, whose relative error is below 1.2e-9: center and tails.
CENTER = (
    (-39.69683028665376, 220.9460984245205, -275.9285104469687, 138.3577518672690, -30.66479806614716,
     2.506628277459239),
    (-54.47609879822406, 161.5858368580409, -155.6989798598866, 66.80131188771972, -13.28068155288572, 1.0),
)  # fmt: skip
TAILS = (
    (-7.784894002430293e-03, -0.3223964580411365, -2.400758277161838, -2.549732539343734, 4.374664141464968,
     2.938163982698783),
    (7.784695709041462e-03, 0.3224671290700398, 2.445134137142996, 3.754408661907416, 1.0),
)  # fmt: skip
TAIL = 0.02425


def normal_quantile(share: Tensor) -> Tensor:
    """Quantiles of the normal distribution by arithmetic alone, for runtimes without a function for it."""

    def ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Tensor) -> Tensor:
        above, below = (_polynomial(values, x) for values in coefficients)
        return above / below

    middle = share - 0.5
    center = ratio(CENTER, middle * middle) * middle
    near = torch.minimum(share, 1 - share).clamp(1e-30, TAIL)
    tail = ratio(TAILS, (-2 * near.log()).sqrt()) * torch.where(middle < 0, 1.0, -1.0)
    return torch.where(middle.abs() <= 0.5 - TAIL, center, tail)


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    value = torch.zeros_like(x)
    for coefficient in coefficients:
        value = value * x + coefficient
    return value


class Prior(NamedTuple):
    """Means and standard deviations of weights and bias before any label was judged."""

    weights: tuple[float, ...]
    weight_sd: tuple[float, ...]
    bias: float
    bias_sd: float


def equal_shares(evidence: int) -> Prior:
    """Every rank counts the same."""
    return Prior((WEIGHT / evidence,) * evidence, (WEIGHT_SD,) * evidence, BIAS, BIAS_SD)


def softened_softmax(evidence: int) -> Prior:
    """The first column, the log-odds of the softmax, is believed a little less than it says, and nothing else."""
    ranks = evidence - 1
    return Prior((SLOPE,) + (0.0,) * ranks, (SLOPE_SD,) + (RANK_SD,) * ranks, 0.0, SHIFT_SD)


class LogisticModel(nn.Module):
    """σ(weights · evidence + bias + offset of the label's class), around a prior (equal shares if not given)."""

    def __init__(self, evidence: int, classes: int, prior: Prior | None = None) -> None:
        super().__init__()
        self.prior = prior or equal_shares(evidence)
        self.weights = nn.Buffer(torch.tensor(self.prior.weights))
        self.bias = nn.Buffer(torch.tensor(self.prior.bias))
        self.offsets = nn.Buffer(torch.zeros(classes))

    def forward(self, evidence: Tensor, labels: Tensor) -> Tensor:
        """The probability that each label is right."""
        return (evidence @ self.weights + self.bias + self.offsets[labels]).sigmoid()

    @torch.no_grad()
    def fit(self, evidence: Tensor, labels: Tensor, right: Tensor, rounds: int = 10) -> None:
        """The most probable parameters, from where they are: Newton steps for the common ones, then for each class."""
        x = to_float64(evidence)
        y = to_float64(right)
        weights, bias, offsets = (to_float64(part) for part in (self.weights, self.bias, self.offsets))
        for _ in range(rounds):
            weights, bias = _common_step(x, y, weights, bias, offsets[labels], self.prior)
            # One Newton step on the offset of each class.
            probs = (x @ weights + bias + offsets[labels]).sigmoid()
            slope = (offsets / CLASS_SD**2).index_add(0, labels, probs - y)
            curvature = torch.full_like(offsets, CLASS_SD**-2).index_add(0, labels, probs * (1 - probs))
            offsets = offsets - (slope / curvature).clamp(-1, 1)
        self.weights.copy_(weights)
        self.bias.copy_(bias)
        self.offsets.copy_(offsets)


def cross_fitted(evidence: Tensor, labels: Tensor, right: Tensor, folds: Tensor, *, classes: int) -> Tensor:
    """The probability of each label by a model fitted to the other folds, so that its own answer plays no part."""
    scores = evidence.new_empty(len(labels))
    for fold in torch.bincount(folds).nonzero():
        inside = folds == fold
        model = LogisticModel(evidence.shape[1], classes).to(evidence.device)
        model.fit(evidence[~inside], labels[~inside], right[~inside])
        scores[inside] = model(evidence[inside], labels[inside])
    return scores


def _common_step(
    x: Tensor, y: Tensor, weights: Tensor, bias: Tensor, offset: Tensor, prior: Prior
) -> tuple[Tensor, Tensor]:
    """One Newton step on weights and bias; a weight at zero that would become negative stays there."""
    ones = torch.ones_like(y)[:, None]
    design = torch.cat([x, ones], 1)
    at = torch.cat([weights, bias[None]])
    center = at.new_tensor([*prior.weights, prior.bias])
    precision = at.new_tensor([*prior.weight_sd, prior.bias_sd]) ** -2
    probs = (design @ at + offset).sigmoid()
    slope = design.T @ (probs - y) + precision * (at - center)
    curvature = design.T @ (design * (probs * (1 - probs))[:, None]) + precision.diag()
    free = (at > 0) | (slope < 0)
    free[-1] = True
    step = torch.zeros_like(at)
    step[free] = torch.linalg.solve(curvature[free][:, free], slope[free])
    at = at - step / step.abs().max().clamp_min(1)
    return at[:-1].clamp_min(0), at[-1]


def risk_threshold(scores: Tensor, right: Tensor, max_error: float) -> Tensor:
    """The lowest threshold at which at most `max_error` of the pool is expected to be trusted and wrong, or infinity.

    Conformal risk control (Angelopoulos et al., ICLR 2024) on out-of-fold predictions: the loss of an example is 1 if
    its score is above the threshold and its label wrong. Where (losses + 1)/(examples + 1) ≤ α, the expected loss is at
    most α on a further example from the distribution of the labeled ones.
    """
    allowed = int(max_error * (len(scores) + 1) + 1e-9) - 1
    if allowed < 0:
        return scores.new_tensor(torch.inf)
    wrong = scores[~right].sort(descending=True).values
    return wrong[allowed] if allowed < len(wrong) else scores.new_tensor(-torch.inf)


def class_thresholds(scores: Tensor, labels: Tensor, right: Tensor, *, classes: int, max_error: float) -> Tensor:
    """A threshold for each class with enough labels for a guarantee of its own; one for all others together."""
    enough = torch.bincount(labels, minlength=classes) + 1 >= 2 / max_error
    thresholds = scores.new_empty(classes)
    rest = ~enough[labels]
    thresholds[~enough] = risk_threshold(scores[rest], right[rest], max_error)
    for label in enough.nonzero()[:, 0].tolist():
        members = labels == label
        thresholds[label] = risk_threshold(scores[members], right[members], max_error)
    return thresholds


def labels_needed(max_error: float) -> int:
    """The fewest labels with which a promise of `max_error` can be kept, if none of them is judged wrongly."""
    return math.ceil(1 / max_error - 1e-9) - 1


def trusted_threshold(scores: Tensor, right: Tensor, pool: Tensor, max_error: float) -> Tensor:
    """The lowest threshold at which at most `max_error` of what is trusted is expected to be wrong, or infinity.

    Conformal selection (Jin and Candès, JMLR 2023) on out-of-fold predictions: with (losses + 1)/(examples + 1) as the
    share of the pool that is trusted and wrong, and `pool`, scores of the pool, for the share that is trusted, the rule
    of Benjamini and Hochberg keeps the expected share of wrong labels among trusted ones at most α. Where nothing is
    trusted, it counts as zero. That holds if labels are scored like the pool. A head that believes its own labels
    scores the pool too high, so the examples above the threshold must keep the promise by themselves, too.
    """
    wrong = scores[~right].sort(descending=True).values
    thresholds = torch.cat([wrong, scores.new_tensor([-torch.inf])])
    above = len(wrong) - torch.searchsorted(wrong.flip(0), thresholds, right=True)
    ordered = pool.sort().values
    trusted = len(pool) - torch.searchsorted(ordered, thresholds, right=True)
    kept = (above + 1) / (len(scores) + 1) <= max_error * trusted / max(1, len(pool)) + 1e-9
    shown = len(scores) - torch.searchsorted(scores.sort().values, thresholds, right=True)
    kept &= (above + 1) / (shown + 1) <= max_error + 1e-9  # of examples, none of which has taught the head its label
    return torch.where(kept, thresholds, torch.inf).amin()

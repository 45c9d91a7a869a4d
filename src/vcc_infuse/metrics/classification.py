"""Classification errors and proper scores."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UserError
from ._inputs import Values, class_numbers, judged, numbers, positive, same_length, scored


def error(pred: Values, y: Values) -> float:
    """The share of wrong labels."""
    _, wrong = _wrong(pred, y)
    return float(wrong.mean())


def top_k_error(probs: Values, y: Values, k: int = 5) -> float:
    """The share of examples whose class is not among the `k` likeliest; of equals the lower class is first.

    Only the order counts, so logits do as well. With `k` from the number of classes on it is 0.
    """
    probs, y = _logits("probs", probs, y)
    own = probs.gather(1, y[:, None])
    earlier = torch.arange(probs.shape[1]) < y[:, None]
    rank = ((probs > own) | ((probs == own) & earlier)).sum(1)
    return float((rank >= positive("k", k)).double().mean())


def per_class_error(pred: Values, y: Values, classes: int) -> Tensor:
    """The share of wrong labels among the examples of each true class, NaN for a class without examples."""
    classes = positive("classes", classes)
    truth, wrong = _wrong(pred, y, classes)
    return torch.bincount(truth, wrong, minlength=classes) / torch.bincount(truth, minlength=classes)


def balanced_error(pred: Values, y: Values, classes: int) -> float:
    """The error averaged over the classes that occur, whatever their sizes."""
    return float(per_class_error(pred, y, classes).nanmean())


def nll(logits: Values, y: Values) -> float:
    """Negative log likelihood: the mean cross entropy of `logits`."""
    return float(F.cross_entropy(*_logits("logits", logits, y)))


def brier(probs: Values, y: Values) -> float:
    """Brier (1950) score: squared distance to the one-hot truth, summed over classes (0…2), example mean."""
    probs, y = scored("probs", probs, y)
    return float((probs - F.one_hot(y, probs.shape[1])).square().sum(1).mean())


def auroc(confidence: Values, correct: Values) -> float:
    """The chance that a right prediction is trusted more than a wrong one (ties half); NaN if all alike."""
    confidence = numbers("confidence", confidence)
    right = judged(confidence, correct)
    _, group, size = confidence.unique(return_inverse=True, return_counts=True)
    ranks = (size.cumsum(0).double() - (size - 1) / 2)[group]
    positives = float(right.sum())
    pairs = positives * (len(right) - positives)
    if pairs == 0:
        return float("nan")
    return (float(ranks @ right) - positives * (positives + 1) / 2) / pairs


def _logits(name: str, values: Values, y: Values) -> tuple[Tensor, Tensor]:
    scores = numbers(name, values, 2)
    truth = class_numbers("y", y, classes=scores.shape[1])
    same_length(**{name: scores, "y": truth})
    if (scores == torch.inf).any():
        raise UserError(f"{name} holds +inf; the model has diverged")
    return scores, truth


def _wrong(pred: Values, y: Values, classes: int | None = None) -> tuple[Tensor, Tensor]:
    guess, truth = class_numbers("pred", pred, classes=classes), class_numbers("y", y, classes=classes)
    same_length(pred=guess, y=truth)
    return truth, (guess != truth).double()

"""Classification errors, of all examples, per class and per group of classes; proper scores; AUROC.

Throughout, `pred`, `y`, `confidence` and `correct` have shape (examples,), `probs` and `logits` (examples, classes).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UserError, check_integer
from ._inputs import Values, class_numbers, correctness, numbers, probs_and_truth, same_length


class TailGroups(NamedTuple):
    """Numbers of the classes in each group, the most frequent class first."""

    head: list[int]
    medium: list[int]
    tail: list[int]


def error(pred: Values, y: Values) -> float:
    """The fraction of wrong labels.

    >>> error([0, 1, 2, 2], [0, 1, 1, 2])
    0.25
    """
    _, wrong = _wrong(pred, y)
    return float(wrong.mean())


def top_k_error(probs: Values, y: Values, k: int = 5) -> float:
    """The fraction of examples whose class is not among the `k` most likely; of equals the lower class comes first.

    Only the order counts, so logits work as well. It is 0 if `k` is at least the number of classes.

    >>> top_k_error([[0.6, 0.3, 0.1], [0.5, 0.4, 0.1]], [1, 2], k=2)
    0.5
    """
    scores, truth = _logits("probs", probs, y)
    true_score = scores.gather(1, truth[:, None])
    earlier = torch.arange(scores.shape[1]) < truth[:, None]
    rank = ((scores > true_score) | ((scores == true_score) & earlier)).sum(1)
    return float((rank >= check_integer("k", k)).double().mean())


def per_class_error(pred: Values, y: Values, classes: int) -> Tensor:
    """The fraction of wrong labels among the examples of each true class.

    Returns:
        A tensor of shape (classes,); NaN for a class without examples.

    >>> per_class_error([0, 1, 1, 1], [0, 0, 1, 1], classes=3).tolist()
    [0.5, 0.0, nan]
    """
    classes = check_integer("classes", classes)
    truth, wrong = _wrong(pred, y, classes)
    return torch.bincount(truth, wrong, minlength=classes) / torch.bincount(truth, minlength=classes)


def balanced_error(pred: Values, y: Values, classes: int) -> float:
    """The unweighted mean of the errors of the classes that occur.

    >>> balanced_error([0, 1, 1, 1], [0, 0, 1, 1], classes=3)
    0.25
    """
    return float(per_class_error(pred, y, classes).nanmean())


def nll(logits: Values, y: Values) -> float:
    """Negative log-likelihood: the mean cross entropy of `logits`.

    >>> round(nll([[0.0, 0.0], [0.0, 0.0]], [0, 1]), 4)  # log 2
    0.6931
    """
    return float(F.cross_entropy(*_logits("logits", logits, y)))


def brier(probs: Values, y: Values) -> float:
    """Brier score (Brier, 1950): squared distance to the one-hot truth, summed over classes, averaged over examples.

    It lies in [0, 2].

    >>> brier([[0.5, 0.5], [1.0, 0.0]], [0, 0])
    0.25
    """
    guess, truth = probs_and_truth("probs", probs, y)
    return float((guess - F.one_hot(truth, guess.shape[1])).square().sum(1).mean())


def auroc(confidence: Values, correct: Values) -> float:
    """The probability that a correct prediction is more confident than a wrong one; ties count half.

    NaN if all predictions are correct or all are wrong.

    >>> auroc([0.9, 0.8, 0.7, 0.6], [True, False, True, False])
    0.75
    """
    confidence = numbers("confidence", confidence)
    right = correctness(confidence, correct)
    _, group, size = torch.unique(confidence, return_inverse=True, return_counts=True)
    ranks = (size.cumsum(0).double() - (size - 1) / 2)[group]
    positives = float(right.sum())
    pairs = positives * (len(right) - positives)
    if pairs == 0:
        return float("nan")
    return (float(ranks @ right) - positives * (positives + 1) / 2) / pairs


def tail_groups(label_counts: Values) -> TailGroups:
    """The third of the classes with the most labels, the third with the fewest, and the rest.

    A third is rounded down, but is at least one class. Of classes with equally many labels, the lower number counts as
    more frequent.

    >>> tail_groups([500, 10, 50])
    TailGroups(head=[0], medium=[2], tail=[1])
    """
    order = class_numbers("label_counts", label_counts).argsort(descending=True, stable=True).tolist()
    third = max(1, len(order) // 3)
    last = max(third, len(order) - third)
    return TailGroups(order[:third], order[third:last], order[last:])


def group_errors(errors: Values, label_counts: Values) -> dict[str, float]:
    """The mean class error of each group of `tail_groups`; empty if no class has twice the labels of another.

    Args:
        errors: the error of each class, of shape (classes,). Classes without test examples (NaN) do not count.
        label_counts: the labels of each class in training, of shape (classes,).

    Returns:
        `error_head`, `error_medium` and `error_tail`, without groups that have no test examples.

    >>> group_errors([0.25, 0.75, 0.5], [500, 10, 50])
    {'error_head': 0.25, 'error_medium': 0.5, 'error_tail': 0.75}
    """
    counts = class_numbers("label_counts", label_counts)
    errors = torch.as_tensor(errors, dtype=torch.float64)
    same_length(errors=errors, label_counts=counts)
    if counts.max() < 2 * counts.min():
        return {}
    means = {f"error_{name}": float(errors[group].nanmean()) for name, group in tail_groups(counts)._asdict().items()}
    return {name: mean for name, mean in means.items() if mean == mean}


def _logits(name: str, values: Values, y: Values) -> tuple[Tensor, Tensor]:
    scores = numbers(name, values, 2)
    truth = class_numbers("y", y, classes=scores.shape[1])
    same_length(**{name: scores, "y": truth})
    if (scores == torch.inf).any():
        raise UserError(f"{name} must not hold +inf; the model has diverged")
    return scores, truth


def _wrong(pred: Values, y: Values, classes: int | None = None) -> tuple[Tensor, Tensor]:
    guess = class_numbers("pred", pred, classes=classes)
    truth = class_numbers("y", y, classes=classes)
    same_length(pred=guess, y=truth)
    return truth, (guess != truth).double()

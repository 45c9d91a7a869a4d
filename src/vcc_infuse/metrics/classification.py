"""Classification errors, of all examples, per class and per group of classes; confusion; proper scores; pseudo labels.

Throughout, `pred`, `y`, `confidence` and `correct` have shape (examples,), `probs` and `logits` (examples, classes).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UserError, check_integer

Values = Tensor | np.ndarray | Sequence[Any]
# A softmax or a mean of softmaxes in float32 can leave [0, 1] by a few rounding errors.
ROUNDING = 1e-5


class TailGroups(NamedTuple):
    """Numbers of the classes in each group, the most frequent class first."""

    head: list[int]
    medium: list[int]
    tail: list[int]


class PseudoLabelQuality(NamedTuple):
    """The mean weight, and the weighted fraction of correct labels: NaN if no truth is known."""

    coverage: float
    precision: float


class ClassQuality(NamedTuple):
    """The examples of each pseudo class, their mean weight and their weighted precision, each of shape (classes,)."""

    count: Tensor  # type: ignore[assignment]  # hides tuple.count, which is not needed here
    coverage: Tensor
    precision: Tensor


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
    scores, truth = scores_and_truth("probs", probs, y)
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


def confusion_counts(pred: Values, y: Values, classes: int) -> Tensor:
    """How often each true class (row) was given each label (column).

    Returns:
        A tensor of integers of shape (classes, classes).

    >>> confusion_counts([0, 1, 1, 1], [0, 0, 1, 1], classes=3).tolist()
    [[1, 1, 0], [0, 2, 0], [0, 0, 0]]
    """
    classes = check_integer("classes", classes)
    guess = class_numbers("pred", pred, classes=classes)
    truth = class_numbers("y", y, classes=classes)
    same_length(pred=guess, y=truth)
    return torch.bincount(truth * classes + guess, minlength=classes**2).reshape(classes, classes)


def taken_for(counts: Tensor) -> tuple[Tensor, Tensor]:
    """The wrong label that each true class got most often, and how often, from `confusion_counts`.

    Returns:
        Labels and numbers of examples, both of shape (classes,); of equals the lower label. -1 and 0 for a class
        without a mistake.

    >>> [column.tolist() for column in taken_for(confusion_counts([0, 1, 1, 1], [0, 0, 1, 1], classes=3))]
    [[1, -1, -1], [1, 0, 0]]
    """
    mistakes = counts.clone().fill_diagonal_(0)
    most = mistakes.amax(1)
    # argmax alone may take any of equals.
    first = (mistakes == most[:, None]).int().argmax(1)
    return torch.where(most > 0, first, -1), most


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
    return float(F.cross_entropy(*scores_and_truth("logits", logits, y)))


def brier(probs: Values, y: Values) -> float:
    """Brier score (Brier, 1950): squared distance to the one-hot truth, summed over classes, averaged over examples.

    It lies in [0, 2].

    >>> brier([[0.5, 0.5], [1.0, 0.0]], [0, 0])
    0.25
    """
    guess, truth = scores_and_truth("probs", probs, y, probs=True)
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


def pseudo_label_quality(labels: Values, weights: Values, truth: Values) -> PseudoLabelQuality:
    """Compare pseudo labels with the truth where it is known.

    Args:
        labels: pseudo labels, of shape (examples,).
        weights: the weight of each in the loss, of shape (examples,); 0 is not used.
        truth: the true classes, of shape (examples,); -1 is unknown.

    >>> pseudo_label_quality(labels=[0, 1, 1, 2], weights=[1, 1, 0, 1], truth=[0, 0, 1, -1])
    PseudoLabelQuality(coverage=0.75, precision=0.5)
    """
    pseudo, used, y = _checked(labels, weights, truth)
    known = used * (y >= 0)
    return PseudoLabelQuality(float(used.mean()), float((known * (pseudo == y)).sum() / known.sum()))


def pseudo_label_quality_per_class(labels: Values, weights: Values, truth: Values, classes: int) -> ClassQuality:
    """The same for each pseudo class; NaN where a class has no example of known truth.

    >>> pseudo_label_quality_per_class([0, 1, 1], [1, 1, 0], [0, 0, 1], classes=2).precision.tolist()
    [1.0, 0.0]
    """
    classes = check_integer("classes", classes)
    pseudo, used, y = _checked(labels, weights, truth, classes)
    known = used * (y >= 0)

    def total(values: Tensor) -> Tensor:
        return torch.bincount(pseudo, values, minlength=classes)

    count = total(torch.ones_like(used))
    return ClassQuality(count, total(used) / count, total(known * (pseudo == y)) / total(known))


def _checked(labels: Values, weights: Values, truth: Values, classes: int | None = None) -> tuple[Tensor, ...]:
    pseudo = class_numbers("labels", labels, classes=classes)
    y = class_numbers("truth", truth, low=-1, classes=classes)
    used = numbers("weights", weights)
    same_length(labels=pseudo, weights=used, truth=y)
    if (used < 0).any() or used.isinf().any():
        raise UserError("weights must be finite and at least 0; 0 leaves an example out")
    return pseudo, used, y


def _wrong(pred: Values, y: Values, classes: int | None = None) -> tuple[Tensor, Tensor]:
    guess = class_numbers("pred", pred, classes=classes)
    truth = class_numbers("y", y, classes=classes)
    same_length(pred=guess, y=truth)
    return truth, (guess != truth).double()


def numbers(name: str, values: Values, ndim: int = 1) -> Tensor:
    """`values` as a float64 tensor of `ndim` dimensions, not empty and without NaN."""
    if not isinstance(values, Tensor):
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            raise UserError(f"{name} must hold numbers, got dtype {array.dtype}")
        values = torch.from_numpy(array.astype(np.float64))
    tensor = values.detach().to("cpu", torch.float64)
    if tensor.ndim != ndim:
        raise UserError(f"{name} must have {ndim} dimension(s), got shape {tuple(tensor.shape)}")
    if tensor.numel() == 0:
        raise UserError(f"{name} must not be empty; pass at least one example")
    if tensor.isnan().any():
        raise UserError(f"{name} must not hold NaN, got {int(tensor.isnan().sum())} of them; remove those examples")
    return tensor


def unit(name: str, values: Values, ndim: int = 1) -> Tensor:
    """Numbers in [0, 1]; rounding errors are clamped."""
    tensor = numbers(name, values, ndim)
    low = float(tensor.min())
    high = float(tensor.max())
    if low < -ROUNDING or high > 1 + ROUNDING:
        raise UserError(f"{name} must lie in [0, 1], got values in [{low:.6g}, {high:.6g}]; apply a softmax to logits")
    return tensor.clamp(0, 1)


def class_numbers(name: str, values: Values, low: int = 0, classes: int | None = None) -> Tensor:
    """Integers of at least `low` (and below `classes`)."""
    tensor = numbers(name, values)
    if (tensor != tensor.round()).any():
        raise UserError(f"{name} must hold integers, the class numbers; got fractions")
    if tensor.min() < low:
        raise UserError(f"{name} must hold classes of at least {low}, got {tensor.min():.0f}")
    if classes is not None and tensor.max() >= classes:
        raise UserError(f"{name} must hold classes below {classes}, got {tensor.max():.0f}")
    return tensor.long()


def same_length(**named: Tensor) -> None:
    """Check that all columns have one value per example."""
    if len({len(tensor) for tensor in named.values()}) > 1:
        sizes = ", ".join(f"{name} has {len(tensor)}" for name, tensor in named.items())
        raise UserError(f"inputs must have the same length, but {sizes}")


def scores_and_truth(name: str, values: Values, y: Values, *, probs: bool = False) -> tuple[Tensor, Tensor]:
    """Scores (probabilities if `probs` is set) of shape (examples, classes), and true classes of shape (examples,)."""
    scores = unit(name, values, 2) if probs else numbers(name, values, 2)
    truth = class_numbers("y", y, classes=scores.shape[1])
    same_length(**{name: scores, "y": truth})
    if (scores == torch.inf).any():
        raise UserError(f"{name} must not hold +inf; the model has diverged")
    return scores, truth


def correctness(confidence: Tensor, correct: Values) -> Tensor:
    """Whether each prediction is correct, as 0.0 or 1.0."""
    right = numbers("correct", correct)
    if ((right != 0) & (right != 1)).any():
        raise UserError("correct must hold only True and False (or 1 and 0); pass prediction == truth")
    same_length(confidence=confidence, correct=right)
    return right

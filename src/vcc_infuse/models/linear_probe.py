"""The linear probe: logistic regression on features, its strength of regularization chosen by cross-validation."""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .backbone import Identity

STRENGTHS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
FALLBACK = 10.0  # where a class has a single label, there is nothing to cross-validate with
ITERATIONS = 100  # of a fit that starts near its end
TOLERANCE = 1e-4  # of its gradient
LOG_FACTORS = (-3.0, 3.0)  # of logits, in search of the one that calibrates them
LARGEST = 1000  # labels to cross-validate with: more cost time and do not change the choice


class Probe(NamedTuple):
    """A fitted linear classifier."""

    weight: Tensor
    bias: Tensor
    strength: float  # scikit-learn's C for features of unit length
    error: float | None  # cross-validated on the labels; None with a single label of some class

    def copy_to(self, head: nn.Linear, scale: float = 1.0) -> None:
        """Start a linear head here, with logits multiplied by `scale`."""
        with torch.no_grad():
            head.weight.copy_(scale * self.weight)
            head.bias.copy_(scale * self.bias)


def fit_probe(features: Tensor, y: Tensor, classes: int, seed: int = 0) -> Probe:
    """Logistic regression on features `(rows, width)` with labels 0 … classes − 1, every class present.

    All features are scaled by one number, so that rows have unit length on average around their mean, which makes
    the strengths comparable.

    Example:
        >>> import torch
        >>> features = torch.tensor([[-1.0, 0.0], [-2.0, 0.1], [1.0, 0.0], [2.0, -0.1]])
        >>> fit_probe(features, torch.tensor([0, 0, 1, 1]), 2).error
        0.0
    """
    x = features.detach().cpu().double().numpy()
    return _fit(x.tobytes(), y.cpu().long().numpy().tobytes(), x.shape[1], classes, seed)


@lru_cache(maxsize=2)  # the methods of a table start at the same probe; SelfTraining has one more, scaled otherwise
def _fit(x_bytes: bytes, y_bytes: bytes, width: int, classes: int, seed: int) -> Probe:
    features = np.frombuffer(x_bytes).reshape(-1, width)
    y = np.frombuffer(y_bytes, np.int64)
    mean = features.mean(0)
    rows, length, basis = _reduced(features - mean)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=UserWarning)  # lbfgs not converged at weak regularization
        validated = _cross_validate(rows, y, classes, seed)
        strength = FALLBACK if validated is None else validated.strength
        error = None if validated is None else float(validated.wrong.mean())
        fitted = _regression(strength).fit(rows, y)
    weight, bias = _rows_of_classes(fitted)
    weight = weight @ basis / length
    return Probe(torch.from_numpy(weight).float(), torch.from_numpy(bias - weight @ mean).float(), strength, error)


def logistic_regression(
    rows: np.ndarray, y: np.ndarray, strength: float, weights: np.ndarray, *, start: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Weight and bias of a logistic regression on weighted rows as they are, every class present.

    The nearer the `start`, another weight and bias, the sooner the search ends. Where it ends hardly depends on it.
    """
    model = _regression(strength, warm_start=True).set_params(max_iter=ITERATIONS, tol=TOLERANCE)
    model.coef_, model.intercept_ = (_of_second(part.numpy()) for part in start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=UserWarning)  # lbfgs not converged at weak regularization
        weight, bias = _rows_of_classes(model.fit(rows, y, weights))
    return torch.from_numpy(weight).float(), torch.from_numpy(bias).float()


def _of_second(rows: np.ndarray) -> np.ndarray:
    """Of two classes the difference, which is what scikit-learn keeps; of more, all of them."""
    return rows[1:] - rows[:1] if len(rows) == 2 else rows


def _rows_of_classes(fitted: Any) -> tuple[np.ndarray, np.ndarray]:
    """Weight and bias. With two classes scikit-learn keeps the row of the second: each class gets its half."""
    weight = fitted.coef_
    bias = fitted.intercept_
    if len(weight) > 1:
        return weight, bias
    return np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2


def _reduced(x: np.ndarray) -> tuple[np.ndarray, float, np.ndarray]:
    """Centered rows of unit length on average, in a basis of their span: the same regression, in fewer dimensions."""
    length = max(float(np.sqrt((x**2).sum(1).mean())), 1e-12)
    rows = x / length
    if len(x) >= x.shape[1]:
        return rows, length, np.eye(x.shape[1])
    left, sizes, basis = np.linalg.svd(rows, full_matrices=False)
    return left * sizes, length, basis


def standardized_probe(features: Tensor, y: Tensor, classes: int, seed: int = 0) -> Probe:
    """A probe on features that are standardized first, as a linear function of the features themselves."""
    mean = features.mean(0)
    std = features.std(0, correction=0)
    # A feature that hardly varies among a few labels may vary on other images: it must not outweigh the others.
    std = std.clamp(min=max(0.1 * float(std.square().mean().sqrt()), 1e-6))
    probe = fit_probe((features - mean) / std, y, classes, seed)
    weight = probe.weight / std
    return probe._replace(weight=weight, bias=probe.bias - weight @ mean)


def probe_on(backbone: nn.Module, features: Tensor, y: Tensor, classes: int, seed: int = 0) -> Probe:
    """A probe on the features of a backbone. Vectors that pass through `Identity` are standardized already."""
    fit = fit_probe if isinstance(backbone, Identity) else standardized_probe
    return fit(features, y, classes, seed)


class Validated(NamedTuple):
    """What cross-validation shows of a probe at the strength of least log loss, row by row."""

    strength: float
    losses: np.ndarray  # log loss of each row, by the probe that did not see it, at the scale that suits them all
    wrong: np.ndarray  # whether that probe mistook it


def cross_validate(features: Tensor, y: Tensor, classes: int, seed: int = 0) -> Validated | None:
    """A probe's answers on rows it did not see; None if some class has a single label.

    Rows and folds depend on labels and seed alone, so that the answers on different features can be compared in pairs.
    """
    x = features.detach().cpu().double().numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=UserWarning)
        return _cross_validate(_reduced(x - x.mean(0))[0], y.cpu().long().numpy(), classes, seed)


def _cross_validate(x: np.ndarray, y: np.ndarray, classes: int, seed: int) -> Validated | None:
    from sklearn.model_selection import StratifiedKFold

    order = np.random.default_rng(seed).permutation(len(y))
    most = max(5, LARGEST // classes)
    kept = np.sort(np.concatenate([order[y[order] == label][:most] for label in np.unique(y)]))
    x = x[kept]
    y = y[kept]
    folds = min(5, int(np.bincount(y, minlength=classes).min()))
    if folds < 2:
        return None
    probs = np.zeros((len(STRENGTHS), len(y), classes))
    for train, test in StratifiedKFold(folds, shuffle=True, random_state=seed).split(x, y):
        model = _regression(STRENGTHS[0], warm_start=True)
        for i, strength in enumerate(STRENGTHS):
            probs[i, test] = model.set_params(C=strength).fit(x[train], y[train]).predict_proba(x[test])
    losses = -np.log(np.clip(probs[:, np.arange(len(y)), y], 1e-12, None))
    best = int(losses.mean(1).argmin())
    return Validated(STRENGTHS[best], calibrated_losses(probs[best], y), probs[best].argmax(1) != y)


def calibrated_losses(probs: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The log loss of each row, with all logits multiplied by the one factor that makes the sum least.

    Few labels make a probe too modest, and the more so the more features it has, which says nothing against them.

    Args:
        probs: (rows, classes).
        y: (rows,).

    Example:
        >>> calibrated_losses(np.array([[0.6, 0.4], [0.4, 0.6], [0.6, 0.4]]), np.array([0, 1, 1])).round(3).tolist()
        [0.405, 0.405, 1.099]
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    logits = np.log(np.clip(probs, 1e-12, None))

    def losses(log_factor: float) -> np.ndarray:
        answers: np.ndarray = -log_softmax(np.exp(log_factor) * logits, axis=1)[np.arange(len(y)), y]
        return answers

    found = minimize_scalar(lambda value: float(losses(value).sum()), bounds=LOG_FACTORS, method="bounded")
    return losses(found.x)


def _regression(strength: float, warm_start: bool = False) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=strength, max_iter=1000, warm_start=warm_start)

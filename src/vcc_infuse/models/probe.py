"""The linear probe: logistic regression on features, its strength of regularization chosen by cross-validation."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

STRENGTHS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
FALLBACK = 10.0  # where a class has a single label, there is nothing to cross-validate with


class Probe(NamedTuple):
    """A fitted linear classifier.

    `strength` is scikit-learn's C; `error` is the cross-validated error on the labels (None with a single label of
    some class).
    """

    weight: Tensor
    bias: Tensor
    strength: float
    error: float | None

    def copy_to(self, head: nn.Linear, scale: float = 1.0) -> None:
        """Start a linear head here, with logits multiplied by `scale`."""
        with torch.no_grad():
            head.weight.copy_(scale * self.weight)
            head.bias.copy_(scale * self.bias)


def fit_probe(features: Tensor, y: Tensor, classes: int, seed: int = 0) -> Probe:
    """Logistic regression on features (N × D) with labels 0 … classes − 1, every class present.

    Example:
        >>> import torch
        >>> features = torch.tensor([[-1.0, 0.0], [-2.0, 0.1], [1.0, 0.0], [2.0, -0.1]])
        >>> fit_probe(features, torch.tensor([0, 0, 1, 1]), 2).error
        0.0
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    x, labels = features.detach().cpu().double().numpy(), y.cpu().numpy()
    folds = min(5, int(np.bincount(labels, minlength=classes).min()))
    strength, error = FALLBACK, None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=UserWarning)  # lbfgs not converged at weak regularization
        if folds >= 2:
            splitter = StratifiedKFold(folds, shuffle=True, random_state=seed)
            best = np.inf
            for candidate in STRENGTHS:
                model = LogisticRegression(C=candidate, max_iter=500)
                probs = cross_val_predict(model, x, labels, cv=splitter, method="predict_proba")
                loss = -np.log(np.clip(probs[np.arange(len(labels)), labels], 1e-12, None)).mean()
                if loss < best:
                    best, strength, error = loss, candidate, float((probs.argmax(1) != labels).mean())
        fitted = LogisticRegression(C=strength, max_iter=2000).fit(x, labels)
    return Probe(*_two_sided(fitted.coef_, fitted.intercept_), strength, error)


def _two_sided(coefficients: np.ndarray, intercept: np.ndarray) -> tuple[Tensor, Tensor]:
    """With two classes scikit-learn keeps one row, of the second class against the first: give each its half."""
    if len(coefficients) == 1:
        coefficients = np.concatenate([-coefficients, coefficients]) / 2
        intercept = np.concatenate([-intercept, intercept]) / 2
    return torch.from_numpy(coefficients).float(), torch.from_numpy(intercept).float()

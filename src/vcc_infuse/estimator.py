"""SSLClassifier: scikit-learn's fit, predict, predict_proba and score for every method of this package."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import Tags, check_random_state, column_or_1d
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from .algorithms import Algorithm
from .calibrators import Calibrator
from .calibrators.base import move
from .data.arrays import as_rows, encode, from_arrays, has_label
from .data.split import given
from .data.ssl_data import SSLData
from .errors import UserError
from .models import MLP, SmallConv
from .selectors import Selector
from .training.trainer import Trainer
from .utils.seeding import preserve_mode_and_rng

# How scikit-learn is to check X.
VECTORS: dict[str, Any] = {"dtype": np.float32}

__all__ = ["SSLClassifier"]


IMAGES: dict[str, Any] = {"ensure_2d": False, "allow_nd": True}


# Against labels the network was trained on: they would flatter.
TRAINING_FIGURES = ("pseudo_label_precision", "pseudo_label_precision_per_class")


class SSLClassifier(ClassifierMixin, BaseEstimator):
    """A semi-supervised neural network as a scikit-learn classifier.

    `fit(X, y)` takes features (N, D), or images (N, H, W) or (N, H, W, C) of integers 0…255 or floats 0…1. In `y` the
    number −1 means unlabeled, as in scikit-learn; every other whole number or text is a class. Beside text −1 needs an
    array of dtype=object, because `np.array(["a", -1])` holds the text "-1", which is refused. `X` and `y` must be
    whole: NaN, infinities and None are refused.

    What is passed in is copied, never changed, and the random generators of the caller are left as they were.

    Args:
        model: a backbone; SmallConv() for images and MLP() for features if not given.
        algorithm: the semi-supervised method; FixMatch() if not given.
        calibrator: what decides how far a pseudo label, and a prediction, is trusted; the softmax if not given.
        selector: what chooses the unlabeled examples to train on; all of them if not given.
        steps: optimizer steps.
        batch: labeled examples a step; few labels are repeated.
        ratio: unlabeled examples for each labeled one; the method's own default if not given.
        lr: learning rate at the start.
        flip: whether a mirrored image keeps its class; say False for digits and letters.
        precision: "auto" takes bf16 where the hardware has it; or fp32, bf16, fp16.
        random_state: seed of the weights, the order of the data and every draw; 0 if not given.
        out: run folder to write, which must not exist yet; nothing is written if not given.
        progress: show a progress bar.

    Attributes:
        classes_: the classes, sorted.
        n_features_in_: values of one example (of an image: height × width × channels).
        feature_names_in_: names of the columns, where X was a table with names.
        predictor_: the trained `Predictor`.
        summary_: losses, times and sizes of the training. There is no test set, so there is no error.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        algorithm: Algorithm | None = None,
        calibrator: Calibrator | None = None,
        selector: Selector | None = None,
        *,
        steps: int = 1000,
        batch: int = 64,
        ratio: int | None = None,
        lr: float = 0.03,
        flip: bool = True,
        precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto",
        random_state: int | np.random.RandomState | None = None,
        out: str | None = None,
        progress: bool = False,
    ) -> None:
        self.model, self.algorithm, self.calibrator, self.selector = model, algorithm, calibrator, selector
        self.steps, self.batch, self.ratio, self.lr = steps, batch, ratio, lr
        self.flip, self.precision, self.random_state = flip, precision, random_state
        self.out, self.progress = out, progress

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train on the labeled and the unlabeled (−1) rows."""
        rows, labels = validate_data(self, X, y, **(IMAGES if _axes(X) > 2 else VECTORS))
        classes, numbers = encode(labels)
        dataset = from_arrays(rows, numbers, classes=[str(name) for name in classes])
        data = SSLData(replace(dataset, flip=self.flip), given(numbers))
        trainer = self._trainer(images=len(dataset.shape) == 3)
        with preserve_mode_and_rng(device="cuda" if torch.cuda.is_available() else "cpu"):
            summary = trainer.fit(data)
        self.classes_, self.n_features_in_ = classes, int(np.prod(dataset.shape))
        self.predictor_ = trainer.predictor()
        self.summary_ = {name: value for name, value in summary.items() if name not in TRAINING_FIGURES}
        return self

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable class of each row."""
        numbers = self.predict_proba(X).argmax(1)  # first: it tells an unfitted estimator
        return self.classes_[numbers]

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Class probabilities; the largest of a row is the calibrated confidence in its label.

        The softmax of the other classes is scaled to fill the rest.
        """
        check_is_fitted(self)
        images = len(self.predictor_.shape) == 3
        rows = validate_data(self, X, reset=False, **(IMAGES if images else VECTORS))
        found = self.predictor_.predict(as_rows(rows, "X"))
        return move(found.probs.double(), found.calibrated.double()).numpy()

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Accuracy on the rows with a label; those with −1 are left out."""
        labels = column_or_1d(y)
        known = has_label(labels)
        if not known.any():
            raise UserError("y: every label is −1, which means unlabeled; accuracy needs labels")
        weights = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(accuracy_score(labels[known], self.predict(X)[known], sample_weight=weights))

    def _trainer(self, images: bool) -> Trainer:
        """A trainer for copies of the parts. A selector notes its last choice, so it too must be a copy."""
        _check_parts(model=(self.model, nn.Module), algorithm=(self.algorithm, Algorithm),
                     calibrator=(self.calibrator, Calibrator), selector=(self.selector, Selector))  # fmt: skip
        default = SmallConv() if images else MLP()
        model, algorithm, calibrator, selector = copy.deepcopy(
            (default if self.model is None else self.model, self.algorithm, self.calibrator, self.selector)
        )
        return Trainer(
            model, algorithm, calibrator, selector, steps=self.steps, epochs=20, eval_every=1, batch=self.batch,
            ratio=self.ratio, lr=self.lr, precision=self.precision, seed=_seed(self.random_state), out=self.out,
            progress=self.progress,
        )  # fmt: skip

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def _axes(X: Any) -> int:
    """The number of axes of an array, a table or nested lists."""
    return X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim


def _check_parts(**parts: tuple[object, type]) -> None:
    for name, (part, kind) in parts.items():
        if part is not None and not isinstance(part, kind):
            given = f"the class {part.__name__}; add ()" if isinstance(part, type) else f"{part!r}"
            raise UserError(f"{name} must be an object of kind {kind.__name__} or None, got {given}")


def _seed(random_state: int | np.random.RandomState | None) -> int:
    """A number as it is; None is 0, so that a fit can be repeated; a generator gives its next number."""
    if random_state is None or isinstance(random_state, int | np.integer):
        return int(random_state or 0)
    return int(check_random_state(random_state).randint(2**31 - 1))

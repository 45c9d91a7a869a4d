"""SSLClassifier: scikit-learn's fit, predict, predict_proba and score for every method of this package."""

from __future__ import annotations

import copy
import math
import tempfile
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import Tags, check_random_state, column_or_1d
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from .algorithms import Algorithm, SelfTraining
from .algorithms.baselines import ClosedForm
from .augment.recipe import Augment
from .bank.bank import BankConfig
from .bank.embed import head
from .calibrators import Calibrator
from .calibrators.base import set_top_confidence
from .data.dataset import Dataset
from .data.sources.arrays import as_rows, encode, from_arrays, has_label
from .data.split import from_given_labels
from .data.ssl_data import SSLData
from .errors import UserError, check_choice, check_integer
from .models import MLP, Backbone, SmallConv, Timm
from .run import Result, train
from .selectors import Selector
from .training.presets import FROZEN
from .utils.seeding import preserve_mode_and_rng

__all__ = ["SSLClassifier"]

# How scikit-learn validates X.
VECTORS: dict[str, Any] = {"dtype": np.float32}
IMAGES: dict[str, Any] = {"ensure_2d": False, "allow_nd": True}
VIEWS: dict[str, Any] = {**IMAGES, "dtype": [np.float32, np.float16]}
EVALUATIONS = 20  # lines in metrics.jsonl
PARTS: dict[str, Any] = {
    **{"model": nn.Module, "algorithm": Algorithm, "calibrator": Calibrator, "selector": Selector},
    **{"backbone": (Backbone, str), "bank": BankConfig},
}
# How a head learns, by where it starts.
STARTS: dict[str, dict[str, Any]] = {
    "random": {"lr": 0.03},
    "probe": {name: FROZEN[name] for name in ("optimizer", "lr", "weight_decay", "head_scale")},
}


class SSLClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A semi-supervised neural network as a scikit-learn classifier.

    `fit(X, y)` takes features (N, D), several views of them (N, V, D), or images (N, H, W) or (N, H, W, C) of
    integers 0…255 or floats 0…1; others are scaled by the range of the training images. With `backbone` a pretrained
    network embeds the images once, in several views, and a head is trained on the embeddings.

    In `y` the number −1 means unlabeled, as in scikit-learn; every other integer or text is a class. With text, −1
    needs an array of dtype=object, because `np.array(["a", -1])` holds the text "-1", which is refused. NaN,
    infinities and None are refused in `X` and `y`.

    The arguments are copied, never changed, and the caller's random generators are left as they were.

    Args:
        model: the network to train; if not given, SmallConv() for images, and a linear layer for features, for views
            and for embedded images (MLP() for features with `head_init="random"`).
        algorithm: the semi-supervised method; FixMatch() if not given.
        calibrator: computes the confidence of pseudo labels and predictions; the softmax if not given. With neither, on
            features, views and embedded images, it is SelfTraining.
        selector: chooses the unlabeled examples to train on; all of them if not given.
        backbone: a pretrained network that stays as it is and embeds images: a name in timm such as
            "tf_efficientnet_lite0", or a `Backbone`. Without it `model` learns from the pixels.
        weights: where the weights of a backbone given by name come from; see `Timm`.
        bank: which views are embedded, and whether a linear layer or an MLP is trained; see `BankConfig`.
        cache: folder that keeps embedded images for later fits on the same rows; if not given, they are embedded for
            this fit only.
        slots: how many weak and strong views follow the plain one in `X` of shape (N, V, D); without it such `X` are
            gray images.
        head_init: "probe" starts the last layer at a logistic regression on the labeled rows, "random" does not; if
            not given, "probe" for features, views and embedded images, unless there is a `model`.
        cross_fit: cross-validate the method on the labels, and hand out its mix with the logistic regression that they
            favor, with a calibrated confidence; see TrainConfig. If not given, "auto" for features, views and
            embedded images, unless there is a `model`.
        steps: optimizer steps, of methods that have some.
        batch_size: labeled examples per step; few labels are repeated.
        unlabeled_ratio: unlabeled examples per labeled one; the method's own default if not given.
        lr: learning rate at the start; if not given, 0.01 (AdamW) for a layer that starts at the probe, else 0.03.
        flip: whether a mirrored image keeps its class; set it to False for digits and letters.
        augment: how weak and strong views of images are made: natural, gentle, microscopy, satellite, text, none, or
            operations and their magnitudes; see docs/augment.md.
        lazy: compute strong views only where the pseudo label has weight; see TrainConfig.
        precision: "auto" uses bf16 where the hardware supports it; or fp32, bf16, fp16.
        random_state: seed of the weights, the order of the data and every random draw; 0 if not given.
        out: run folder to write, which must not exist yet; nothing is written if not given.
        progress: show a progress bar.

    Attributes:
        classes_: the classes, sorted.
        n_features_in_: number of values per example (of an image: height × width × channels).
        feature_names_in_: names of the columns, if X was a table with names.
        predictor_: the trained `Predictor`.
        summary_: losses, times and sizes of the training. There is no test set, so there is no error.

    Example:
        >>> from sklearn.datasets import make_blobs
        >>> from vcc_infuse import MLP, SSLClassifier
        >>> X, truth = make_blobs(60, centers=2, cluster_std=0.5, random_state=0)
        >>> y = truth.copy()
        >>> y[10:] = -1  # 10 labels, 50 unlabeled rows
        >>> model = SSLClassifier(MLP((16,)), steps=20, batch_size=16, unlabeled_ratio=1).fit(X, y)
        >>> model.score(X, truth) > 0.9
        True
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        algorithm: Algorithm | None = None,
        calibrator: Calibrator | None = None,
        selector: Selector | None = None,
        *,
        backbone: str | Backbone | None = None,
        weights: str = "auto",
        bank: BankConfig | None = None,
        cache: str | None = None,
        slots: tuple[int, int] | None = None,
        head_init: Literal["random", "probe"] | None = None,
        cross_fit: bool | Literal["auto"] | None = None,
        steps: int = 1000,
        batch_size: int = 64,
        unlabeled_ratio: int | None = None,
        lr: float | None = None,
        flip: bool = True,
        augment: Augment = "natural",
        lazy: bool = False,
        precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto",
        random_state: int | np.random.RandomState | None = None,
        out: str | None = None,
        progress: bool = False,
    ) -> None:
        self.model = model
        self.algorithm = algorithm
        self.calibrator = calibrator
        self.selector = selector
        self.backbone = backbone
        self.weights = weights
        self.bank = bank
        self.cache = cache
        self.slots = slots
        self.head_init = head_init
        self.cross_fit = cross_fit
        self.steps = steps
        self.batch_size = batch_size
        self.unlabeled_ratio = unlabeled_ratio
        self.lr = lr
        self.flip = flip
        self.augment = augment
        self.lazy = lazy
        self.precision = precision
        self.random_state = random_state
        self.out = out
        self.progress = progress

    def set_params(self, **params: Any) -> Self:
        """Change options; algorithm__threshold=0.9 changes that of the algorithm, which must be given as an object."""
        for name in params:
            part, _, option = name.partition("__")
            if option and part not in params and getattr(self, part, self) is None:
                raise UserError(f"{name} cannot be set, because {part} is None; give {part} as an object")
        super().set_params(**params)
        return self

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train on the labeled and the unlabeled (−1) rows."""
        expected = VECTORS if _axes(X) <= 2 else IMAGES if self.slots is None else VIEWS
        rows, labels = validate_data(self, X, y, **expected)
        classes, numbers = encode(labels)
        dataset = from_arrays(rows, numbers, classes=[str(name) for name in classes], slots=self.slots)
        data = SSLData(dataset.augmented(self.augment, self.flip), from_given_labels(numbers))
        self._check()
        with preserve_mode_and_rng(device="cuda" if torch.cuda.is_available() else "cpu"):
            result = self._train(data)
        self.classes_ = classes
        self.n_features_in_ = int(np.prod(dataset.shape))
        self.predictor_ = result.predictor
        self.summary_ = result.summary
        return self

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable class of each row."""
        numbers = self.predict_proba(X).argmax(1)  # first, because it refuses an estimator that is not fitted
        return cast(np.ndarray, self.classes_[numbers])

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Class probabilities; the largest in a row is the calibrated confidence of its label.

        The softmax probabilities of the other classes are scaled to fill the rest. Of views (N, V, D) the first is
        used.
        """
        check_is_fitted(self)
        images = len(self.predictor_.shape) == 3
        if not images and _axes(X) == 3:
            X = np.asarray(X)[:, 0]
        rows = validate_data(self, X, reset=False, **(IMAGES if images else VECTORS))
        rows = as_rows(rows, "X", self.predictor_.ranges)
        if rows.shape[1:] != self.predictor_.shape:
            raise UserError(f"fit saw examples of shape {self.predictor_.shape}, got {rows.shape[1:]}; resize them")
        answers = self.predictor_.predict(rows)
        return set_top_confidence(answers.probs.double(), answers.calibrated.double()).numpy()

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Accuracy on the rows with a label; those with −1 are left out."""
        labels = column_or_1d(y)
        known = has_label(labels)
        if not known.any():
            raise UserError("y: every label is −1, which means unlabeled; accuracy needs labels")
        weights = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(accuracy_score(labels[known], self.predict(X)[known], sample_weight=weights))

    def _train(self, data: SSLData) -> Result:
        """Train copies of the objects; also of the selector, which stores its last selection."""
        embedded = self.backbone is not None or self.slots is not None
        features = self.model is None and len(data.dataset.shape) == 1 and self.head_init != "random"
        linear = embedded or features
        start = self.head_init or ("probe" if linear else "random")
        steps = check_integer("steps", _to_python(self.steps))
        parts = {"algorithm": self.algorithm, "calibrator": self.calibrator, "selector": self.selector}
        options: dict[str, Any] = {
            "preset": "frozen" if linear else "scratch",
            "model": self._network(data.dataset, start) if self.model is None else self.model,
            "steps": steps,
            "eval_every": math.ceil(steps / EVALUATIONS),
            "batch_size": _to_python(self.batch_size),
            "unlabeled_ratio": _to_python(self.unlabeled_ratio),
            "head_init": start,
            "cross_fit": self.cross_fit if self.cross_fit is not None else "auto" if linear else False,
            "lazy": self.lazy,
            "precision": self.precision,
            "seed": _seed(self.random_state),
            "out": self.out,
            "progress": self.progress,
            **STARTS[start],
        }
        options |= {} if self.lr is None else {"lr": _to_python(self.lr)}
        options |= {name: copy.deepcopy(part) for name, part in parts.items()}
        if linear and start == "probe" and (self.bank or BankConfig()).head == "linear" and not any(parts.values()):
            options["algorithm"] = SelfTraining()  # as `train` without `steps`, which an estimator always has
        # A file that is mapped into memory cannot be deleted everywhere.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
            return train(data, bank=self.bank, cache=temporary if self.cache is None else self.cache, **options)

    def _network(self, dataset: Dataset, start: str) -> Backbone | None:
        """The network to train if none was given; the one that embeds if there is a backbone."""
        if self.backbone is not None:
            return Timm(self.backbone, weights=self.weights) if isinstance(self.backbone, str) else self.backbone
        if dataset.slots is not None:
            return None
        if len(dataset.shape) == 3:
            return SmallConv()
        return head() if start == "probe" or isinstance(self.algorithm, ClosedForm) else MLP()

    def _check(self) -> None:
        """Refuse objects of the wrong kind, and options that exclude each other."""
        for name, kind in PARTS.items():
            part = getattr(self, name)
            if part is not None and not isinstance(part, kind):
                got = f"the class {part.__name__}; add ()" if isinstance(part, type) else f"{part!r}"
                rule = "a name, a Backbone" if name == "backbone" else f"an instance of {kind.__name__}"
                raise UserError(f"{name} must be {rule} or None, got {got}")
        if self.head_init is not None:
            check_choice("head_init", self.head_init, tuple(STARTS))
        if self.backbone is not None and self.model is not None:
            remedy = "give model to train all of it, backbone to freeze it"
            raise UserError(f"model and backbone exclude each other: {remedy}")
        if self.bank is not None and self.backbone is None:
            raise UserError("bank says how a backbone embeds images; give backbone too, or leave bank out")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def _axes(X: Any) -> int:
    """The number of axes of an array, a table or nested lists."""
    return X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim


def _to_python(value: Any) -> Any:
    """Numbers of numpy, as in a grid from np.arange, become Python's, which configuration files can hold."""
    return value.item() if isinstance(value, np.generic) else value


def _seed(random_state: int | np.random.RandomState | None) -> int:
    """An integer as it is; None is 0, so that a fit can be repeated; a generator gives its next integer."""
    if random_state is None or isinstance(random_state, int | np.integer):
        return int(random_state or 0)
    return int(check_random_state(random_state).randint(2**31 - 1))

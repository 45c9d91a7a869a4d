"""Cross-validation of a whole run on its own labels: each label is answered by a run and a probe that never saw it.

On a bank or on vectors a run takes seconds, so it can be repeated with a part of the labels hidden. What comes out is
honest: the answers for a label depend on it in no way, neither as a label nor as an example of the pool. Fine-tuning on
images is repeated once, with a third of the labels hidden: more would cost more time than the run itself.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..algorithms import LinearProbe
from ..algorithms.baselines import ClosedForm
from ..calibrators import Calibrator
from ..data.dataset import UNLABELED
from ..data.groups import group_folds
from ..data.split import without
from ..data.ssl_data import SSLData
from ..inference.evaluate import chunks
from ..models import Classifier, Identity
from ..models.linear_probe import probe_on
from ..types import Outputs
from ..utils.progress import Progress
from .state import TrainState, plain_features

if TYPE_CHECKING:
    from .trainer import Trainer

FOLDS = 5
IMAGE_FOLDS = 3  # of which only the first is hidden
FEWEST_STEPS = 100
PROBE = 0.5  # seconds to fit one
# Values that runs with hidden labels may read with "auto": about two minutes of one core. Not the time itself, so that
# a run that is repeated or resumed on a busy machine decides the same.
LARGEST = 3 * 10**9
MOST_PRODUCTS = 5e12  # of fits without steps, with "auto": some minutes of one core
STEPS = 0.25  # of those of the run


class FoldAnswers(NamedTuple):
    """What a run and a probe that did not see some labels answer for them.

    Args:
        y: (labels,), the hidden labels.
        method: logits (labels, classes) and features of the run.
        probe: logits (labels, classes) of the probe.
        calibrator: that of the run.
    """

    y: Tensor
    method: Outputs
    probe: Tensor
    calibrator: Calibrator


def label_folds(y: np.ndarray, seed: int = 0, most: int = FOLDS, *, groups: np.ndarray | None = None) -> np.ndarray:
    """The fold in which each label is hidden; −1 for the only label of a class, which is always shown.

    Labels of one of the `groups`, (labels,), are hidden together, and a class that is all one group is always shown.

    There are `most` folds, or as many as the usual class has labels. Every class is dealt out from the first fold on:
    where all have the same number of labels, a fold hides the same number of each. A run that sees fewer labels of one
    class than of others answers with that class less often, and would look worse than it is.

    Example:
        >>> label_folds(np.array([0, 0, 0, 1, 1, 2])).tolist().count(-1)
        1
    """
    if groups is not None:
        return group_folds(y, groups, most, seed)
    counts = np.bincount(y)
    folds = int(np.clip(np.median(counts[counts > 0]), 2, most))
    numbers = np.full(len(y), -1)
    generator = np.random.default_rng(seed)
    for label in np.flatnonzero(counts > 1):
        rows = generator.permutation(np.flatnonzero(y == label))
        numbers[rows] = np.arange(len(rows)) % folds
    return numbers


def obstacle_to(trainer: Trainer, data: SSLData) -> str | None:
    """Why a run cannot, or with "auto" should not, be cross-validated; None if nothing hinders."""
    config = trainer.config
    if on_images(data) and config.head_init != "probe":
        return "a head that starts at random has no probe to compare with"
    if config.init is not None or isinstance(trainer.model, Classifier):
        return "the starting weights may have seen the labels"
    if np.bincount(data.labeled_y).max() < 2:
        return "every class has a single label"
    if data.label_groups is not None and label_folds(data.labeled_y, groups=data.label_groups).max() < 0:
        return "the labels of every class belong together"
    rows = FOLDS * fold_steps(trainer.steps) * config.batch_size * (1 + (config.unlabeled_ratio or 0))
    large = rows * data.dataset.shape[0] > LARGEST or FOLDS * fit_products(trainer, data) > MOST_PRODUCTS
    if config.cross_fit == "auto" and (on_images(data) or large):
        return "the run is too long to be repeated with fewer labels; cross_fit true repeats it anyway"
    return None


def cross_fit_seconds(trainer: Trainer, data: SSLData, seconds: float) -> float:
    """The time of cross-validation after a run of `seconds`; 0 if there will be none."""
    if trainer.config.cross_fit is False or obstacle_to(trainer, data) is not None:
        return 0.0
    runs = 1 if on_images(data) else FOLDS
    part = fold_steps(trainer.steps) / trainer.steps if trainer.steps else 1.0
    return runs * (part * seconds + PROBE)


def fit_products(trainer: Trainer, data: SSLData) -> float:
    """About how many products a fit without training steps takes on features; 0 for a method with steps."""
    algorithm = trainer.algorithm
    if not isinstance(algorithm, ClosedForm) or on_images(data):
        return 0.0
    return algorithm.products(len(data.split.pool), data.dataset.shape[0], len(data.dataset.classes))


def on_images(data: SSLData) -> bool:
    """Whether layers are trained on images, not a head on a bank or on vectors."""
    return len(data.dataset.shape) != 1


def fold_steps(steps: int) -> int:
    """Steps of a run with hidden labels, given those of the run itself."""
    return min(steps, max(FEWEST_STEPS, math.ceil(STEPS * steps)))


def cross_fit(trainer: Trainer, data: SSLData, after: Callable[[int], None] = lambda _: None) -> list[FoldAnswers]:
    """Train the method of a trainer once per fold of the labels, with that fold hidden; on images of one fold only.

    `after` is told after every fold how many are done.
    """
    shown_labels = data.with_all_labels() if trainer.algorithm.all_labels else data
    labels = shown_labels.split.labeled
    most = IMAGE_FOLDS if on_images(data) else FOLDS
    numbers = label_folds(shown_labels.labeled_y, trainer.config.seed, most, groups=shown_labels.label_groups)
    parts = [labels[numbers == number] for number in range(1 if on_images(data) else numbers.max() + 1)]
    answers = []
    shown = trainer.config.progress and trainer.state_.main
    with Progress("cross-validating", len(parts), "runs", shown) as progress:
        for rows in parts:
            answers.append(answer_hidden(trainer, data, rows))
            progress.advance()
            after(len(answers))
    return answers


def naive_error(trainer: Trainer) -> dict[str, Any]:
    """What folds that tear groups apart would claim of the linear probe; nothing if no labels belong together."""
    state = trainer.state_
    data = state.data
    groups = data.label_groups
    if groups is None or on_images(data):
        return {}
    model = Classifier.build(Identity(), data.dataset.shape, state.task.classes).to(state.device)
    x = plain_features(state, model, data.split.labeled)
    y = torch.from_numpy(data.labeled_y)
    numbers = torch.from_numpy(label_folds(data.labeled_y, trainer.config.seed))
    wrong = torch.zeros(len(y), dtype=torch.bool)
    for number in range(int(numbers.max()) + 1):
        hidden = numbers == number
        probe = probe_on(model.backbone, x[~hidden], y[~hidden], state.task.classes, trainer.config.seed)
        probe.copy_to(model.head)
        with torch.no_grad():
            wrong[hidden] = model.head(x[hidden].to(state.device)).argmax(1).cpu() != y[hidden]
    sizes = np.unique(groups, return_counts=True)[1]
    return {"naive_error": float(wrong[numbers >= 0].float().mean()), "grouped_labels": int(sizes[sizes > 1].sum())}


def hide(data: SSLData, rows: np.ndarray) -> SSLData:
    """The data as if these training rows did not exist, without a test set."""
    train = data.dataset.train
    y = train.y.copy()
    y[rows] = UNLABELED  # so that not even a method that takes all labels sees them
    dataset = replace(data.dataset, train=replace(train, y=y), test=None)
    return SSLData(dataset, without(data.split, rows))


def answer_hidden(trainer: Trainer, data: SSLData, rows: np.ndarray) -> FoldAnswers:
    """Train without these labeled rows, then answer for them."""
    steps = fold_steps(trainer.config.steps)
    twin = trainer.twin(steps=steps, eval_every=steps, warmup_steps=min(trainer.config.warmup_steps, steps // 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what there is to say was said of the run itself
        twin.fit(hide(data, rows))
    state = twin.state_
    y = torch.from_numpy(np.asarray(data.dataset.train.y)[rows])
    method = answers_of(state, state.classifier(), data, rows)
    probe = answers_of(state, fit_linear_probe(twin), data, rows)
    return FoldAnswers(y, method, probe.logits, state.calibrator.eval())


@torch.no_grad()
def answers_of(state: TrainState, model: Classifier, data: SSLData, rows: np.ndarray) -> Outputs:
    """Logits and features of the plain view of training rows."""
    model.eval()
    outputs = [model(images) for images in chunks(data.dataset.train.x, state.views, state.device, rows=rows)]
    return Outputs(*(torch.cat(column).float() for column in zip(*outputs, strict=True)))


def fit_linear_probe(trainer: Trainer) -> Classifier:
    """The linear probe on the labels that a run has seen, of images on the features that fine-tuning started from."""
    state = trainer.state_
    if state.probe is not None:
        return state.probe.eval()
    data = state.data
    model = Classifier.build(Identity(), data.dataset.shape, state.task.classes).to(state.device)
    labeled = plain_features(state, model, data.split.labeled)
    y = torch.from_numpy(np.asarray(data.labeled_y))
    seed = trainer.algorithm.seed if isinstance(trainer.algorithm, LinearProbe) else trainer.config.seed
    probe_on(model.backbone, labeled, y, state.task.classes, seed).copy_to(model.head)
    return model.eval()

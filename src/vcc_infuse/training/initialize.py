"""Where the weights start: at another run or at a linear probe; and methods that are solved instead of trained."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..algorithms import Algorithm
from ..algorithms.baselines import ClosedForm
from ..calibrators import Softmax
from ..data.dataset import Dataset
from ..errors import UserError
from ..inference.evaluate import chunks, evaluate
from ..inference.predictor import Predictor
from ..models import Classifier, Identity
from ..models.backbone import Embedded
from ..models.linear_probe import probe_on
from ..models.pretrained import Preprocessing
from ..utils.serialization import class_path, load_state
from .config import TrainConfig

if TYPE_CHECKING:
    from .state import TrainState


CHUNK = 128  # images per forward of the network, so that photos fit into memory


class Start(NamedTuple):
    """What a run takes over from an earlier one: perhaps its head, and how its images are normalized."""

    head: bool
    preprocessing: Preprocessing | None


def start_at_run(model: Classifier, folder: str, dataset: Dataset, verbose: bool) -> Start:
    """Copy the weights of a finished run into the model; those of its head only if the classes are the same."""
    saved = Predictor.load(folder, "cpu", [class_path(type(model.backbone))])  # which this run uses anyway
    source, own = _trained_part(saved, dataset, folder), model.backbone
    remedy = f"give the model options of {folder}/config.yaml"
    fault = f"init {folder}: its {type(source).__name__} does not fit this run's {type(own).__name__}; {remedy}"
    load_state(own, source.state_dict(), fault)
    if hasattr(source, "interpolation"):
        own.interpolation = source.interpolation  # set by pretrained weights, which are not loaded again
    mean, std = (tuple(values.tolist()) for values in (saved.views.mean, saved.views.std))
    images = len(dataset.shape) == len(saved.shape) == 3
    same = saved.classes == dataset.classes
    if same:
        load_state(model.head, saved.model.head.state_dict(), fault)
    elif verbose:
        print(f"init {folder}: its classes are not those of the data, so the head starts anew", file=sys.stderr)
    return Start(same, Preprocessing(mean, std, 0, "") if images else None)


def _trained_part(saved: Predictor, dataset: Dataset, folder: str) -> nn.Module:
    """The backbone of a run; where both runs learn from features of one frozen network, the layers after it."""
    source = saved.model.backbone
    if not isinstance(source, Embedded) or dataset.bank is None:
        return source
    ours, theirs = dataset.bank.encoder.state_dict(), source.encoder.state_dict()
    if ours.keys() != theirs.keys() or not all(_equal(ours[name], theirs[name]) for name in ours):
        raise UserError(f"init {folder}: its features come from another network than those of this run")
    return source.layers


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one.cpu() == other).all())


def start_head(state: TrainState, algorithm: Algorithm, config: TrainConfig, inherited: bool = False) -> float | None:
    """Start the head at the probe or at a closed-form solution, if asked for; returns the probe's test error.

    A head that is `inherited` from another run stays.
    """
    closed = isinstance(algorithm, ClosedForm)
    if not closed and (inherited or config.head_init != "probe"):
        return None
    data, model = state.data, state.model
    y = torch.from_numpy(np.asarray(data.labeled_y))
    if not closed and len(data.dataset.shape) == 1 and not isinstance(model.backbone, Identity):
        # Layers that are still random offer a probe nothing: here it is only what the run is compared with.
        model = Classifier.build(Identity(), data.dataset.shape, state.task.classes).to(state.device)
    labeled = plain_features(state, model, data.split.labeled)
    if isinstance(algorithm, ClosedForm):
        pool = plain_features(state, model, data.split.pool) if algorithm.needs_pool else labeled[:0]
        state.model = algorithm.solve(model, labeled, y, pool).to(state.device)
        return error_on_test_set(state, state.model)
    probe = probe_on(model.backbone, labeled, y, state.task.classes, config.seed)
    probe.copy_to(model.head)
    error = error_on_test_set(state, model)
    probe.copy_to(model.head, config.head_scale)
    return error


@torch.no_grad()
def plain_features(state: TrainState, model: Classifier, rows: np.ndarray) -> Tensor:
    """Features of the plain view of training rows, on the CPU."""
    training, x = model.training, state.data.dataset.train.x
    model.eval()
    views = chunks(x, state.views, state.device, CHUNK, rows)
    found = [model.backbone(images).float().cpu() for images in views]
    model.train(training)
    return torch.cat(found)


def error_on_test_set(state: TrainState, model: Classifier) -> float | None:
    """Error on the test set, if there is one."""
    test = state.data.dataset.test
    if test is None:
        return None
    return float(evaluate(model, Softmax(), test, state.views, state.device)["error"])  # type: ignore[arg-type]

"""Heads that start at a linear probe, and methods that are solved instead of trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..algorithms import Algorithm
from ..algorithms.closed_form import ClosedForm
from ..calibrators import Softmax
from ..evaluation import chunks, evaluate
from ..models import Classifier, Identity
from ..models.probe import probe_on
from .config import TrainConfig

if TYPE_CHECKING:
    from .state import TrainState


CHUNK = 128  # images per forward of the network, so that photos fit into memory


def start_head(state: TrainState, algorithm: Algorithm, config: TrainConfig) -> float | None:
    """Start the head at the probe or at a closed-form solution, if asked for; returns the probe's test error."""
    closed = isinstance(algorithm, ClosedForm)
    if not closed and config.head_init != "probe":
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

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
from ..models import Classifier
from ..models.probe import Probe, fit_probe
from .config import TrainConfig

if TYPE_CHECKING:
    from .state import TrainState


def start_head(state: TrainState, algorithm: Algorithm, config: TrainConfig) -> float | None:
    """Start the head at the probe or at a closed-form solution, if asked for; returns the probe's test error."""
    closed = isinstance(algorithm, ClosedForm)
    if not closed and config.head_init != "probe":
        return None
    data, classes = state.data, state.task.classes
    y = torch.from_numpy(np.asarray(data.labeled_y))
    labeled = plain_features(state, data.split.labeled)
    if isinstance(algorithm, ClosedForm):
        pool = plain_features(state, data.split.pool) if algorithm.needs_pool else labeled[:0]
        state.model = algorithm.solve(state.model, labeled, y, pool).to(state.device)
        return error_on_test_set(state, state.model)
    # A bank's features are standardized and of unit length already.
    fit = standardized_probe if data.dataset.slots is None else fit_probe
    probe, head = fit(labeled, y, classes, config.seed), state.model.head
    probe.copy_to(head)
    error = error_on_test_set(state, state.model)
    probe.copy_to(head, config.head_scale)
    return error


def standardized_probe(features: Tensor, y: Tensor, classes: int, seed: int) -> Probe:
    """A probe on standardized features, as a linear function of the features themselves."""
    mean, std = features.mean(0), features.std(0, correction=0).clamp(min=1e-6)
    scale = std * features.shape[1] ** 0.5  # so that an average image has unit length, as in a bank
    probe = fit_probe((features - mean) / scale, y, classes, seed)
    weight = probe.weight / scale
    return probe._replace(weight=weight, bias=probe.bias - weight @ mean)


@torch.no_grad()
def plain_features(state: TrainState, rows: np.ndarray) -> Tensor:
    """Features of the plain view of training rows, on the CPU."""
    backbone, x = state.model.backbone, state.data.dataset.train.x
    training = state.model.training
    state.model.eval()
    found = [backbone(images).float().cpu() for images in chunks(x, state.views, state.device, rows=rows)]
    state.model.train(training)
    return torch.cat(found)


def error_on_test_set(state: TrainState, model: Classifier) -> float | None:
    """Error on the test set, if there is one."""
    test = state.data.dataset.test
    if test is None:
        return None
    return float(evaluate(model, Softmax(), test, state.views, state.device)["error"])  # type: ignore[arg-type]

"""Parts: everything that changes while training, built from settings and data, saved and restored together."""

from __future__ import annotations

import copy
import math
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from .algorithms import Algorithm
from .averaging import EMA, remember_momentum
from .calibrators import Calibrator
from .data.ssl import SSLData
from .engine import make_accelerator
from .errors import UserError
from .models import Classifier
from .optimise import sgd
from .predictor import Predictor, make_views
from .processes import average_, seed_step
from .restore import restore
from .selectors import Refresher, Selector
from .tally import Tally
from .track import chosen_tracker
from .types import Task


class Parts:
    """Model, average, algorithm, calibrator, optimiser and tally of one run, on their device."""

    def __init__(
        self,
        data: SSLData,
        model: nn.Module,
        algorithm: Algorithm,
        calibrator: Calibrator,
        selector: Selector | None,
        *,
        task: Task,
        settings: dict[str, Any],
    ) -> None:
        tracker = chosen_tracker(settings)
        self.accelerator = make_accelerator(settings["precision"], settings["cpu"], tracker, settings["out"])
        self.device, self.world = self.accelerator.device, self.accelerator.num_processes
        self.main = self.accelerator.is_main_process
        if task.batch % self.world or task.unlabelled_batch % self.world:
            raise UserError(
                f"--batch {task.batch} does not divide among {self.world} processes; give a multiple of {self.world}"
            )
        self.data, self.task = data, task
        # Step numbers stay below 2^31, so the initial weights have a random stream of their own.
        seed_step(settings["seed"], 2**31, 0)
        self.model = make_model(model, data, task.classes).to(self.device).train()
        self.algorithm, self.calibrator = copy.deepcopy(algorithm), copy.deepcopy(calibrator)
        for part in (self.algorithm, self.calibrator):
            part.setup(self.model, task)
            part.to(self.device).train()
        self.ema = EMA(self.model, settings["ema"])
        # A compiled model would be compiled again at every new momentum.
        self.momentum = {} if settings["compile"] else remember_momentum(self.model)
        self.forward = cast(nn.Module, torch.compile(self.model)) if settings["compile"] else self.model
        optimiser = sgd(self.modules, settings["lr"], settings["momentum"], settings["weight_decay"])
        self.optimiser = self.accelerator.prepare_optimizer(optimiser)
        self.views = make_views(data.dataset)
        self.truth = torch.from_numpy(np.asarray(data.pool_truth)).to(self.device)
        self.tally = Tally(task.classes, self.device)
        self.refresher = Refresher(selector, task, settings["epochs"], settings["seed"])
        self.best, self.seconds = math.inf, 0.0

    @property
    def modules(self) -> list[nn.Module]:
        """Everything the optimiser trains."""
        return [self.model, self.algorithm, self.calibrator]

    def classifier(self) -> Classifier:
        """What is evaluated and saved: the averaged model, under the head that the method predicts with."""
        return cast(Classifier, self.algorithm.classifier(self.ema.module))

    def predictor(self) -> Predictor:
        """The averaged model as a classifier of raw examples."""
        dataset = self.data.dataset
        model = self.classifier()
        return Predictor(model, self.calibrator, self.views, dataset.classes, dataset.shape, self.task, self.device)

    def agree(self) -> None:
        """Share the tallies among processes, so that a figure speaks of the whole batch."""
        average_([self.tally.pseudo, *self.tally.losses.values()])

    def _stateful(self) -> dict[str, Any]:
        names = ("model", "ema", "algorithm", "calibrator", "optimiser", "tally", "refresher")
        parts = {name: getattr(self, name) for name in names}
        scaler = self.accelerator.scaler
        return parts if scaler is None else {**parts, "scaler": scaler}

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs."""
        state = {name: part.state_dict() for name, part in self._stateful().items()}
        return {**state, "best": self.best, "seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        for name, part in self._stateful().items():
            told = f"--resume: the checkpoint's {name} is of another version; start again with a new --out"
            restore(part, state[name], told)
        self.best, self.seconds = state["best"], state["seconds"]


def make_model(model: nn.Module, data: SSLData, classes: int) -> Classifier:
    """A classifier around a copy of the user's backbone, in the memory layout convolutions like best."""
    if isinstance(model, Classifier):
        return copy.deepcopy(model)
    shape = data.dataset.shape
    if len(shape) == 1:
        return Classifier.build(copy.deepcopy(model), shape, classes)
    built = Classifier.build(copy.deepcopy(model), (shape[2], shape[0], shape[1]), classes)
    return built.to(memory_format=torch.channels_last)


def make_task(data: SSLData, steps: int, epoch: int, batch: int, ratio: int) -> Task:
    """The sizes of a run."""
    y, classes = torch.from_numpy(np.asarray(data.labelled_y)), len(data.dataset.classes)
    counts = torch.bincount(y, minlength=classes)
    return Task(classes, len(y), len(data.split.pool), counts, steps, epoch, batch, batch * ratio)

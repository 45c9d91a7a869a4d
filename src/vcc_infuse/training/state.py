"""TrainState: everything that changes while training, built from options and data, saved and restored together."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from ..algorithms import Algorithm
from ..calibrators import Calibrator
from ..data.ssl_data import SSLData
from ..errors import UserError
from ..inference.predictor import Predictor, make_views
from ..models import Backbone, Classifier, Embedded
from ..models.ema import EMA
from ..models.pretrained import Preprocessing
from ..selectors import Selector
from ..types import Task
from ..utils.seeding import seed_step
from ..utils.serialization import load_state
from .config import TrainConfig
from .coreset import CoresetScheduler
from .distributed import average_, make_accelerator
from .ema import bn_momentum
from .initialize import start_at_run, start_head
from .nonfinite import LossWatch
from .optimizer import freeze, make_optimizer
from .summary import TrainingStats

# Step numbers stay below 2^31, so the initial weights have a random stream of their own.
INITIAL_WEIGHTS = 2**31
COUNTERS = ("best_error", "train_seconds", "warnings", "lr_scale", "skipped", "skipped_in_row")


class TrainState:
    """Model, average, algorithm, calibrator, optimizer and statistics of one run, on their device."""

    def __init__(
        self,
        data: SSLData,
        model: nn.Module,
        algorithm: Algorithm,
        calibrator: Calibrator,
        selector: Selector | None,
        *,
        task: Task,
        config: TrainConfig,
    ) -> None:
        self.accelerator = make_accelerator(config.precision, config.device, config.tracker, config.out)
        self.device, self.world = self.accelerator.device, self.accelerator.num_processes
        self.main = self.accelerator.is_main_process
        check_divisible(task, self.world)
        self.data, self.task, self.selector = data, task, selector
        seed_step(config.seed, INITIAL_WEIGHTS, 0)
        self.model = make_model(model, data, task.classes, pretrained=config.init is None)
        start = start_at_run(self.model, config.init, data.dataset, self.main) if config.init else None
        self.model.to(self.device).train()
        freeze(self.model, config)
        self.views = make_views(data.dataset, (start and start.preprocessing) or preprocessing(self.model))
        self.probe_error = start_head(self, algorithm, config, inherited=start is not None and start.head)
        self.algorithm, self.calibrator = copy.deepcopy(algorithm), copy.deepcopy(calibrator)
        for part in (self.algorithm, self.calibrator):
            part.setup(self.model, task)
            part.to(self.device).train()
        self.ema = EMA(self.model, config.ema_decay)
        # A compiled model would be compiled again at every new momentum.
        self.bn_momentum = {} if config.compile else bn_momentum(self.model)
        self.forward = compiled(self.model) if config.compile else self.model
        optimizer = make_optimizer(self.model, [self.algorithm, self.calibrator], config)
        self.optimizer = self.accelerator.prepare_optimizer(optimizer)
        self.truth = torch.from_numpy(data.hidden_truth).to(self.device)
        self.stats = TrainingStats(task.classes, self.device, checked=bool((self.truth >= 0).any()))
        self.coreset_scheduler = CoresetScheduler(selector, task, config.seed)
        self.best_error, self.train_seconds = math.inf, 0.0
        self.watch = LossWatch(self.device, self.world)
        self.warnings: list[str] = []
        self.lr_scale, self.skipped, self.skipped_in_row = 1.0, 0, 0

    def warn(self, *texts: str) -> None:
        """Tell the user on the screen now, and in summary.json and the report at the end."""
        for text in (text for text in texts if text not in self.warnings):
            self.warnings.append(text)
            if self.main:
                warnings.warn(text, stacklevel=2)

    @property
    def modules(self) -> list[nn.Module]:
        """Everything the optimizer trains."""
        return [self.model, self.algorithm, self.calibrator]

    def classifier(self) -> Classifier:
        """What is evaluated and saved: the averaged model, under the head that the method predicts with."""
        return cast(Classifier, self.algorithm.classifier(self.ema.module))

    def predictor(self) -> Predictor:
        """The averaged model as a classifier of raw examples: of images, where it was trained on a bank of them."""
        own, bank = self.row_predictor(), self.data.dataset.bank
        if bank is None:
            return own
        model, mean, std = own.model, own.views.mean.to(self.device), own.views.std.to(self.device)
        backbone = Embedded.attach(bank.encoder, model.backbone, mean, std, model.head.in_features)
        joined = Classifier(backbone, model.head)
        return replace(own, model=joined, views=bank.views, shape=bank.source.shape)

    def row_predictor(self) -> Predictor:
        """The averaged model as a classifier of the rows it was trained on."""
        dataset, model = self.data.dataset, self.classifier()
        return Predictor(model, self.calibrator, self.views, dataset.classes, dataset.shape, self.task, self.device,
                         ranges=dataset.ranges)  # fmt: skip

    def sync_stats(self) -> None:
        """Average the statistics over processes, so that they describe the whole batch."""
        average_([self.stats.pseudo, *self.stats.losses.values()])

    def _stateful(self) -> dict[str, Any]:
        names = ("model", "ema", "algorithm", "calibrator", "optimizer", "stats", "coreset_scheduler")
        parts = {name: getattr(self, name) for name in names}
        scaler = self.accelerator.scaler
        return parts if scaler is None else {**parts, "scaler": scaler}

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs."""
        state = {name: part.state_dict() for name, part in self._stateful().items()}
        normalization = {"mean": self.views.mean, "std": self.views.std}  # perhaps that of another run, by `init`
        return {
            **state, "normalization": normalization, **{name: getattr(self, name) for name in COUNTERS},
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        for name, part in self._stateful().items():
            remedy = "start again with a new --out"
            load_state(part, state[name], f"--resume: the checkpoint's {name} is from another version; {remedy}")
        for name in COUNTERS:
            setattr(self, name, state[name])
        self.watch.reset()
        for name, values in state.get("normalization", {}).items():
            setattr(self.views, name, values)


def compiled(model: Classifier) -> nn.Module:
    """The model compiled; what cannot be, or all of it without a C++ compiler, runs as it is, with a warning."""
    import torch._dynamo

    torch._dynamo.config.suppress_errors = True
    return cast(nn.Module, torch.compile(model))


def check_divisible(task: Task, world: int) -> None:
    """Refuse batches that processes cannot share evenly."""
    if task.batch_size % world or task.unlabeled_batch_size % world:
        remedy = f"give a multiple of {world}"
        raise UserError(f"batch_size {task.batch_size} does not divide among {world} processes; {remedy}")


def make_model(model: nn.Module, data: SSLData, classes: int, pretrained: bool = True) -> Classifier:
    """A classifier around a copy of the user's backbone, in the memory layout that suits convolutions."""
    if isinstance(model, Classifier):
        return copy.deepcopy(model)
    shape, own = data.dataset.shape, copy.deepcopy(model)
    if len(shape) == 1:
        return Classifier.build(own, shape, classes)
    built = Classifier.build(own, (shape[2], shape[0], shape[1]), classes)
    if pretrained and isinstance(own, Backbone):
        own.load_pretrained()
    return built.to(memory_format=torch.channels_last)


def preprocessing(model: Classifier) -> Preprocessing | None:
    """What a pretrained backbone expects of images."""
    return model.backbone.preprocessing() if isinstance(model.backbone, Backbone) else None


def make_task(data: SSLData, steps: int, config: TrainConfig) -> Task:
    """The sizes of a run."""
    y, classes = torch.from_numpy(np.asarray(data.labeled_y)), len(data.dataset.classes)
    counts = torch.bincount(y, minlength=classes)
    unlabeled = config.batch_size * (config.unlabeled_ratio or 1)
    return Task(classes, len(y), len(data.split.pool), counts, steps, config.batch_size, unlabeled)

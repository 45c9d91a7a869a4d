"""TrainState: everything that changes while training, built from options and data, saved and restored together."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import nn

from ..algorithms import Algorithm
from ..calibrators import Calibrator
from ..data.ssl_data import SSLData
from ..errors import UserError, option_prefix
from ..inference.predictor import Predictor, make_views
from ..models import Backbone, Classifier
from ..models.backbone import Embedded
from ..models.classifier import EMA
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
from .optimizer import freeze, make_optimizer
from .summary import TrainingStats

Part = TypeVar("Part", Algorithm, Calibrator)
# Step numbers stay below 2^31, so the initial weights have a random stream of their own.
INITIAL_WEIGHTS = 2**31


@dataclass
class Counters:
    """Numbers of a run that a checkpoint keeps.

    `lr_scale` is the factor on the learning rate after rollbacks; `skipped` counts the batches that were left out.
    """

    best_error: float = math.inf
    train_seconds: float = 0.0
    lr_scale: float = 1.0
    skipped: int = 0
    skipped_in_row: int = 0
    warnings: list[str] = field(default_factory=list)


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
        check_divisible(task, self.world)
        self.data = data
        self.task = task
        self.selector = selector
        self.counters = Counters()
        self.coreset_scheduler = CoresetScheduler(selector, task, config.seed)
        self.truth = torch.from_numpy(data.hidden_truth).to(self.device)
        self.stats = TrainingStats(task.classes, self.device, checked=bool((self.truth >= 0).any()))
        inherited = self._make_model(model, config)
        self.probe_error = start_head(self, algorithm, config, inherited=inherited)
        self.algorithm = self._set_up("algorithm", algorithm)
        self.calibrator = self._set_up("calibrator", calibrator)
        self.ema = EMA(self.model, config.ema_decay)
        # A compiled model would be compiled again at every new momentum.
        self.bn_momentum = {} if config.compile else bn_momentum(self.model)
        self.forward = compiled(self.model) if config.compile else self.model
        optimizer = make_optimizer(self.model, [self.algorithm, self.calibrator], config)
        self.optimizer = self.accelerator.prepare_optimizer(optimizer)

    def _make_model(self, model: nn.Module, config: TrainConfig) -> bool:
        """The model with its starting weights, and the views it expects; returns whether its head is another run's."""
        seed_step(config.seed, INITIAL_WEIGHTS, 0)
        with option_prefix("model"):
            self.model = make_model(model, self.data, self.task.classes, pretrained=config.init is None)
        start = start_at_run(self.model, config.init, self.data.dataset, self.main) if config.init else None
        self.model.to(self.device).train()
        freeze(self.model, config)
        self.views = make_views(self.data.dataset, (start and start.preprocessing) or preprocessing(self.model))
        return start is not None and start.head

    def _set_up(self, option: str, part: Part) -> Part:
        """A copy of the user's method or calibrator, ready to train."""
        own = copy.deepcopy(part)
        with option_prefix(option):
            own.setup(self.model, self.task)
        return own.to(self.device).train()

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return cast(torch.device, self.accelerator.device)

    @property
    def world(self) -> int:
        """The number of processes."""
        return cast(int, self.accelerator.num_processes)

    @property
    def main(self) -> bool:
        """Whether this is the first process."""
        return cast(bool, self.accelerator.is_main_process)

    def warn(self, *texts: str) -> None:
        """Tell the user on the screen now, and in summary.json and the report at the end."""
        for text in (text for text in texts if text not in self.counters.warnings):
            self.counters.warnings.append(text)
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
        of_rows = self.row_predictor()
        bank = self.data.dataset.bank
        if bank is None:
            return of_rows
        model = of_rows.model
        mean = of_rows.views.mean.to(self.device)
        std = of_rows.views.std.to(self.device)
        backbone = Embedded.attach(bank.encoder, model.backbone, mean, std, model.head.in_features)
        joined = Classifier(backbone, model.head)
        return replace(of_rows, model=joined, views=bank.views, shape=bank.source.shape)

    def row_predictor(self) -> Predictor:
        """The averaged model as a classifier of the rows it was trained on."""
        dataset = self.data.dataset
        return Predictor(
            self.classifier(), self.calibrator, self.views, dataset.classes, dataset.shape, self.task, self.device,
            ranges=dataset.ranges,
        )  # fmt: skip

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
        return {**state, "normalization": normalization, "counters": asdict(self.counters)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        for name, part in self._stateful().items():
            remedy = "start again with a new --out"
            load_state(part, state[name], f"--resume: the checkpoint's {name} is from another version; {remedy}")
        self.counters = Counters(**state["counters"])
        for name, values in state["normalization"].items():
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
    shape = data.dataset.shape
    backbone = copy.deepcopy(model)
    if len(shape) == 1:
        return Classifier.build(backbone, shape, classes)
    classifier = Classifier.build(backbone, (shape[2], shape[0], shape[1]), classes)
    if pretrained and isinstance(backbone, Backbone):
        backbone.load_pretrained()
    return classifier.to(memory_format=torch.channels_last)


def preprocessing(model: Classifier) -> Preprocessing | None:
    """What a pretrained backbone expects of images."""
    return model.backbone.preprocessing() if isinstance(model.backbone, Backbone) else None


def make_task(data: SSLData, steps: int, config: TrainConfig) -> Task:
    """The sizes of a run."""
    y = torch.from_numpy(np.asarray(data.labeled_y))
    classes = len(data.dataset.classes)
    return Task(
        classes=classes,
        labeled=len(y),
        pool=len(data.split.pool),
        label_counts=torch.bincount(y, minlength=classes),
        steps=steps,
        batch_size=config.batch_size,
        unlabeled_batch_size=config.batch_size * (config.unlabeled_ratio or 1),
    )

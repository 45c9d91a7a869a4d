"""TrainState: everything that changes while training, and where the weights start: anew, at another run, at a probe."""

from __future__ import annotations

import copy
import math
import sys
import time
import warnings
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from ..algorithms import Algorithm
from ..algorithms.baselines import ClosedForm
from ..calibrators import Calibrator, Softmax
from ..data.dataset import Dataset
from ..data.ssl_data import SSLData
from ..errors import UserError, option_prefix
from ..inference.evaluate import chunks, evaluate
from ..inference.known import keep_known, sample_by_class
from ..inference.predictor import Predictor, make_views
from ..models import Backbone, Classifier, Identity
from ..models.backbone import Embedded
from ..models.classifier import EMA
from ..models.linear_probe import probe_on
from ..models.pretrained import Preprocessing
from ..pool_audit import KnownRows
from ..selectors import Selector
from ..types import Losses, PseudoLabels, Task
from ..utils.seeding import seed_step
from ..utils.serialization import class_path, load_state
from .config import TrainConfig
from .coreset import CoresetScheduler
from .distributed import average_, make_accelerator
from .optimizer import bn_momentum, freeze, make_optimizer
from .summary import TrainingStats

if TYPE_CHECKING:
    from .hand_out import HandOut

Part = TypeVar("Part", Algorithm, Calibrator)
# Step numbers stay below 2^31, so the initial weights have a random stream of their own.
INITIAL_WEIGHTS = 2**31
CHUNK = 128  # images per forward of the network, so that photos fit into memory


@dataclass
class Counters:
    """Numbers of a run that a checkpoint keeps."""

    best_error: float = math.inf
    train_seconds: float = 0.0
    lr_scale: float = 1.0  # after rollbacks
    skipped: int = 0  # batches that were left out
    skipped_in_row: int = 0
    warnings: list[str] = field(default_factory=list)


class TrainState:
    """Model, average, algorithm, calibrator, optimizer and statistics of one run, on their device."""

    optimizer: torch.optim.Optimizer  # a method without steps has none

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
        if task.batch_size % self.world or task.unlabeled_batch_size % self.world:
            problem = f"batch_size {task.batch_size} does not divide among {self.world} processes"
            raise UserError(f"{problem}; give a multiple of {self.world}")
        self.data = data
        self.task = task
        self.selector = selector
        self.counters = Counters()
        self.handed_out: HandOut | None = None
        self.probe: Classifier | None = None  # on images: the starting weights, with which a run is compared
        self.coreset_scheduler = CoresetScheduler(selector, task, config.seed)
        self.truth = torch.from_numpy(data.hidden_truth).to(self.device)
        checked = bool((self.truth >= 0).any())
        self.stats = TrainingStats(task.classes, self.device, checked, processes=self.world)
        seed_step(config.seed, INITIAL_WEIGHTS, 0)
        with option_prefix("model"):
            self.model = make_model(model, data, task.classes, pretrained=config.init is None)
        start = start_at_run(self.model, config.init, data.dataset, self.main) if config.init else Start()
        self.model.to(self.device).train()
        freeze(self.model, config)
        backbone = self.model.backbone
        expected = backbone.preprocessing() if isinstance(backbone, Backbone) else None  # by pretrained weights
        self.views = make_views(data.dataset, start.preprocessing or expected)
        self.probe_error = start_head(self, algorithm, config, inherited=start.head)
        self.algorithm = self._set_up("algorithm", algorithm)
        self.calibrator = self._set_up("calibrator", calibrator)
        self.ema = EMA(self.model, config.ema_decay)
        # A compiled model would be compiled again at every new momentum.
        self.bn_momentum = {} if config.compile else bn_momentum(self.model)
        self.forward: nn.Module = self.model
        if config.compile:
            from torch import _dynamo

            # What cannot be compiled, or all of it without a C++ compiler, runs as it is, with a warning.
            _dynamo.config.suppress_errors = True
            self.forward = cast(nn.Module, torch.compile(self.model))
        if not isinstance(self.algorithm, ClosedForm):  # torch imports its compiler for the first optimizer: 2 s
            self.optimizer = make_optimizer(self.model, [self.algorithm, self.calibrator], config)

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
        """What is evaluated and saved: what cross-validation chose, or the averaged model under the method's head."""
        if self.handed_out is not None:
            return self.handed_out.model
        return cast(Classifier, self.algorithm.classifier(self.ema.module))

    def predictor(self) -> Predictor:
        """The averaged model as a classifier of raw examples: of images, where it was trained on a bank of them."""
        of_rows = self.row_predictor()
        bank = self.data.dataset.bank
        if bank is None:
            return of_rows
        mean, std = (values.to(self.device) for values in (self.views.mean, self.views.std))
        head = of_rows.model.head
        backbone = Embedded.attach(bank.encoder, of_rows.model.backbone, mean, std, head.in_features)
        return replace(
            of_rows, model=Classifier(backbone, head), views=bank.views, shape=bank.source.shape, known=self._known()
        )

    def _known(self) -> KnownRows:
        """The labeled images of a bank, by which unknown ones are told later."""
        kept = sample_by_class(self.data.labeled_y)
        rows = self.data.split.labeled[kept]
        features = torch.cat(list(chunks(self.data.dataset.train.x, self.views, self.device, CHUNK, rows)))
        return keep_known(features, self.data.labeled_y[kept])

    def row_predictor(self) -> Predictor:
        """The averaged model as a classifier of the rows it was trained on."""
        dataset = self.data.dataset
        return Predictor(
            model=self.classifier(),
            calibrator=self.handed_out.calibrator if self.handed_out else self.calibrator,
            views=self.views,
            classes=dataset.classes,
            shape=dataset.shape,
            task=self.task,
            device=self.device,
            ranges=dataset.ranges,
        )

    def sync_stats(self) -> None:
        """Average the statistics over processes, so that they describe the whole batch."""
        average_([self.stats.pseudo, *self.stats.losses.values()])

    def _stateful(self) -> dict[str, Any]:
        names = ["model", "ema", "algorithm", "calibrator", "stats", "coreset_scheduler"]
        names += [] if isinstance(self.algorithm, ClosedForm) else ["optimizer"]
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
        label_groups=_fold_groups(data),
    )


def _fold_groups(data: SSLData) -> Tensor | None:
    """Groups of labels that share a fold. A class whose labels are one group is torn apart: it must not be unseen."""
    if (groups := data.label_groups) is None:
        return None
    single = [y for y in np.unique(data.labeled_y) if len(np.unique(groups[data.labeled_y == y])) == 1]
    torn = np.isin(groups, groups[np.isin(data.labeled_y, single)])
    return torch.from_numpy(np.where(torn, groups.max() + 1 + np.arange(len(groups)), groups))


class Start(NamedTuple):
    """What a run takes over from an earlier one: perhaps its head, and how its images are normalized."""

    head: bool = False
    preprocessing: Preprocessing | None = None


def start_at_run(model: Classifier, folder: str, dataset: Dataset, verbose: bool) -> Start:
    """Copy the weights of a finished run into the model; those of its head only if the classes are the same."""
    saved = Predictor.load(folder, "cpu", [class_path(type(model.backbone))])  # which this run uses anyway
    source = saved.model.backbone
    own = model.backbone
    if isinstance(source, Embedded) and dataset.bank is not None:  # both learn from features of one frozen network
        ours = dataset.bank.encoder.state_dict()
        theirs = source.encoder.state_dict()
        if ours.keys() != theirs.keys() or not all(torch.equal(ours[name].cpu(), theirs[name]) for name in ours):
            raise UserError(f"init {folder}: its features come from another network than those of this run")
        source = source.layers
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
        print(f"init {folder}: its classes are not those of the data, so the head starts from scratch", file=sys.stderr)
    return Start(same, Preprocessing(mean, std, 0, "") if images else None)


def start_head(state: TrainState, algorithm: Algorithm, config: TrainConfig, inherited: bool = False) -> float | None:
    """Start the head at the probe or at a closed-form solution, if asked for; returns the test error of the probe.

    A head that is `inherited` from another run stays.
    """
    closed = isinstance(algorithm, ClosedForm)
    if not closed and (inherited or config.head_init != "probe"):
        return None
    data = state.data
    model = state.model
    y = torch.from_numpy(np.asarray(data.labeled_y))
    if not closed and len(data.dataset.shape) == 1 and not isinstance(model.backbone, Identity):
        # Layers that are still random offer a probe nothing: here it is only what the run is compared with.
        model = Classifier.build(Identity(), data.dataset.shape, state.task.classes).to(state.device)
    labeled = plain_features(state, model, data.split.labeled)
    probe = probe_on(model.backbone, labeled, y, state.task.classes, config.seed)
    probe.copy_to(model.head)
    error = error_on_test_set(state, model)
    if isinstance(algorithm, ClosedForm):
        solve(state, algorithm, labeled, y)
        return error
    if len(data.dataset.shape) > 1:
        state.probe = copy.deepcopy(model)
    probe.copy_to(model.head, config.head_scale)
    return error


def solve(state: TrainState, algorithm: ClosedForm, labeled: Tensor, y: Tensor) -> None:
    """Give the run the solution of a method without steps, which takes all of its training time."""
    began = time.perf_counter()
    places = algorithm.pool_rows(np.arange(state.task.pool), state.task.classes)
    rows = state.data.split.pool[places]
    pool = plain_features(state, state.model, rows) if algorithm.needs_pool else labeled[:0]
    solution = algorithm.solve(state.model, labeled, y, pool, state.task.pool_shares)
    state.model = solution.model.to(state.device)
    if solution.pseudo is not None:
        own = slice(state.accelerator.process_index, None, state.world)  # every process has solved for the same
        truth = state.truth.cpu()[torch.from_numpy(places)]
        state.stats.add(Losses(PseudoLabels(*(column[own] for column in solution.pseudo))), truth[own])
    state.counters.train_seconds += time.perf_counter() - began


@torch.no_grad()
def plain_features(state: TrainState, model: Classifier, rows: np.ndarray) -> Tensor:
    """Features of the plain view of training rows, on the CPU."""
    training = model.training
    model.eval()
    views = chunks(state.data.dataset.train.x, state.views, state.device, CHUNK, rows)
    features = [model.backbone(images).float().cpu() for images in views]
    model.train(training)
    return torch.cat(features)


def error_on_test_set(state: TrainState, model: Classifier) -> float | None:
    """Error on the test set, if there is one."""
    test = state.data.dataset.test
    if test is None:
        return None
    return float(evaluate(model, Softmax(), test, state.views, state.device)["error"])

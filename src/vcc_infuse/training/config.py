"""TrainConfig: every option of a run that is not an object, checked when it is made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from importlib import import_module
from typing import Any, Literal, TypedDict

import yaml

from ..algorithms import Algorithm
from ..algorithms.baselines import ClosedForm
from ..bank.bank import BankConfig
from ..bank.onnx_engine import ENGINES, Engine
from ..calibrators import Calibrator, Softmax
from ..errors import OptionError, UserError, check_choice, check_integer, check_range
from ..selectors import Selector
from ..utils.serialization import to_config
from ..utils.suggest import did_you_mean

Precision = Literal["auto", "fp32", "bf16", "fp16"]
TrackerName = Literal["none", "tensorboard", "wandb"]
# What a tracker imports, and the extra that installs it. Not plain `wandb`: its runs leave folders of that name, which
# Python would import.
TRACKER_MODULES = {
    "tensorboard": ("track", ("torch.utils.tensorboard", "matplotlib.figure")),
    "wandb": ("wandb", ("wandb.sdk", "matplotlib.figure")),
}

# Steps fit the random streams (training/state.py), factors fit float32, and a batch fits some memory.
FACTORS = ("lr", "head_lr", "weight_decay", "clip_grad", "head_scale")
MAY_BE_NONE = ("unlabeled_ratio", "micro_batch", "head_lr", "clip_grad")
LARGEST = {"steps": 2**31 - 1, "bins": 10**5, **dict.fromkeys(FACTORS, 1e30)}
MOST_IMAGES = 2**20


@dataclass(frozen=True)
class TrainConfig:
    """Options of a training run. Everything that recurs is counted in optimizer steps.

    Args:
        steps: optimizer steps of the full run; a selector that keeps a fraction takes that fraction of them.
        eval_every: steps between two evaluations on the test set, if there is one.
        batch_size: labeled examples per step, over all processes.
        unlabeled_ratio: unlabeled examples per labeled one; the method's own default if not given.
        optimizer: "sgd" with Nesterov momentum, or "adamw".
        lr: learning rate at the start.
        head_lr: learning rate of the classifier's head and of everything outside the backbone; `lr` if not given.
        layer_decay: factor on the learning rate per layer, counted from the head down; 1 treats all layers alike.
        momentum: Nesterov momentum.
        weight_decay: penalty on matrices (not on biases and norms).
        warmup_steps: steps over which the learning rate rises from zero.
        clip_grad: largest norm of the gradient; no limit if not given.
        schedule: "cosine" is lr·cos(7πk/16K); "constant" keeps lr.
        ema_decay: decay of the averaged weights, which are evaluated and saved.
        freeze: what of the backbone keeps its weights: "none", "backbone" for all of it, or a number of stages.
        freeze_bn: keep the running statistics of BatchNorm as they are, as suits pretrained networks.
        init: folder of a finished run whose weights are the starting weights, and its head too if the classes are the
            same. Images are then normalized as in that run, and `head_init` does not count.
        head_init: "random", or "probe" to start the head at a logistic regression on the labeled images' features.
        head_scale: factor on the logits of a head that starts at the probe; more makes it more confident.
        cross_fit: repeat the run with parts of the labels hidden, and by the answers for these labels hand out the
            method or the linear probe, on a bank or on vectors also a mix of both, and calibrate its confidence. On
            images the repetition is one shorter run, for which `head_init` must be "probe". "auto" does so where it
            takes less than about two minutes.
        open_set: "auto" lets images of the pool that are far from all labels count less in the second half of the run,
            by their p-value, on a bank or on vectors. Nothing is left out, and "off" treats all the same.
        doubt: "weigh" lets labels that are more likely wrong than right, judged by the others, weigh nothing, while
            their images stay in the pool; on a bank or on vectors. "off" trusts all labels.
        micro_batch: images per forward and backward, which bounds memory; the whole batch if not given.
        memory: memory that a step may use, such as "4GB": `micro_batch` is chosen to fit, unless it is given.
        joint_bn: one forward for all views, with shared BatchNorm statistics (slower).
        lazy: make and compute strong views only where the pseudo label has weight; the same gradient, except that
            BatchNorm normalizes by fewer images.
        on_nan: what to do when the loss is NaN, infinite or above a million: "stop"; "skip" leaves out the update of
            such a batch, at the cost of waiting for a GPU at every step; "rollback" goes back to the last checkpoint
            and continues with half the learning rate, at most five times.
        precision: "auto" uses bf16 where the hardware supports it; or fp32, bf16, fp16.
        compile: compile the model (takes a while to warm up).
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        engine: what computes a frozen network on CPUs: "torch", "onnx" (ONNX Runtime), or "auto" for the faster one.
        seed: seed of the initial weights, the order of the data and every random draw.
        bins: bins of the calibration metrics.
        minutes: how long embedding may take; the presets auto and frozen choose network and size on the labels to fit.
        out: run folder; from Python nothing is written without it, the command line picks a free one under runs/.
        tracker: also show metrics and reliability diagrams live in "tensorboard" (needs the extra `track`) or
            "wandb" (needs the extra `wandb`).
        preset: name of the preset that the options came from, for the record.
        report: write report.html to the run folder at the end.
        progress: show a progress bar or, off a terminal, a few lines.
    """

    steps: int = 1000
    eval_every: int = 50
    batch_size: int = 64
    unlabeled_ratio: int | None = None
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: float = 0.03
    head_lr: float | None = None
    layer_decay: float = 1.0
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup_steps: int = 0
    clip_grad: float | None = None
    schedule: Literal["cosine", "constant"] = "cosine"
    ema_decay: float = 0.999
    freeze: int | Literal["none", "backbone"] = "none"
    freeze_bn: bool = False
    init: str | None = None
    head_init: Literal["random", "probe"] = "random"
    head_scale: float = 1.0
    cross_fit: bool | Literal["auto"] = False
    open_set: Literal["off", "auto"] = "off"
    doubt: Literal["off", "weigh"] = "off"
    micro_batch: int | None = None
    memory: str | None = None
    joint_bn: bool = False
    lazy: bool = False
    on_nan: Literal["stop", "skip", "rollback"] = "stop"
    precision: Precision = "auto"
    compile: bool = False
    device: str = "auto"
    engine: Engine = "auto"
    seed: int = 0
    bins: int = 15
    minutes: float = 10.0
    out: str | None = None
    tracker: TrackerName = "none"
    preset: str | None = None
    report: bool = True
    progress: bool = True

    def __post_init__(self) -> None:
        unset = [name for name in MAY_BE_NONE if getattr(self, name) is None]
        for name in ("steps", "eval_every", "batch_size", "bins", "unlabeled_ratio", "micro_batch"):
            if name not in unset:
                check_integer(name, getattr(self, name))
        if self.batch_size * (self.unlabeled_ratio or 1) > MOST_IMAGES:
            rule = f"times unlabeled_ratio must be at most {MOST_IMAGES:,}, the images of a step"
            raise OptionError("batch_size", self.batch_size, rule)
        for name in FACTORS:
            if name not in unset:
                check_range(name, getattr(self, name))
        for name, largest in LARGEST.items():
            if (getattr(self, name) or 0) > largest:
                raise OptionError(name, getattr(self, name), f"must be at most {largest:g}")
        if self.head_lr is not None and self.lr == 0:
            remedy = 'use freeze "backbone" to train only the head'
            raise OptionError("head_lr", self.head_lr, "needs an lr above 0", remedy)
        if self.memory is not None:
            memory_bytes(self.memory)
        check_range("layer_decay", self.layer_decay, 0, 1, open_low=True)
        check_integer("warmup_steps", self.warmup_steps, 0)
        stages = type(self.freeze) is int and self.freeze >= 0
        if not stages and self.freeze not in ("none", "backbone"):
            raise OptionError("freeze", self.freeze, "must be none, backbone or a number of stages")
        check_choice("optimizer", self.optimizer, ("sgd", "adamw"))
        check_choice("head_init", self.head_init, ("random", "probe"))
        if type(self.cross_fit) is not bool and self.cross_fit != "auto":
            raise OptionError("cross_fit", self.cross_fit, "must be true, false or auto")
        for name in ("momentum", "ema_decay"):
            check_range(name, getattr(self, name), 0, 1, open_high=True)
        if self.lazy and self.joint_bn:
            rule = "must be false with joint_bn, which computes all views at once"
            raise OptionError("lazy", True, rule, "leave out one")
        check_range("minutes", self.minutes, open_low=True)
        check_integer("seed", self.seed, 0, 2**32 - 1)
        check_choice("open_set", self.open_set, ("off", "auto"))
        check_choice("doubt", self.doubt, ("off", "weigh"))
        check_choice("schedule", self.schedule, ("cosine", "constant"))
        check_choice("precision", self.precision, ("auto", "fp32", "bf16", "fp16"))
        check_choice("engine", self.engine, ENGINES)
        check_choice("on_nan", self.on_nan, ("stop", "skip", "rollback"))
        if self.on_nan == "rollback" and self.out is None:
            raise OptionError("on_nan", self.on_nan, "needs a run folder for its checkpoints", "set out")
        check_choice("tracker", self.tracker, ("none", *TRACKER_MODULES))
        if self.tracker != "none":
            check_tracker(self.tracker, self.out)

    def updated(self, **options: Any) -> TrainConfig:
        """A copy with some fields changed; an unknown field is named with the nearest known one."""
        known = [field.name for field in fields(self)]
        for name in options.keys() - known:
            raise UserError(f"{name} is not an option of TrainConfig{did_you_mean(name, known)}")
        return replace(self, **options)


class TrainOptions(TypedDict, total=False):
    """Fields of TrainConfig as keyword arguments; what is left out is decided by a preset or a default."""

    steps: int
    eval_every: int
    batch_size: int
    unlabeled_ratio: int | None
    optimizer: Literal["sgd", "adamw"]
    lr: float
    head_lr: float | None
    layer_decay: float
    momentum: float
    weight_decay: float
    warmup_steps: int
    clip_grad: float | None
    schedule: Literal["cosine", "constant"]
    ema_decay: float
    freeze: int | Literal["none", "backbone"]
    freeze_bn: bool
    init: str | None
    head_init: Literal["random", "probe"]
    head_scale: float
    cross_fit: bool | Literal["auto"]
    open_set: Literal["off", "auto"]
    doubt: Literal["off", "weigh"]
    micro_batch: int | None
    memory: str | None
    joint_bn: bool
    lazy: bool
    on_nan: Literal["stop", "skip", "rollback"]
    precision: Precision
    compile: bool
    device: str
    engine: Engine
    seed: int
    bins: int
    minutes: float
    out: str | None
    tracker: TrackerName
    report: bool
    progress: bool


def config_yaml(
    data: Mapping[str, Any], parts: Mapping[str, object], config: TrainConfig, bank: BankConfig | None = None
) -> str:
    """The text of config.yaml, in the form that the command line reads: complete, so that it repeats the run."""
    described = {name: to_config(part) if part is not None else None for name, part in parts.items()}
    unset = {"out"} if config.preset else {"out", "preset"}  # a new run needs a folder of its own
    options = {name: value for name, value in asdict(config).items() if name not in unset}
    views = {} if bank is None else {"bank": asdict(bank)}
    return yaml.safe_dump({**data, **described, **options, **views}, sort_keys=False, allow_unicode=True)


def memory_bytes(memory: str) -> int:
    """The bytes of a size such as 4GB, 800 MB or 1.5GB."""
    size = re.fullmatch(r"(\d+(?:\.\d+)?) *([MG])B", str(memory).strip(), re.IGNORECASE)
    if size is None or not float(size[1]):
        raise OptionError("memory", memory, "must be a size such as 4GB or 800MB")
    return round(float(size[1]) * {"M": 10**6, "G": 10**9}[size[2].upper()])


def check_tracker(name: TrackerName, out: str | None) -> None:
    """Refuse a tracker that has no folder or is not installed before anything is written."""
    if out is None:
        raise OptionError("tracker", name, "needs a run folder", "set out")
    extra, modules = TRACKER_MODULES[name]
    try:
        for module in modules:
            import_module(module)
    except ImportError as fault:
        remedy = f"install it with: pip install 'vcc-infuse[{extra}]'"
        raise OptionError("tracker", name, f"needs a package that is missing ({fault.name})", remedy) from fault


def check_lazy(algorithm: Algorithm, lazy: bool) -> None:
    """Refuse lazy strong views for a method that needs all of them, or none."""
    if lazy and not algorithm.lazy_strong:
        rule = f"must be false for {_name(algorithm)}, which has no strong views or needs all of them"
        raise OptionError("lazy", lazy, rule, "leave it out or choose a method such as FixMatch")


def _name(algorithm: Algorithm) -> str:
    """DARP(CoMatch) for a plug-in around a base."""
    base = getattr(algorithm, "base", None)
    return type(algorithm).__name__ + (f"({_name(base)})" if isinstance(base, Algorithm) else "")


def check_compatible(algorithm: Algorithm, calibrator: Calibrator, selector: Selector | None = None) -> None:
    """Refuse a selector without pool or steps, and a calibrator without a confidence to replace or views to use."""
    method = type(algorithm).__name__
    plugin = type(calibrator).__name__
    instead = "leave it out or choose a semi-supervised method such as FixMatch"
    chooser = f"the selector {type(selector).__name__}"
    if selector is not None and isinstance(algorithm, ClosedForm):
        raise UserError(f"{method} has no training steps, so {chooser} has nothing to shorten; {instead}")
    if selector is not None and selector.restricts and not algorithm.views:
        raise UserError(f"{method} uses no unlabeled images, so {chooser} has nothing to select; {instead}")
    # Not isinstance: MMCE inherits Softmax's confidence, yet exists to change it.
    if type(calibrator) is not Softmax and not algorithm.uses_confidence:
        raise UserError(
            f"{method} selects nothing by confidence, so the calibrator {plugin} would have no effect; "
            "leave it out or choose a pseudo-label method such as FixMatch"
        )
    for view in calibrator.unlabeled_views:
        if view not in algorithm.views:
            raise UserError(
                f"the calibrator {plugin} learns from {view} views of unlabeled images, which {method} does not have; "
                "choose another value for its option labels, or a method such as FixMatch"
            )

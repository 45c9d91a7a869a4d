"""RunConfig: every option of a run, typed, to and from YAML; and how a preset fills in what is left open."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, cast

import yaml
from torch import nn

from .algorithms import Algorithm
from .bank.bank import BankConfig
from .bank.choose import at_size, networks_at_hand
from .calibrators import Calibrator
from .data.images.store import Limits
from .data.sources.named import SOURCES
from .data.split import LongTail
from .data.ssl_data import SSLData
from .errors import OptionError, UserError, check_choice, option_prefix
from .models import Backbone, Concat, Identity, Timm
from .models.concat import network_class
from .selectors import Selector
from .training.config import TrainConfig, TrainOptions, config_yaml
from .training.presets import PAPER_REFRESH, PRESETS, method_options, preset_options
from .utils.serialization import PACKAGE, Trust, check_trusted, import_class
from .utils.suggest import did_you_mean

PARTS: dict[str, type] = {"model": Backbone, "algorithm": Algorithm, "calibrator": Calibrator, "selector": Selector}
DEFAULTS = {"algorithm": "FixMatch", "calibrator": "Softmax"}
# What a user gets who names neither method nor calibrator: the lowest mean rank of results/methods/choose, and little
# to train. It has no steps, so who asks for some (or for a selector, or for more layers) gets the best with steps.
BEST_ON_BANKS: dict[str, Any] = {"algorithm": "SelfTraining", "calibrator": "Softmax"}
BEST_IN_STEPS: dict[str, Any] = {
    "algorithm": {"class_path": "Balance", "init_args": {"base": {"class_path": "FreeMatch"}}},
    "calibrator": "Softmax",
}
FIXED = (Timm, Concat, Identity)  # networks that a bank does not train
T = TypeVar("T")


@dataclass(frozen=True)
class PartConfig:
    """A class and the arguments given to it, as in config.yaml; without a class, arguments of the preset's own."""

    class_path: str | None = None  # name of a class of this package, or the import path of another one
    init_args: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Any) -> PartConfig:
        """From a name, a class, or a mapping with class_path and init_args."""
        if isinstance(given, PartConfig):
            return given
        if isinstance(given, type):
            return cls(f"{given.__module__}.{given.__qualname__}")
        if isinstance(given, str):
            return cls(given)
        given_arguments = given.get("init_args") or {}
        if not isinstance(given_arguments, Mapping):
            raise UserError(f"init_args of {given.get('class_path')} must be names and values, got {given_arguments!r}")
        arguments = dict(given_arguments)
        for name, value in arguments.items():
            if isinstance(value, Mapping) and "class_path" in value:
                arguments[name] = cls.of(value)
        return cls(given.get("class_path"), arguments)

    @property
    def path(self) -> str:
        """The import path of the class."""
        name = str(self.class_path)
        return name if "." in name else f"vcc_infuse.{name}"

    def check_trusted(self, trust_code: Trust) -> None:
        """Refuse a class of another package, here or among the arguments, before anything is imported."""
        if self.class_path is not None:
            check_trusted(self.path, trust_code)
        for value in self.init_args.values():
            if isinstance(value, PartConfig):
                value.check_trusted(trust_code)

    def kind(self, option: str = "") -> type[Any]:
        """The class; a name that this package does not have is refused with the nearest one."""
        package = import_module(PACKAGE)
        base = PARTS.get(option, object)
        if option and "." not in str(self.class_path) and not hasattr(package, str(self.class_path)):
            found = [(name, getattr(package, name)) for name in package.__all__]
            known = [name for name, kind in found if isinstance(kind, type) and issubclass(kind, base)]
            hint = did_you_mean(str(self.class_path), known)
            if option == "model" and not hint:
                hint = f"; a network of timm is Timm('{self.class_path}'), or --model.name {self.class_path}"
            raise UserError(f"{option} {self.class_path} is unknown{hint}; `vcc-infuse list` shows all")
        kind = import_class(self.path, True)
        if not (isinstance(kind, type) and issubclass(kind, base)):
            raise OptionError(option, self.class_path, f"must be a subclass of {base.__name__}")
        return cast(type, kind)

    def with_defaults(self, **arguments: Any) -> PartConfig:
        """With arguments for what is still open."""
        given = {name: value for name, value in self.init_args.items() if value is not None}
        return replace(self, init_args={**self.init_args, **arguments, **given})

    def build(self, option: str, base: type[T]) -> T:
        """The object; an argument that the class refuses is named after `option`."""
        kind = network_class(self.kind(option), self.init_args)
        if not (isinstance(kind, type) and issubclass(kind, base)):
            raise OptionError(option, self.class_path, f"must be a subclass of {base.__name__}")
        arguments = dict(self.init_args)
        known = inspect.signature(kind).parameters
        for name, value in arguments.items():
            if name not in known and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
                raise UserError(f"{option}.{name} is not an option of {kind.__name__}{did_you_mean(name, known)}")
            if isinstance(value, PartConfig):
                arguments[name] = value.build(f"{option}.{name}", base)
        with option_prefix(option):
            return kind(**arguments)


class DataOptions(TypedDict, total=False):
    """The options of `load_ssl` as keyword arguments."""

    labels: int | None
    long_tail: LongTail | None
    include_labeled: bool | None
    root: str | None
    download: bool
    size: int | None
    mode: Literal["auto", "rgb", "gray"]
    intensity: Literal["auto", "full", "percentile"]
    cache: str | None
    flip: bool | None
    augment: str | Mapping[str, Any]
    label_file: str | None
    validation: float | Literal["none"]
    group_by: str
    limits: Limits | None


class RunOptions(DataOptions, TrainOptions, total=False):
    """Every option of a run that is not an object, by the name it has on the command line."""


@dataclass(frozen=True)
class DataConfig:
    """What is trained on; the fields are the options of `load_ssl`, which explains them."""

    data: str = "digits"
    labels: int | None = None
    long_tail: LongTail | None = None
    include_labeled: bool | None = None
    root: str | None = None
    download: bool = False
    size: int | None = None
    mode: Literal["auto", "rgb", "gray"] = "auto"
    intensity: Literal["auto", "full", "percentile"] = "auto"
    flip: bool | None = None
    augment: str | Mapping[str, Any] = "natural"
    label_file: str | None = None
    validation: float | Literal["none"] = 0.2
    group_by: str = "auto"
    limits: Limits | None = None

    def absolute(self) -> DataConfig:
        """With paths that hold in every directory."""
        data = self.data if self.data in SOURCES else str(_absolute(self.data))
        return replace(self, data=data, root=_absolute(self.root), label_file=_absolute(self.label_file))


def _absolute(path: str | None) -> str | None:
    return str(Path(path).expanduser().absolute()) if path else None


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that makes a run. What is not set is filled in by `resolve`, from the preset.

    Args:
        data: which examples and labels; or the data themselves.
        preset: auto, frozen, finetune, scratch, paper or usb.
        model: the network; the preset's if not given.
        algorithm: the semi-supervised method; FixMatch if not given.
        calibrator: how far a pseudo label is trusted; the softmax confidence if not given. With the preset frozen and
            neither given it is SelfTraining.
        selector: which unlabeled examples are trained on; all if not given.
        train: options of TrainConfig that are set.
        bank: which views are embedded with the preset frozen.
        cache: folder for decoded images and embedded views.
    """

    data: DataConfig | SSLData = field(default_factory=DataConfig)
    preset: str = "auto"
    model: PartConfig | nn.Module | None = None
    algorithm: PartConfig | Algorithm | None = None
    calibrator: PartConfig | Calibrator | None = None
    selector: PartConfig | Selector | None = None
    train: TrainOptions = field(default_factory=TrainOptions)
    bank: BankConfig = field(default_factory=BankConfig)
    cache: str | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, Any], *, trust_code: Trust = True) -> RunConfig:
        """From options named as in config.yaml. A part is an object, a class, a name, or class_path and init_args."""
        data_names = [item.name for item in fields(DataConfig)]
        train_names = [item.name for item in fields(TrainConfig)]
        known = [*PARTS, "bank", "cache", *data_names, *train_names]
        for unknown in (name for name in options if name not in known):
            raise UserError(f"{unknown} is not an option of a run{did_you_mean(str(unknown), known)}")
        parts = {name: _part(name, options.get(name), trust_code) for name in PARTS}
        data = {name: options[name] for name in data_names if name in options}
        train = {name: options[name] for name in train_names if name in options and name != "preset"}
        for name in ("root", "label_file", "cache"):
            if not isinstance(options.get(name), str | os.PathLike | None):
                raise OptionError(name, options[name], "must be a path")
        for name, kind in (("long_tail", LongTail), ("limits", Limits)):
            data |= {name: _nested(name, kind, data[name])} if data.get(name) is not None else {}
        source = data.pop("data", "digits")
        if not isinstance(source, str | os.PathLike | SSLData):
            raise OptionError("data", source, "must be a path, the name of a dataset, or SSLData")
        if isinstance(source, SSLData) and data:
            raise OptionError(next(iter(data)), next(iter(data.values())), "must be left out", "the data are loaded")
        return cls(
            data=source if isinstance(source, SSLData) else DataConfig(data=os.fspath(source), **data),
            preset=check_choice("preset", str(options.get("preset") or "auto"), PRESETS),
            train=cast(TrainOptions, train),
            bank=_nested("bank", BankConfig, options.get("bank") or {}),
            cache=options.get("cache"),
            **parts,
        )

    @classmethod
    def from_yaml(cls, text: str, *, trust_code: Trust = False) -> RunConfig:
        """From the text of a config.yaml; classes of other packages only if `trust_code` allows them."""
        try:
            options = yaml.safe_load(text) or {}
        except yaml.YAMLError as fault:
            raise UserError(f"the configuration cannot be read: {' '.join(str(fault).split())}") from fault
        if not isinstance(options, dict):
            raise UserError(f"the configuration must hold options, one `name: value` per line, got {text[:80]!r}")
        return cls.from_options(options, trust_code=trust_code)

    def to_yaml(self) -> str:
        """The text of config.yaml, which repeats the run if this is what `resolve` returned."""
        if isinstance(self.data, SSLData):
            dataset = self.data.dataset.images
            data = {"data": dataset.name, "flip": dataset.flip, "augment": dataset.augment}
        else:
            data = {**asdict(self.data.absolute()), "cache": _absolute(self.cache)}
        parts = {name: self.build(name) for name in PARTS}
        return config_yaml({"preset": self.preset, **data}, parts, self.train_config(), self.bank)

    def build(self, name: str) -> Any:
        """The model, algorithm, calibrator or selector; None if there is none."""
        part = getattr(self, name)
        if isinstance(part, PartConfig):
            return part.build(name, PARTS[name])
        return _checked(name, part)

    def train_config(self) -> TrainConfig:
        """The options of training, checked."""
        return TrainConfig().updated(**self.train, preset=self.preset)


def _checked(name: str, part: Any) -> Any:
    """An object of the right type, or None."""
    base = nn.Module if name == "model" else PARTS[name]  # any network can be trained
    if part is not None and not isinstance(part, base):
        raise OptionError(name, part, f"must be of type {base.__name__}, a class, or the name of one")
    return part


def _part(name: str, given: Any, trust_code: Trust) -> Any:
    """An object as it is; a class or its description as a PartConfig of trusted classes."""
    if not isinstance(given, str | type | Mapping | PartConfig):
        return _checked(name, given)
    part = PartConfig.of(given)
    part.check_trusted(trust_code)
    return part


def _nested(name: str, kind: Any, value: Any) -> Any:
    """A group of options as its dataclass."""
    if isinstance(value, kind):
        return value
    known = inspect.signature(kind).parameters
    if not isinstance(value, Mapping):
        raise OptionError(name, value, f"must be options: {', '.join(known)}")
    for unknown in (item for item in value if item not in known):
        raise UserError(f"{name}.{unknown} is not an option of {name}{did_you_mean(str(unknown), known)}")
    with option_prefix(name):
        return kind(**value)


def resolve(config: RunConfig, preset: str) -> RunConfig:
    """Fill in what the user left open: options and network of the preset, and its protocol for the chosen method."""
    source = "" if isinstance(config.data, SSLData) else config.data.data
    options = dict(preset_options(preset, source))
    model = _filled(config.model, PartConfig.of(options.pop("model")))
    defaults = default_parts(config, preset)
    algorithm = _filled(config.algorithm, PartConfig.of(defaults["algorithm"]))
    calibrator = _filled(config.calibrator, PartConfig.of(defaults["calibrator"]))
    selector = config.selector
    if preset == "paper":
        options["unlabeled_ratio"] = _unlabeled_ratio(algorithm)
        if isinstance(selector, PartConfig) and "every" in selector.kind("selector").option_names():
            selector = selector.with_defaults(every=PAPER_REFRESH)
    if preset == "finetune":
        options["lazy"] = _lazy(algorithm)  # with frozen statistics of BatchNorm the same gradient in less time
    if isinstance(algorithm, PartConfig):
        algorithm = _protocol(algorithm, preset, source)
    parts = {"model": model, "algorithm": algorithm, "calibrator": calibrator, "selector": selector}
    return replace(config, preset=preset, train=cast(TrainOptions, {**options, **config.train}), **parts)


def default_parts(config: RunConfig, preset: str) -> Mapping[str, Any]:
    """A method that is named is trained as it was published; nothing named, on a bank, gets the best that we know."""
    unnamed = config.algorithm is None and config.calibrator is None
    if not unnamed or preset != "frozen":
        return DEFAULTS
    return BEST_IN_STEPS if _asks_for_steps(config) else BEST_ON_BANKS


def _asks_for_steps(config: RunConfig) -> bool:
    """Whether something is set that only a method with training steps can follow."""
    model = config.model
    named = model if not isinstance(model, PartConfig) or model.class_path is not None else None
    kind = named.kind("model") if isinstance(named, PartConfig) else type(named)
    layers = config.bank.head != "linear" or (named is not None and not issubclass(kind, FIXED))
    return config.selector is not None or layers or bool({"steps", "open_set"} & config.train.keys())


def _filled(given: Any, default: PartConfig) -> Any:
    """What the user gave; the preset's class where none was named."""
    if given is None:
        return default
    if isinstance(given, PartConfig) and given.class_path is None:
        return PartConfig(default.class_path, {**default.init_args, **given.init_args})
    return given


def _unlabeled_ratio(algorithm: Any) -> int:
    """The ratio that a method was published with; for a wrapper it is that of its base."""
    if not isinstance(algorithm, PartConfig):
        return int(algorithm.unlabeled_ratio)
    base = algorithm.init_args.get("base")
    return int(algorithm.kind("algorithm").unlabeled_ratio) if base is None else _unlabeled_ratio(base)


def _lazy(algorithm: Any) -> bool:
    """Whether a method needs strong views only of rows whose pseudo label counts; a wrapper, if its base does so."""
    if not isinstance(algorithm, PartConfig):
        return bool(algorithm.lazy_strong)
    base = algorithm.init_args.get("base")
    return bool(algorithm.kind("algorithm").lazy_strong) and (base is None or _lazy(base))


def _protocol(algorithm: PartConfig, preset: str, source: str) -> PartConfig:
    """Arguments that the authors of a protocol chose for a method and dataset, also for the base of a wrapper."""
    base = algorithm.init_args.get("base")
    if isinstance(base, PartConfig):
        algorithm = replace(algorithm, init_args={**algorithm.init_args, "base": _protocol(base, preset, source)})
    return algorithm.with_defaults(**method_options(preset, source, algorithm.kind("algorithm").__name__))


def pretrained_networks(config: RunConfig, model: nn.Module | None) -> list[Timm | Concat]:
    """The pretrained networks to choose from: the user's, else those at hand, at the size given; none for other models.

    `model` is what the configuration describes, if it describes one.
    """
    if config.preset not in ("auto", "frozen"):
        return [model] if isinstance(model, Timm | Concat) else [Timm()] if config.preset == "finetune" else []
    given = config.model.init_args if isinstance(config.model, PartConfig) else {}
    named = model is not None and (not isinstance(config.model, PartConfig) or given.keys() - {"input_size"})
    if named or not isinstance(model, Timm | Concat | None):
        return [model] if isinstance(model, Timm | Concat) else []
    size = given.get("input_size")
    return [network if size is None else at_size(network, size) for network in networks_at_hand()]

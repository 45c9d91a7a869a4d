"""RunConfig: every option of a run, typed, to and from YAML; and how a preset fills in what is left open."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, cast

import yaml
from torch import nn

from .algorithms import Algorithm
from .bank.bank import BankConfig
from .calibrators import Calibrator
from .data.images.store import Limits
from .data.sources.named import SOURCES
from .data.split import LongTail
from .data.ssl_data import SSLData
from .errors import OptionError, UserError, option_prefix
from .models import Backbone
from .selectors import Selector
from .training.config import TrainConfig, TrainOptions, config_yaml
from .training.presets import PAPER_REFRESH, method_options, preset_options
from .utils.serialization import Trust, check_trusted, import_class
from .utils.suggest import did_you_mean

PARTS: dict[str, type] = {"model": Backbone, "algorithm": Algorithm, "calibrator": Calibrator, "selector": Selector}
DEFAULTS = {"algorithm": "FixMatch", "calibrator": "Softmax"}
T = TypeVar("T")


@dataclass(frozen=True)
class PartConfig:
    """A class and the arguments given to it, as in config.yaml. Without a class: arguments of the preset's own class.

    Args:
        class_path: name of a class of this package, or the import path of another one.
        init_args: arguments of its constructor; what is left out is decided by the preset or the class.
    """

    class_path: str | None = None
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
        arguments = given.get("init_args") or {}
        nested = {name: cls.of(value) if _names_class(value) else value for name, value in arguments.items()}
        return cls(given.get("class_path"), nested)

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

    def kind(self) -> type[Any]:
        """The class."""
        return cast(type, import_class(self.path, True))

    def with_defaults(self, **arguments: Any) -> PartConfig:
        """With arguments for what is still open."""
        given = {name: value for name, value in self.init_args.items() if value is not None}
        return replace(self, init_args={**self.init_args, **arguments, **given})

    def build(self, option: str, base: type[T]) -> T:
        """The object; an argument that the class refuses is named after `option`."""
        kind = self.kind()
        if not (isinstance(kind, type) and issubclass(kind, base)):
            raise OptionError(option, self.class_path, f"must be a {base.__name__}")
        arguments = dict(self.init_args)
        for name, value in arguments.items():
            if isinstance(value, PartConfig):
                arguments[name] = value.build(f"{option}.{name}", base)
        with option_prefix(option):
            return kind(**arguments)


def _names_class(value: Any) -> bool:
    return isinstance(value, PartConfig) or (isinstance(value, Mapping) and "class_path" in value)


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
    limits: Limits | None


class RunOptions(DataOptions, TrainOptions, total=False):
    """Every option of a run that is no object, by the name it has on the command line."""


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
    limits: Limits | None = None

    def options(self) -> dict[str, Any]:
        """As keyword arguments of `load_ssl`."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def absolute(self) -> DataConfig:
        """With paths that hold in every directory."""
        paths = {name: getattr(self, name) for name in ("root", "label_file")}
        paths["data"] = None if self.data in SOURCES else self.data
        known: dict[str, Any] = {name: str(Path(path).expanduser().absolute()) for name, path in paths.items() if path}
        return replace(self, **known)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that makes a run. What is not set is filled in by `resolve`, from the preset.

    Args:
        data: which examples and labels; or the data themselves.
        preset: auto, frozen, finetune, scratch, paper or usb.
        model: the network; the preset's if not given.
        algorithm: the semi-supervised method; FixMatch if not given.
        calibrator: how far a pseudo label is trusted; the softmax confidence if not given.
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
        """From options named as in config.yaml. A part is an object, a class, a name, or class_path and init_args.

        Args:
            options: what is set; everything else is left to the preset.
            trust_code: whether classes of other packages are imported.
        """
        rest = dict(options)
        preset = str(rest.pop("preset", None) or "auto")
        parts = {name: _part(rest.pop(name, None)) for name in PARTS}
        bank = rest.pop("bank", None)
        cache = rest.pop("cache", None)
        data = _take(rest, DataConfig)
        train = _take(rest, TrainConfig)
        if rest:
            known = [
                *PARTS,
                "bank",
                "cache",
                *(item.name for kind in (DataConfig, TrainConfig) for item in fields(kind)),
            ]
            unknown = next(iter(rest))
            raise UserError(f"{unknown} is not an option of a run{did_you_mean(unknown, known)}")
        source = data.pop("data", "digits")
        if isinstance(source, SSLData) and data:
            raise OptionError(next(iter(data)), next(iter(data.values())), "must be left out", "the data are loaded")
        with option_prefix("long_tail"):
            data = _nested(data, "long_tail", LongTail)
        with option_prefix("limits"):
            data = _nested(data, "limits", Limits)
        with option_prefix("bank"):
            bank = bank if isinstance(bank, BankConfig) else BankConfig(**(bank or {}))
        loaded = source if isinstance(source, SSLData) else DataConfig(data=os.fspath(source), **data)
        for part in parts.values():
            if isinstance(part, PartConfig):
                part.check_trusted(trust_code)
        return cls(data=loaded, preset=preset, **parts, train=cast(TrainOptions, train), bank=bank, cache=cache)

    @classmethod
    def from_yaml(cls, text: str, *, trust_code: Trust = False) -> RunConfig:
        """From the text of a config.yaml; classes of other packages only if `trust_code` allows them."""
        return cls.from_options(yaml.safe_load(text) or {}, trust_code=trust_code)

    def to_yaml(self) -> str:
        """The text of config.yaml, which repeats the run if this is what `resolve` returned."""
        parts = {name: self.build(name) for name in PARTS}
        return config_yaml(
            {"preset": self.preset, **self._data()}, parts, TrainConfig().updated(**self.train), self.bank
        )

    def _data(self) -> dict[str, Any]:
        if isinstance(self.data, SSLData):
            dataset = self.data.dataset.images
            return {"data": dataset.name, "flip": dataset.flip, "augment": dataset.augment}
        cache = str(Path(self.cache).expanduser().absolute()) if self.cache else None
        return {**asdict(self.data.absolute()), "cache": cache}

    def build(self, name: str) -> Any:
        """The model, algorithm, calibrator or selector; None if there is none."""
        part = getattr(self, name)
        return part.build(name, PARTS[name]) if isinstance(part, PartConfig) else part

    def train_config(self) -> TrainConfig:
        """The options of training, checked."""
        return TrainConfig().updated(**self.train, preset=self.preset)


def _part(given: Any) -> Any:
    return PartConfig.of(given) if isinstance(given, str | type | Mapping) else given


def _take(options: dict[str, Any], kind: type) -> dict[str, Any]:
    """Remove and return the options that are fields of a dataclass."""
    return {item.name: options.pop(item.name) for item in fields(kind) if item.name in options}


def _nested(options: dict[str, Any], name: str, kind: type) -> dict[str, Any]:
    value = options.get(name)
    return {**options, name: kind(**value)} if isinstance(value, Mapping) else options


def resolve(config: RunConfig, preset: str) -> RunConfig:
    """Fill in what the user left open: options and network of the preset, and its protocol for the chosen method."""
    source = "" if isinstance(config.data, SSLData) else config.data.data
    options = dict(preset_options(preset, source))
    model = _filled(config.model, PartConfig.of(options.pop("model")))
    algorithm = _filled(config.algorithm, PartConfig(DEFAULTS["algorithm"]))
    calibrator = _filled(config.calibrator, PartConfig(DEFAULTS["calibrator"]))
    selector = config.selector
    if preset == "paper":
        method = algorithm.kind() if isinstance(algorithm, PartConfig) else algorithm
        options["unlabeled_ratio"] = method.unlabeled_ratio
        if isinstance(selector, PartConfig) and "every" in selector.kind().option_names():
            selector = selector.with_defaults(every=PAPER_REFRESH)
    if isinstance(algorithm, PartConfig):
        algorithm = _protocol(algorithm, preset, source)
    train = cast(TrainOptions, {**options, **config.train})
    return replace(
        config, preset=preset, model=model, algorithm=algorithm, calibrator=calibrator, selector=selector, train=train
    )


def _filled(given: Any, default: PartConfig) -> Any:
    """What the user gave; the preset's class where none was named."""
    if given is None:
        return default
    if isinstance(given, PartConfig) and given.class_path is None:
        return PartConfig(default.class_path, {**default.init_args, **given.init_args})
    return given


def _protocol(algorithm: PartConfig, preset: str, source: str) -> PartConfig:
    """Arguments that the authors of a protocol chose for a method and dataset, also for the base of a wrapper."""
    base = algorithm.init_args.get("base")
    if isinstance(base, PartConfig):
        algorithm = replace(algorithm, init_args={**algorithm.init_args, "base": _protocol(base, preset, source)})
    return algorithm.with_defaults(**method_options(preset, source, algorithm.kind().__name__))

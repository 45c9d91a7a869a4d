"""RunConfig: what a run is made of, to and from YAML, and how a preset fills in what is left open."""

import inspect
from dataclasses import fields, replace
from typing import get_type_hints

import pytest
import yaml

from vcc_infuse import (
    ABC,
    DARP,
    INFUSE,
    BankConfig,
    FixMatch,
    FlexMatch,
    FreeMatch,
    MixMatch,
    OptionError,
    SimMatch,
    SmallConv,
    SSLData,
    UserError,
    WideResNet,
    load_ssl,
)
from vcc_infuse.data.images.store import Limits
from vcc_infuse.data.split import LongTail
from vcc_infuse.run_config import DataConfig, DataOptions, PartConfig, RunConfig, RunOptions, resolve
from vcc_infuse.training.config import TrainConfig, TrainOptions, check_lazy
from vcc_infuse.training.presets import PAPER_REFRESH, PRESETS, preset_options

FIXED = [preset for preset in PRESETS if preset != "auto"]
STRICT = {"class_path": "FixMatch", "init_args": {"threshold": 3}}


def again(config):
    return RunConfig.from_yaml(config.to_yaml())


def as_written(config):
    return yaml.safe_load(config.to_yaml())


@pytest.mark.parametrize("preset", FIXED)
def test_the_yaml_of_a_preset_repeats_it(preset):
    config = resolve(RunConfig.from_options({"data": "svhn", "labels": 40, "seed": 7}), preset)
    read = again(config)
    assert read.preset == preset
    assert as_written(read) == as_written(config)
    assert read.train_config() == config.train_config()
    assert read.train_config() == TrainConfig(
        **{name: value for name, value in preset_options(preset, "svhn").items() if name != "model"},
        **({"unlabeled_ratio": FixMatch.unlabeled_ratio} if preset == "paper" else {}),
        **({"lazy": True} if preset == "finetune" else {}),
        preset=preset,
        seed=7,
    )
    assert resolve(read, preset).to_yaml() == config.to_yaml()


def test_the_yaml_of_objects_repeats_them():
    config = RunConfig(
        data=DataConfig("digits", long_tail=LongTail(first=20, gamma=5.0), limits=Limits(depth=3)),
        preset="scratch",
        model=WideResNet(depth=10, width=1),
        algorithm=ABC(base=FlexMatch(threshold=0.8)),
        selector=INFUSE(keep=0.3, every=7),
        train={"steps": 9, "lr": 0.5},
        bank=BankConfig(weak=1, head="mlp"),
        cache="/tmp/cache",
    )
    read = again(resolve(config, "scratch"))
    assert read.data == config.data
    assert read.bank == config.bank
    assert read.cache == "/tmp/cache"
    assert read.train["steps"] == 9
    algorithm = read.build("algorithm")
    assert (type(algorithm), type(algorithm.base), algorithm.base.threshold) == (ABC, FlexMatch, 0.8)
    selector = read.build("selector")
    assert (selector.keep, selector.every) == (0.3, 7)
    assert as_written(again(read)) == as_written(read)


def test_a_part_is_an_object_a_class_a_name_or_a_description():
    method = FixMatch(threshold=0.7)
    described = {"class_path": "vcc_infuse.FixMatch", "init_args": {"threshold": 0.7}}
    for given in (method, described, PartConfig("FixMatch", {"threshold": 0.7})):
        built = RunConfig.from_options({"algorithm": given}).build("algorithm")
        assert (type(built), built.threshold) == (FixMatch, 0.7)
    for given in (FixMatch, "FixMatch", "vcc_infuse.FixMatch"):
        assert type(RunConfig.from_options({"algorithm": given}).build("algorithm")) is FixMatch
    assert RunConfig.from_options({"algorithm": method}).algorithm is method


def test_yaml_from_elsewhere_imports_no_foreign_class():
    text = "algorithm: {class_path: ABC, init_args: {base: {class_path: elsewhere.Method}}}"
    with pytest.raises(UserError, match="elsewhere.Method"):
        RunConfig.from_yaml(text)


def test_the_keyword_arguments_are_the_fields():
    assert get_type_hints(TrainOptions) == {
        name: kind for name, kind in get_type_hints(TrainConfig).items() if name != "preset"
    }
    hints = get_type_hints(load_ssl)
    known = {name: hints[name] for name in get_type_hints(DataOptions)}
    assert get_type_hints(DataOptions) == known
    others = {"data", "seed", "all_labels", "progress"}
    assert set(inspect.signature(load_ssl).parameters) - others == set(known)
    assert get_type_hints(RunOptions) == get_type_hints(DataOptions) | get_type_hints(TrainOptions)
    assert {item.name for item in fields(DataConfig)} == {"data", *known} - {"cache"}
    defaults = {name: item.default for name, item in inspect.signature(load_ssl).parameters.items()}
    assert vars(DataConfig()) == {item.name: defaults[item.name] for item in fields(DataConfig)}


def test_resolving_changes_nothing_that_it_was_given():
    part = {"class_path": "MixMatch", "init_args": {"alpha": 0.6}}
    config = RunConfig.from_options({"data": "svhn", "algorithm": part, "lr": 0.5})
    before = repr(config)
    resolved = resolve(config, "paper")
    assert repr(config) == before
    assert resolved == resolve(config, "paper")
    assert resolved.train["lr"] == 0.5  # what is given wins
    assert preset_options("paper", "svhn")["lr"] == 0.03
    assert part == {"class_path": "MixMatch", "init_args": {"alpha": 0.6}}


def test_the_paper_s_arguments_depend_on_method_and_data():
    def method(data, algorithm, preset="paper"):
        return resolve(RunConfig.from_options({"data": data, "algorithm": algorithm}), preset)

    assert method("svhn", MixMatch).build("algorithm").weight == 250
    assert method("stl10", "MixMatch").build("algorithm").weight == 50
    assert method("cifar10", "MixMatch").build("algorithm").weight == MixMatch().weight
    assert method("svhn", "MixMatch", "usb").build("algorithm").weight == 10
    assert method("svhn", "MixMatch", "scratch").build("algorithm").weight == MixMatch().weight
    chosen = {"class_path": "MixMatch", "init_args": {"weight": 3.0}}
    assert method("svhn", chosen).build("algorithm").weight == 3
    assert method("svhn", MixMatch(weight=4.0)).build("algorithm").weight == 4
    assert method("svhn", MixMatch).train["unlabeled_ratio"] == MixMatch.unlabeled_ratio == 1
    assert method("cifar100", FixMatch).build("model").width == 8


def test_a_wrapper_follows_the_protocol_of_its_base():
    base = {"class_path": "FreeMatch", "init_args": {}}
    wrapped = {"class_path": "ABC", "init_args": {"base": base}}
    config = resolve(RunConfig.from_options({"data": "svhn", "algorithm": wrapped}), "paper")
    inner = config.build("algorithm").base
    assert (inner.min_threshold, inner.max_threshold) == (0.9, 0.95)
    assert config.train["unlabeled_ratio"] == inner.unlabeled_ratio
    mixed = {"class_path": "ABC", "init_args": {"base": PartConfig("MixMatch")}}
    assert resolve(RunConfig.from_options({"algorithm": mixed}), "paper").train["unlabeled_ratio"] == 1


def test_the_paper_refreshes_its_core_set_every_40_epochs():
    def every(selector, preset):
        return resolve(RunConfig.from_options({"selector": selector}), preset).build("selector").every

    assert every("INFUSE", "paper") == PAPER_REFRESH == 40 * 1024
    assert every({"class_path": "INFUSE", "init_args": {"every": 5}}, "paper") == 5
    assert every({"class_path": "INFUSE", "init_args": {"every": None}}, "paper") == PAPER_REFRESH
    assert every("INFUSE", "scratch") == INFUSE().every
    assert resolve(RunConfig.from_options({"selector": "EarlyStop"}), "paper").build("selector") is not None


def test_arguments_without_a_class_are_those_of_the_preset_s_network():
    config = RunConfig.from_options({"model": {"init_args": {"input_size": 64}}})
    model = resolve(config, "frozen").build("model")
    assert (type(model).__name__, model.input_size) == ("Timm", 64)
    assert resolve(RunConfig.from_options({"model": {"init_args": {"depth": 10}}}), "paper").build("model").depth == 10


def test_paths_in_the_yaml_hold_in_every_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"data": "photos", "label_file": "labels.csv", "root": "~/data", "cache": "kept"}
    written = as_written(resolve(RunConfig.from_options(given), "scratch"))
    assert written["data"] == str(tmp_path / "photos")
    assert written["label_file"] == str(tmp_path / "labels.csv")
    assert written["cache"] == str(tmp_path / "kept")
    assert written["root"].startswith("/")
    assert as_written(resolve(RunConfig(), "scratch"))["data"] == "digits"


def test_loaded_data_leave_their_name(digits):
    written = as_written(resolve(RunConfig(data=digits), "scratch"))
    assert written["data"] == "digits"
    assert "labels" not in written


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stepz": 3}, r"stepz is not an option of a run; did you mean steps\?"),
        ({"bank": {"weak": 0}}, "bank.weak must be an integer of at least 1, got 0"),
        ({"limits": {"depth": 0}}, "limits.depth must be an integer of at least 1, got 0"),
    ],
)
def test_a_wrong_option_is_one_line(options, message):
    with pytest.raises(UserError, match=message) as caught:
        RunConfig.from_options(options)
    assert "\n" not in str(caught.value)


def test_options_of_loading_are_refused_beside_loaded_data(digits):
    assert isinstance(digits, SSLData)
    with pytest.raises(OptionError, match="^labels must be left out, got 10; the data are loaded$"):
        RunConfig.from_options({"data": digits, "labels": 10})


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("algorithm", "INFUSE", "algorithm must be a subclass of Algorithm, got 'INFUSE'"),
        ("model", FixMatch, "model must be a subclass of Backbone, got"),
        (
            "algorithm",
            {"class_path": "FixMatch", "init_args": {"threshold": 3}},
            "algorithm.threshold must be a number",
        ),
        (
            "algorithm",
            {"class_path": "ABC", "init_args": {"base": {"class_path": "FixMatch", "init_args": {"threshold": 3}}}},
            "algorithm.base.threshold must be a number",
        ),
        ("selector", "SmallConv", "selector must be a subclass of Selector, got 'SmallConv'"),
    ],
)
def test_a_wrong_class_or_argument_is_one_line(name, given, message):
    config = RunConfig.from_options({name: given})
    with pytest.raises(UserError, match=message) as caught:
        config.build(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "name", "hint"),
    [
        ("algorithm", "FixMach", r"; did you mean FixMatch"),
        ("model", "SmalConv", r"; did you mean SmallConv\?"),
        ("model", "resnet18", r"; a network of timm is Timm\('resnet18'\), or --model.name resnet18"),
    ],
)
def test_an_unknown_class_is_named_with_what_fits_in_its_place(option, name, hint):
    with pytest.raises(UserError, match=f"^{option} {name} is unknown{hint}"):
        RunConfig.from_options({option: name}).build(option)


def test_a_network_of_another_library_is_kept():
    network = SmallConv()
    config = replace(RunConfig(), model=network)
    assert resolve(config, "finetune").build("model") is network


@pytest.mark.parametrize(
    ("options", "preset", "parts"),
    [
        ({}, "frozen", ("SelfTraining", "Softmax")),
        ({"model": {"init_args": {"input_size": 96}}}, "frozen", ("SelfTraining", "Softmax")),
        ({"steps": 100}, "frozen", ("Balance", "Softmax")),  # who asks for steps gets a method that has some
        ({"selector": "INFUSE"}, "frozen", ("Balance", "Softmax")),
        ({"model": "MLP"}, "frozen", ("Balance", "Softmax")),
        ({}, "scratch", ("FixMatch", "Softmax")),
        ({}, "finetune", ("FixMatch", "Softmax")),
        ({"algorithm": "FixMatch"}, "frozen", ("FixMatch", "Softmax")),  # a method that is named is the published one
        ({"algorithm": "FlexMatch"}, "frozen", ("FlexMatch", "Softmax")),
        ({"calibrator": "Softmax"}, "frozen", ("FixMatch", "Softmax")),
        ({"calibrator": "VCC"}, "frozen", ("FixMatch", "VCC")),
    ],
)
def test_nothing_named_on_a_bank_gets_the_best_method(options, preset, parts):
    resolved = resolve(RunConfig.from_options(options), preset)
    again = resolve(RunConfig.from_yaml(resolved.to_yaml()), preset)
    for config in (resolved, again):
        assert tuple(type(config.build(name)).__name__ for name in ("algorithm", "calibrator")) == parts
        assert type(getattr(config.build("algorithm"), "base", FreeMatch())) is FreeMatch


@pytest.mark.parametrize(
    ("algorithm", "lazy"),
    [
        (None, True),
        ("FlexMatch", True),
        ("CoMatch", False),
        ("Supervised", False),
        ({"class_path": "DARP", "init_args": {"base": {"class_path": "FlexMatch"}}}, True),
        ({"class_path": "DARP", "init_args": {"base": {"class_path": "SimMatch"}}}, False),
        (DARP(base=SimMatch()), False),
        (FixMatch(), True),
    ],
    ids=str,
)
def test_fine_tuning_computes_strong_views_where_they_count(algorithm, lazy):
    config = resolve(RunConfig.from_options({"algorithm": algorithm}), "finetune")
    assert config.train_config().lazy == lazy
    check_lazy(config.build("algorithm"), config.train_config().lazy)
    assert not resolve(replace(config, train={"lazy": False}), "finetune").train_config().lazy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({0: 1}, "0 is not an option of a run"),
        ({"bank": {"weak": 1, 3: 2}}, "bank.3 is not an option of bank"),
        ({"bank": {"week": 1}}, "bank.week is not an option of bank; did you mean weak?"),
        ({"bank": [1]}, r"bank must be options: weak, .*got \[1\]"),
        ({"limits": 3}, "limits must be options: "),
        ({"root": [None]}, r"root must be a path, got \[None\]"),
        ({"cache": 5}, "cache must be a path, got 5"),
        ({"selector": {"class_path": "Random", "init_args": True}}, "init_args of Random must be names and values"),
        ({"algorithm": -1}, "algorithm must be of type Algorithm, a class, or the name of one, got -1"),
    ],
)
def test_options_of_a_wrong_kind_cost_one_line(options, message):
    with pytest.raises(UserError, match=message):
        RunConfig.from_options(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": []}, r"memory must be a size such as 4GB or 800MB, got \[\]"),
        ({"preset": "paper", "algorithm": "RETRIEVE"}, "algorithm must be a subclass of Algorithm, got 'RETRIEVE'"),
    ],
)
def test_values_of_a_wrong_kind_cost_one_line(options, message):
    config = RunConfig.from_options(options)
    with pytest.raises(UserError, match=message):
        resolve(config, config.preset if config.preset != "auto" else "scratch").to_yaml()

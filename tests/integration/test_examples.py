"""Every example runs, so do the commands and the Python code of the README, and every link leads somewhere."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vcc_infuse.cli.main import main

ROOT = Path(__file__).parents[2]
SHORT = {
    "demo.py": ["4"],
    "digits_baselines.py": ["--seeds", "1", "--steps", "2"],
    "fixmatch_vcc_one_file.py": ["4"],
    "frozen_photos.py": ["4"],
    "own_algorithm.py": ["4"],
    "own_images.py": ["4"],
    "own_loop.py": ["4"],
    "own_table.py": ["4"],
    "sklearn_digits.py": ["4"],
    "text_embeddings.py": ["4"],
    "use_the_model.py": ["4"],
}


def test_every_example_is_run_here():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(SHORT)


@pytest.mark.parametrize("name", SHORT)
def test_example_runs(name, tmp_path):
    command = [sys.executable, str(ROOT / "examples" / name), *SHORT[name]]
    finished = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300, env=dict(os.environ))
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert finished.stdout.strip()


def code_blocks(text, language=""):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.S | re.M)


def make_photos(folder):
    """The layout that the README shows, filled by examples/own_images.py."""
    spec = importlib.util.spec_from_file_location("own_images", ROOT / "examples" / "own_images.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.make_folder(folder / "photos", unlabeled=30)


def test_the_readmes_commands_work(tmp_path, monkeypatch):
    """As printed but for the length of the training."""
    make_photos(tmp_path)
    shutil.copytree(tmp_path / "photos" / "unlabeled", tmp_path / "new_images")
    shutil.make_archive(str(tmp_path / "archive"), "zip", tmp_path / "new_images")
    monkeypatch.chdir(tmp_path)
    lines = "".join(code_blocks((ROOT / "README.md").read_text())).splitlines()
    commands = [line.partition("#")[0] for line in lines if line.startswith("vcc-infuse ")]
    assert [command.split()[1] for command in commands] == ["train", "predict", "select"]
    for command in commands:
        short = " --steps 5 --batch_size 4 --device cpu" if " train " in command else ""
        assert main(shlex.split(command + short)[1:]) == 0
    for file in ("runs/photos/report.html", "labels.csv", "core.csv"):
        assert (tmp_path / file).stat().st_size > 0


def test_the_readmes_python_works(capsys):
    (code,) = code_blocks((ROOT / "README.md").read_text(), "python")
    exec(code.replace("steps=200", "steps=4"), {})
    error, ece = map(float, capsys.readouterr().out.split()[-2:])
    assert 0 <= error <= 1
    assert 0 <= ece <= 1


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

"""Every example runs, and so does the Python code of the README."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHORT = {
    "digits_baselines.py": ["--seeds", "1", "--steps", "2"],
    "fixmatch_vcc_one_file.py": ["4"],
    "own_algorithm.py": ["4"],
    "own_images.py": ["4"],
    "own_loop.py": ["4"],
    "sklearn_digits.py": ["4"],
}


def test_every_example_is_run_here():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(SHORT)


@pytest.mark.parametrize("name", SHORT)
def test_example_runs(name, tmp_path):
    command = [sys.executable, str(ROOT / "examples" / name), *SHORT[name]]
    finished = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300, env=dict(os.environ))
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert finished.stdout.strip()


def test_the_readmes_python_works(capsys):
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    exec(code.replace("steps=200", "steps=4"), {})
    error, ece = map(float, capsys.readouterr().out.split()[-2:])
    assert 0 <= error <= 1
    assert 0 <= ece <= 1

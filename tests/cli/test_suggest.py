"""suggest through the command line, before any label and on a run."""

import csv

import numpy as np
import pytest
from PIL import Image

from vcc_infuse.cli.main import main

NETWORK = ["--model.name", "test_resnet", "--model.weights", "none", "--model.input_size", "32"]


def table(path):
    with open(path, newline="") as handle:
        return list(csv.DictReader(handle))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Three colors of 20, 12 and 6 images, one of them there twice, and a file that is no image."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name, channel, count in (("red", 0, 20), ("green", 1, 12), ("blue", 2, 6)):
        for number in range(count):
            pixels = rng.integers(0, 90, (40, 40, 3), dtype=np.uint8)
            pixels[..., channel] += 150
            Image.fromarray(pixels).save(root / f"{name}{number}.png")
    (root / "broken.png").write_bytes(b"no image")
    return root


def test_without_labels_every_kind_is_suggested_the_largest_first(photos, tmp_path, capsys):
    assert main(["suggest", "--data", str(photos), "-n", "3", *NETWORK, "-o", str(tmp_path / "next.csv")]) == 0
    rows = table(tmp_path / "next.csv")
    assert list(rows[0]) == ["file", "reason", "score", "nearest_class"]
    assert [row["file"].rstrip("0123456789.png") for row in rows] == ["red", "gree", "blue"]
    assert [float(row["score"]) for row in rows] == pytest.approx([20 / 38, 12 / 38, 6 / 38], abs=1e-5)
    assert rows[0]["reason"] == "most typical of 20 similar images, none of them labeled"
    assert {row["nearest_class"] for row in rows} == {""}
    assert "3 images to label" in capsys.readouterr().out


def test_with_a_run_its_pool_is_searched(photos, tmp_path, capsys):
    lines = [f"{name}{number}.png,{name}" for name in ("red", "green") for number in range(6)]
    (tmp_path / "labels.csv").write_text("file,label\n" + "\n".join(lines) + "\n")
    words = ["--data", photos, "--label_file", tmp_path / "labels.csv", "--validation", "none", "--preset", "frozen"]
    words += ["--model", "Timm", *NETWORK, "--steps", 5, "--bank.weak", 1, "--bank.strong", 1, "--progress", "false"]
    words += ["--cache", tmp_path / "cache", "--out", tmp_path / "r"]
    assert main(["train", *map(str, words)]) == 0
    capsys.readouterr()
    assert main(["suggest", str(tmp_path / "r"), "-n", "5"]) == 0
    said = capsys.readouterr()
    rows = list(csv.DictReader(said.out.splitlines()))
    assert said.err.startswith(f"{len(rows)} image")
    labeled = {line.partition(",")[0] for line in lines}
    assert 1 <= len({row["file"] for row in rows} - labeled) == len(rows) <= 5
    assert all(row["reason"].startswith(("between ", "probably ")) for row in rows)
    assert {row["nearest_class"] for row in rows} <= {"red", "green"}
    assert all(0 <= float(row["score"]) <= 1 for row in rows)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "suggest needs images: give RUN"),
        (["--data", "missing"], "missing"),
        (["--data", "photos", "-n", "0"], "must be an integer"),
        (["--data", "photos", "--model.name", "nonsense"], "--model.name must be a network of timm"),
        (["nowhere"], "has no model.json"),
        (["--dta", "photos"], "did you mean --data"),
    ],
)
def test_mistakes_get_one_line(words, message, photos, tmp_path, capsys):
    assert main(["suggest", *(str(photos) if word == "photos" else word for word in words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line

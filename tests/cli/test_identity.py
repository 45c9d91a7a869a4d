"""A run is continued, measured and read as what it was: what has changed meanwhile is named, in one line."""

import json
import shutil

import numpy as np
import pytest
import yaml
from PIL import Image

from vcc_infuse.cli.main import main
from vcc_infuse.training.trainer import Trainer

QUICK = "--labels 12 --preset scratch --model SmallConv --model.width 4 --batch_size 4 --unlabeled_ratio 2 --steps 4 " \
    "--eval_every 2 --progress false --report false --device cpu"  # fmt: skip


def photo(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    low = 0 if path.parent.name == "cat" else 100
    Image.fromarray(np.random.default_rng(seed).integers(low, low + 150, (8, 8, 3), np.uint8)).save(path)


@pytest.fixture
def photos(tmp_path):
    for name in ("cat", "dog"):
        for i in range(25):
            photo(tmp_path / "photos" / name / f"{i:02d}.png", i)
    return tmp_path / "photos"


@pytest.fixture
def half(photos, tmp_path, monkeypatch):
    """A run that was stopped after two of four steps."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_should_stop", lambda self, request, number: number == 1)
        assert main(f"train --data {photos} {QUICK} --out {run}".split()) == 128
    return run


@pytest.fixture
def run(half):
    assert main(["train", "--resume", str(half)]) == 0
    return half


def refused(capsys, *words):
    """What is said in one line."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said


def edit(run, **options):
    path = run / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **options}))


def test_an_edited_option_is_named_and_can_be_forced(half, capsys):
    edit(half, lr=0.5)
    assert "config: lr was 0.03, is 0.5" in refused(capsys, "train", "--resume", half)
    assert main(["train", "--resume", str(half), "--force"]) == 0
    assert "lr was 0.03, is 0.5; continuing because of --force" in capsys.readouterr().err
    assert json.loads((half / "model.json").read_text())["fingerprint"]["config"]["lr"] == 0.5
    assert main(["evaluate", str(half)]) == 0


def test_a_renamed_class_is_named(half, photos, capsys):
    (photos / "dog").rename(photos / "fox")
    assert "class 1 was 'dog', is 'fox'" in refused(capsys, "train", "--resume", half)


def test_added_and_changed_images_are_counted(half, photos, capsys):
    for i in range(3):
        photo(photos / "cat" / f"new{i}.png", 100 + i)
    photo(photos / "dog" / "00.png", 999)
    said = refused(capsys, "train", "--resume", half)
    assert "images are new" in said
    assert "gone or changed" in said
    assert main(["train", "--resume", str(half), "--force"]) == 0


def test_another_number_of_processes_is_named(half, capsys):
    for record in (half / "checkpoints").glob("*.json"):
        content = json.loads(record.read_text())
        content["fingerprint"]["processes"] = 2
        record.write_text(json.dumps(content))
    assert "processes: was 2, is 1" in refused(capsys, "train", "--resume", half)
    assert main(["train", "--resume", str(half), "--force"]) == 0


def test_data_may_move(half, photos, tmp_path):
    photos.rename(tmp_path / "elsewhere")
    edit(half, data=str(tmp_path / "elsewhere"))
    assert main(["train", "--resume", str(half)]) == 0


def test_test_images_are_those_of_the_run(run, photos, tmp_path, capsys):
    def measured():
        capsys.readouterr()
        assert main(["evaluate", str(run), "-o", str(tmp_path / "m.json"), "--overwrite"]) == 0
        return json.loads((tmp_path / "m.json").read_text()), capsys.readouterr().err

    before, said = measured()
    assert said == ""
    for i in range(3):  # the fifth of each class that is a test set is drawn anew
        photo(photos / "cat" / f"a{i}.png", 100 + i)
    after, said = measured()
    assert after == before
    assert "measured on 10 test images of the run" in said
    # another folder with the same images: its own test set would hold training images
    shutil.copytree(photos, tmp_path / "copy")
    assert "are training images of" in refused(capsys, "evaluate", run, "--data", tmp_path / "copy")


def test_missing_test_images_are_counted(run, photos, capsys):
    for path in (photos / "cat").iterdir():
        photo(path, 500 + int(path.stem))
    assert "5 of the 10 test images of" in refused(capsys, "evaluate", run)
    assert main(["evaluate", str(run), "--force"]) == 0
    assert "measured on 5 test images of the run" in capsys.readouterr().err


def test_damaged_lines_are_refused_or_left_out(half, capsys):
    lines = half / "metrics.jsonl"
    lines.write_bytes(lines.read_bytes().replace(b"1", b"7", 1))
    assert "metrics.jsonl is damaged" in refused(capsys, "train", "--resume", half)
    assert "metrics.jsonl is damaged" in refused(capsys, "report", half, "-o", half / "page.html")
    assert main(["train", "--resume", str(half), "--force"]) == 0


def test_outputs_are_not_overwritten_and_inputs_never(run, photos, tmp_path, capsys):
    image, out = photos / "cat" / "00.png", tmp_path / "out.csv"
    out.write_text("mine")
    assert "exists already; give another name, or add --overwrite" in refused(capsys, "predict", run, image, "-o", out)
    assert out.read_text() == "mine"
    for words in (["predict", run, image, "-o", image], ["evaluate", run, "-o", run / "model.json"],
                  ["report", run, "-o", run / "config.yaml"]):  # fmt: skip
        before = words[-1].read_bytes()
        refused(capsys, *words, "--overwrite")
        assert words[-1].read_bytes() == before
    assert main(["predict", str(run), str(image), "-o", str(out), "--overwrite"]) == 0
    assert out.read_text() != "mine"


def test_a_killed_calibration_can_be_repeated(run, photos, tmp_path, capsys):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".model.json.new").write_text("half")
    words = ["calibrate", str(run), "--data", str(photos), "-o", str(tmp_path / "new")]
    assert main(words) == 0
    assert main(["evaluate", str(tmp_path / "new")]) == 0
    assert "exists already" in refused(capsys, *words)
    assert main([*words, "--overwrite"]) == 0


def test_full_disks_have_advice_that_fits(run, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(28, "No space left on device", "here")

    monkeypatch.setattr("vcc_infuse.cli.evaluate.run", full)
    assert "free some space, then run the command again" in refused(capsys, "evaluate", run)
    monkeypatch.setattr("vcc_infuse.cli.train.run", full)
    assert "free some space, then continue with --resume" in refused(capsys, "train")

"""Folders as users have them: few labels, no test set. What is printed and written must not flatter."""

import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from vcc_infuse.cli.main import main
from vcc_infuse.inference.predictor import Predictor

QUICK = (
    "--steps 4 --eval_every 2 --batch_size 4 --unlabeled_ratio 2 --model SmallConv --model.width 4 "
    "--algorithm FixMatch --algorithm.threshold 0 --device cpu"
)


def picture(path, color, rng):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = rng.integers(0, 90, (12, 12, 3), dtype=np.uint8)
    pixels[2:9, 2:9, color] += 150
    Image.fromarray(pixels).save(path)


def make_photos(root, labeled=10, unlabeled=20, classes=("blue", "green", "red")):
    rng = np.random.default_rng(0)
    for number, name in enumerate(classes):
        for i in range(labeled):
            picture(root / "labeled" / name / f"{i}.png", number % 3, rng)
    for i in range(unlabeled):
        picture(root / "unlabeled" / f"{i}.png", i % 3, rng)
    return root


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return make_photos(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture(scope="module")
def run(photos, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "photos"
    assert main(f"train --data {photos} {QUICK} --out {out}".split()) == 0
    return out


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


def test_labeled_and_unlabeled_alone_are_enough(run):
    summary = summary_of(run)
    assert (summary["evaluated_on"], summary["evaluated_images"], summary["labels"]) == ("validation", 6, 24)
    assert 0 <= summary["error"] <= 1
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {line["evaluated_on"] for line in lines} == {"validation"}


def test_no_precision_and_no_top5_where_they_mean_nothing(run):
    """The only pool images with a known label are those it was trained on; three classes have no top 5."""
    figures = [json.loads((run / "metrics.jsonl").read_text().splitlines()[-1]), summary_of(run)]
    assert [named.get("pseudo_label_precision") for named in figures] == [None, None]
    assert "pseudo_label_precision" in figures[1]  # a name that scripts rely on, even where it is null
    assert not [name for named in figures for name in named if "precision_per_class" in name or "top5" in name]
    assert all(named["pseudo_label_coverage"] == 1 for named in figures)
    page = (run / "report.html").read_text()
    assert "Pseudo labels right" not in page
    assert "Pseudo labels used" in page


def test_the_screen_says_what_was_measured_on(photos, tmp_path, capsys):
    assert main(f"train --data {photos} {QUICK} --out {tmp_path}/run".split()) == 0
    shown = capsys.readouterr().out
    assert "50 images, 24 labels, 3 classes, 6 more labels kept for validation" in shown
    assert "validation error" in shown
    assert "6 labeled images kept for validation" in shown
    assert "top-5" not in shown
    assert "precision" not in shown


def test_the_report_says_so_too(run):
    page = (run / "report.html").read_text()
    assert "Validation error" in page
    assert "Test error" not in page
    assert "has no test set: its figures are taken on 6 labeled images that were kept out of training" in page
    assert "validation images, by calibrated confidence" in page or "Most confident mistakes" not in page


def test_evaluate_finds_the_same_images_again(run, capsys):
    assert main(["evaluate", str(run), "-o", str(run / "again.json")]) == 0
    assert "6 labeled images kept for validation" in capsys.readouterr().out
    again = json.loads((run / "again.json").read_text())
    assert again["evaluated_on"] == "validation"
    assert again["error"] == summary_of(run)["error"]


def test_none_trains_on_every_label_and_measures_nothing(photos, tmp_path, capsys):
    assert main(f"train --data {photos} {QUICK} --validation none --out {tmp_path}/run".split()) == 0
    summary = summary_of(tmp_path / "run")
    assert summary["evaluated_on"] is None
    assert summary["labels"] == 30
    assert not [name for name in summary if name.startswith(("error", "ece"))]
    assert "nothing: no test images" in capsys.readouterr().out
    assert "Test error" not in (tmp_path / "run" / "report.html").read_text()


def test_nothing_at_all_to_print_is_no_mistake(photos, tmp_path, capsys):
    words = f"train --data {photos} {QUICK} --validation none --algorithm Supervised --out {tmp_path}/run"
    assert main(words.replace("--algorithm.threshold 0 ", "").replace("--algorithm FixMatch ", "").split()) == 0
    assert "nothing: no test images" in capsys.readouterr().out


def test_a_test_folder_is_used_if_there_is_one(photos, tmp_path, capsys):
    shutil.copytree(photos, tmp_path / "photos")
    shutil.copytree(photos / "labeled", tmp_path / "photos" / "test")
    assert main(f"train --data {tmp_path}/photos {QUICK} --out {tmp_path}/run".split()) == 0
    summary = summary_of(tmp_path / "run")
    assert (summary["evaluated_on"], summary["evaluated_images"], summary["labels"]) == ("test", 30, 30)
    assert "30 test images" in capsys.readouterr().out
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Test error" in page
    assert "validation" not in page.split("<pre>")[0].lower()


def test_a_comparison_does_not_rank_validation_against_test(photos, run, tmp_path):
    shutil.copytree(photos, tmp_path / "photos")
    shutil.copytree(photos / "labeled", tmp_path / "photos" / "test")
    assert main(f"train --data {tmp_path}/photos {QUICK} --out {tmp_path}/tested".split()) == 0
    assert main(["report", str(run), str(tmp_path / "tested"), "-o", str(tmp_path / "both.html")]) == 0
    page = (tmp_path / "both.html").read_text()
    assert '<td data-label="measured on">validation</td>' in page
    assert '<td data-label="measured on">test</td>' in page
    assert '<td data-label="error" class="best">' not in page
    assert "Test or validation error" in page


def test_hidden_labels_do_give_a_precision(photos, tmp_path):
    """--labels hides some of the labels, which then tell how good the pseudo labels are."""
    assert main(f"train --data {photos} {QUICK} --labels 6 --out {tmp_path}/run".split()) == 0
    summary = summary_of(tmp_path / "run")
    assert 0 <= summary["pseudo_label_precision"] <= 1
    assert (summary["labels"], summary["evaluated_images"]) == (6, 6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--validation 0", "--validation must be a number in (0, 1), got 0"),
        ("--validation 1.5", "--validation must be a number in (0, 1), got 1.5"),
        ("--validation half", "--validation must be a number or one of none, got 'half'"),
        ("--validation", "--validation needs a value"),
    ],
)
def test_mistakes_cost_one_line(photos, words, message, capsys):
    assert main(f"train --data {photos} {QUICK} {words}".split()) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert len(shown.strip().splitlines()) == 1


def test_one_label_per_class_names_the_remedy(tmp_path, capsys):
    make_photos(tmp_path / "photos", labeled=1)
    assert main(f"train --data {tmp_path}/photos {QUICK}".split()) == 2
    shown = capsys.readouterr().err
    assert "--validation cannot be taken, because every class has one label" in shown
    assert "none" in shown


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Photos in one folder, one of them broken, and a CSV with 24 labels, two of them of files that are not there."""
    root, rng = tmp_path_factory.mktemp("table"), np.random.default_rng(1)
    rows = ["file,label"]
    for i in range(40):
        picture(root / "photos" / f"{i}.png", i % 3, rng)
        rows += [f"{i}.png,{('blue', 'green', 'red')[i % 3]}"] if i < 24 else []
    (root / "photos" / "broken.png").write_bytes(b"no image")
    (root / "labels.csv").write_text("\n".join([*rows, "gone.png,red", "lost.png,red", "broken.png,red"]))
    return root


def test_a_table_of_labels_trains_and_the_skipped_files_are_counted(table, tmp_path, capsys):
    words = f"train --data {table}/photos --label_file {table}/labels.csv {QUICK} --out {tmp_path}/run"
    reasons = f"2 named in labels.csv, but not in {table}/photos; 1 not an image file"
    said = re.escape(f"3 files skipped ({reasons}), listed in {tmp_path}/run/skipped.tsv; replace or remove them")
    with pytest.warns(UserWarning, match=said):
        assert main(words.split()) == 0
    shown = capsys.readouterr().out
    assert "40 images, 19 labels, 3 classes, 5 more labels kept for validation" in shown
    listed = (tmp_path / "run" / "skipped.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in listed] == ["gone.png", "lost.png", "broken.png"]
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    assert "5 labeled images kept for validation" in capsys.readouterr().out
    other = f"evaluate {tmp_path}/run --data {table} --label_file {table}/labels.csv"
    assert main(other.split()) == 2
    assert "19 of the 24 images to measure on are training images of" in capsys.readouterr().err
    assert main([*other.split(), "--force"]) == 0
    assert "24 test images" in capsys.readouterr().out


def test_a_wrong_label_file_costs_one_line(table, capsys):
    assert main(f"train --data {table}/photos --label_file {table}/label.csv {QUICK}".split()) == 2
    shown = capsys.readouterr().err
    assert "--label_file must be a CSV or JSON file with labels" in shown
    assert "did you mean" in shown
    assert len(shown.strip().splitlines()) == 1


def test_sixteen_bit_stacks_are_trained_and_predicted_in_the_same_range(tmp_path, capsys):
    """Images of four channels and 12 bits, one of them dim: prediction must not stretch it by itself."""
    tifffile, rng = pytest.importorskip("tifffile"), np.random.default_rng(0)
    for number, part in enumerate(("labeled/a", "labeled/b", "unlabeled")):
        (tmp_path / "d" / part).mkdir(parents=True)
        for i in range(4):
            stack = rng.integers(0, 1000 + 3000 * (number == 1), (12, 12, 4), dtype=np.uint16)
            tifffile.imwrite(tmp_path / "d" / part / f"{i}.tif", stack, photometric="minisblack", planarconfig="contig")
    assert main(f"train --data {tmp_path}/d {QUICK} --out {tmp_path}/run".split()) == 0
    card = json.loads((tmp_path / "run" / "model.json").read_text())
    assert (card["shape"], card["ranges"]) == ([12, 12, 4], [[0.0, 4095.0]])
    capsys.readouterr()
    alone = tmp_path / "d" / "labeled" / "a" / "0.tif"
    answers = []
    for path in (alone, alone.parent):
        assert main(["predict", str(tmp_path / "run"), str(path)]) == 0
        answers.append(capsys.readouterr().out.splitlines()[1].partition(",")[2])
    assert answers[0] == answers[1]
    loaded = Predictor.load(tmp_path / "run")
    pixels = tifffile.imread(alone)
    assert f"{loaded.predict(pixels).probs[0, 0]:.6f}" in answers[0]
    assert main(["evaluate", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize("words", ["--intensity most", "--intensity"])
def test_an_unknown_intensity_costs_one_line(photos, words, capsys):
    assert main(f"train --data {photos} {QUICK} {words}".split()) == 2
    shown = capsys.readouterr().err
    assert "--intensity" in shown
    assert len(shown.strip().splitlines()) == 1

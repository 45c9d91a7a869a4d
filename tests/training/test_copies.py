"""Near copies among the labels of a bank: grouped, kept on one side, and what a naive split would have claimed."""

import json
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import vcc_infuse
from vcc_infuse import Evidence, FixMatch, SSLData
from vcc_infuse.data.dataset import Examples
from vcc_infuse.models import Timm
from vcc_infuse.training import copies
from vcc_infuse.training import cross_fit as module
from vcc_infuse.training.copies import keep_together
from vcc_infuse.training.hand_out import about_naive

OPTIONS = dict(preset="frozen", steps=8, batch_size=8, eval_every=8, cross_fit=True, progress=False, precision="fp32")


def burst(copies, images=24, seed=0):
    """Pictures without a class in them: labels at random, each picture `copies` times with a little noise."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 255, (images, 4, 4, 3)).repeat(copies, 0).repeat(8, 1).repeat(8, 2)
    noise = rng.normal(0, 2, base.shape) * (np.arange(len(base)) % copies > 0)[:, None, None, None]
    x = np.clip(base + noise, 0, 255).astype(np.uint8)
    y = rng.permutation(np.arange(images) % 2).repeat(copies)
    return x, y, np.arange(images).repeat(copies)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(module, "FEWEST_STEPS", 4)


def train(x, y, **options):
    data = SSLData.from_arrays(x, y, classes=("a", "b"), validation=0.25)
    network = Timm("test_resnet", "none", 32)
    return vcc_infuse.train(data, model=network, algorithm="FixMatch", **{**OPTIONS, **options})


def test_copies_stay_on_one_side_and_the_summary_says_what_was_avoided(short, tmp_path):
    x, y, _ = burst(3)
    result = train(x, y, cache=str(tmp_path))
    figures = result.summary["cross_validated"]
    honest = figures["probe"]["error"]
    assert figures["grouped_labels"] == figures["labels"]
    assert figures["naive_error"] <= 0.15  # copies give the answer away
    assert honest >= 0.3  # labels at random
    assert result.summary["error"] >= 0.3  # so do validation images


def test_runs_without_copies_are_as_before(short, tmp_path):
    x, y, _ = burst(1, images=40)
    figures = train(x, y, cache=str(tmp_path)).summary["cross_validated"]
    assert "naive_error" not in figures


def test_groups_follow_features_and_hashes():
    x, y, groups = burst(3)
    data = SSLData.from_arrays(x, y, classes=("a", "b"))
    features = np.random.default_rng(0).normal(size=(24, 64)).repeat(3, 0)
    grouped = keep_together(data, features / np.linalg.norm(features, axis=1, keepdims=True))
    same = grouped.dataset.groups[:, None] == grouped.dataset.groups
    assert np.array_equal(same, groups[:, None] == groups)


def test_labels_of_a_group_share_a_fold_of_evidence(short):
    rng = np.random.default_rng(0)
    y = np.arange(48) % 2
    groups = np.arange(48) % 2 + 2 * (np.arange(48) // 6)  # of three labels each
    data = SSLData.from_arrays(rng.normal(size=(48, 5)) + y[:, None], y, groups=groups)
    trainer = vcc_infuse.Trainer(
        vcc_infuse.Identity(), FixMatch(), Evidence(every=1), steps=8, batch_size=16, progress=False
    )
    trainer.fit(data)
    fold = trainer.state_.calibrator.out_of_fold.heads.fold
    labels = torch.from_numpy(data.label_groups)
    assert (fold >= 0).all()
    assert all(len(fold[labels == group].unique()) == 1 for group in labels.unique())
    assert len(fold.unique()) == 4


def flat_folder(tmp_path, group_by="auto"):
    """Class folders without a test folder, from bursts of three: a fifth of each class is split off to test."""
    x, y, groups = burst(3, images=20)
    for row, image in enumerate(x):
        file = tmp_path / "photos" / "ab"[y[row]] / f"scene{groups[row]:02}-{row % 3}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(file)
    return vcc_infuse.load_ssl(str(tmp_path / "photos"), labels=16, cache=str(tmp_path), group_by=group_by)


def run_on(data, tmp_path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = Timm("test_resnet", "none", 32)
        fixed = {**OPTIONS, "cross_fit": False, "cache": str(tmp_path)}
        return vcc_infuse.train(data, model=network, algorithm="LinearProbe", **fixed, **options).summary["warnings"]


def test_near_copies_across_the_test_split_of_a_flat_folder_are_said(tmp_path):
    data = flat_folder(tmp_path)
    scenes = [{name[-12:-6] for name in part.names} for part in (data.dataset.train, data.dataset.test)]
    shared = [name for name in data.dataset.test.names if name[-12:-6] in scenes[0]]
    assert shared
    (line,) = run_on(data, tmp_path)
    assert line.startswith(
        f"{len(shared)} of 12 test images look like copies of training images, such as {shared[0]}; "
    )
    assert "group_by" in line
    assert run_on(data, tmp_path, report=False) == []  # studies of many runs on the same images save the seconds
    assert run_on(flat_folder(tmp_path, r"scene\d+"), tmp_path) == []


@pytest.mark.parametrize(("channels", "found"), [(1, [2]), (3, [0, 1, 2])])
def test_gray_pictures_need_features_that_are_nearly_the_same(channels, found):
    rng = np.random.default_rng(0)
    train = rng.normal(size=(6, 1, 200))
    test = 0.6 * train[:3] + 0.8 * rng.normal(size=(3, 1, 200))  # cosines of about 0.6 where all hashes are the same
    test[2] = train[2]
    same = rng.integers(0, 255, (1, 32, 32, channels), dtype=np.uint8)
    parts = [Examples(x, np.zeros(len(x), int)) for x in (train, test, same.repeat(6, 0), same.repeat(3, 0))]
    pictures = SimpleNamespace(train=parts[2], test=parts[3])
    facts = {"mean": (0.0,) * 200, "std": (1.0,) * 200, "images": pictures}
    dataset = SimpleNamespace(bank="some", train=parts[0], test=parts[1], **facts)
    assert copies.copied_tests(SimpleNamespace(dataset=dataset), np.arange(6)).tolist() == found


def test_of_many_images_only_the_labeled_ones_are_compared(tmp_path, monkeypatch):
    data = flat_folder(tmp_path)
    scenes = {data.dataset.train.names[row][-12:-6] for row in data.split.labeled}
    shared = [name for name in data.dataset.test.names if name[-12:-6] in scenes]
    monkeypatch.setattr(copies, "MOST_ACROSS", 30)  # 16 labels and 12 images to test
    (line,) = run_on(data, tmp_path)
    assert line.startswith(f"{len(shared)} of 12 test images look like copies")
    monkeypatch.setattr(copies, "MOST_ACROSS", 20)
    assert run_on(data, tmp_path) == []


def test_a_run_says_what_more_labels_would_bring(tmp_path):
    x, y, _ = burst(1, images=40)
    x[..., 0] = np.where(y[:, None, None] == 1, 250, x[..., 0])
    out = tmp_path / "run"
    summary = train(x, y, cache=str(tmp_path), out=str(out), cross_fit=False).summary
    curve = summary["learning_curve"]
    assert curve["labels"] == summary["labels"]
    assert 0 <= curve["at_double"]["low"] <= curve["at_double"]["value"] <= curve["at_double"]["high"] <= 1
    assert json.loads((out / "summary.json").read_text())["learning_curve"]["text"] == curve["text"]
    assert f"{curve['text'][1:]}." in (out / "report.html").read_text()


def test_without_a_report_no_curve_is_estimated(tmp_path):
    x, y, _ = burst(1, images=40)
    assert "learning_curve" not in train(x, y, cache=str(tmp_path), cross_fit=False, report=False).summary


@pytest.mark.parametrize(("naive", "said"), [(0.1, "would claim 10 % error instead of 30 %"), (0.302, "")])
def test_a_split_that_claims_the_same_is_not_mentioned(naive, said):
    text = about_naive({"naive_error": naive, "grouped_labels": 4, "probe": {"error": 0.3}})
    assert said in text
    assert bool(text) == bool(said)


@pytest.mark.parametrize("installed", [True, False])
def test_many_labels_are_compared_where_faiss_is_installed(monkeypatch, installed):
    x, y, groups = burst(3)
    data = SSLData.from_arrays(x, y, classes=("a", "b"))
    features = np.random.default_rng(0).normal(size=(24, 64)).repeat(3, 0)
    monkeypatch.setattr(copies, "MOST", 10)
    monkeypatch.setattr(copies, "has_graph", lambda: installed)
    found = keep_together(data, features / np.linalg.norm(features, axis=1, keepdims=True)).dataset.groups
    assert (found is None) == (not installed)
    if installed:
        assert ((found[:, None] == found) == (groups[:, None] == groups)).all()

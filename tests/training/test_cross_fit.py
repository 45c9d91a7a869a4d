"""Cross-validated runs: honest answers for hidden labels, what is handed out, and its confidence."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from vcc_infuse import (
    MLP,
    Evidence,
    FixMatch,
    Identity,
    LinearProbe,
    Predictor,
    SelfTraining,
    SmallConv,
    SSLData,
    Supervised,
    Trainer,
)
from vcc_infuse.calibrators import cross_fitted
from vcc_infuse.calibrators.cross_fitted import CrossFitted, fit_join, logit
from vcc_infuse.errors import UserError
from vcc_infuse.inference.export import export_model, largest_difference
from vcc_infuse.models import Classifier
from vcc_infuse.models.linear_probe import fit_probe
from vcc_infuse.training import cross_fit as module
from vcc_infuse.training.auto import training_seconds
from vcc_infuse.training.cross_fit import FoldAnswers, cross_fit, cross_fit_seconds, hide, label_folds
from vcc_infuse.training.hand_out import (
    NEAR_ONE,
    OF_PROBE,
    Mix,
    ScalePrior,
    choose_mix,
    choose_one,
    fit_scale,
    hand_out,
    label_weights,
    mixed_heads,
)
from vcc_infuse.training.interrupt import Interrupted
from vcc_infuse.types import Outputs

FAST = dict(steps=12, eval_every=12, batch_size=8, unlabeled_ratio=2, lr=0.01, optimizer="adamw", head_init="probe")
FAST |= dict(head_scale=3.0, weight_decay=0.0, progress=False, precision="fp32", device="cpu")


def make_data(rows=120, labels=24, classes=3, width=6, noise=1.0, seed=0, y=None, test=60):
    rng = np.random.default_rng(seed)
    truth = np.arange(rows + test) % classes
    centers = np.random.default_rng(99).normal(size=(classes, width))
    x = (centers[truth] + noise * rng.normal(size=(rows + test, width))).astype(np.float32)
    shown = np.where(np.arange(rows) < labels, truth[:rows], -1) if y is None else y
    return SSLData.from_arrays(x[:rows], shown, x[rows:], truth[rows:])


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(module, "FEWEST_STEPS", 5)


# --- folds


def test_folds_hide_the_same_number_of_every_class_and_never_its_only_label():
    y = np.repeat(np.arange(4), 6)
    folds = label_folds(y)
    for number in range(5):
        counts = np.bincount(y[folds == number], minlength=4)
        assert counts.min() == counts.max() >= 1
    rare = np.array([0] * 9 + [1] * 2 + [2])
    folds = label_folds(rare)
    assert folds[-1] == -1
    assert (folds[:-1] >= 0).all()
    for number in range(folds.max() + 1):
        assert set(rare[folds != number]) == {0, 1, 2}
    assert label_folds(np.repeat(np.arange(3), 4)).max() == 3  # four labels, four folds


def test_hidden_rows_are_in_no_part_of_the_data():
    data = make_data()
    rows = data.split.labeled[:4]
    rest = hide(data, rows)
    assert not np.isin(rows, np.concatenate([rest.split.labeled, rest.split.pool])).any()
    assert (rest.with_all_labels().split.labeled != rows[:, None]).all()
    assert rest.dataset.test is None
    assert len(rest.split.labeled) == len(data.split.labeled) - 4


# --- answers


@pytest.mark.parametrize("calibrator", [None, Evidence(min_per_class=2)])
def test_out_of_fold_answers_are_those_of_trainers_that_see_fewer_labels(short, calibrator):
    data = make_data()
    trainer = Trainer(Identity(), FixMatch(threshold=0.6), calibrator, **FAST, seed=3)
    trainer.fit(data)
    answers = cross_fit(trainer, data)
    labels = data.split.labeled
    y = data.labeled_y
    folds = label_folds(y, 3)
    assert len(answers) == folds.max() + 1 == 5
    for number, fold in enumerate(answers):
        hidden = labels[folds == number]
        shown = np.setdiff1d(np.arange(len(data.dataset.train)), hidden)
        x = data.dataset.train.x
        where = np.where(np.isin(shown, labels), data.dataset.train.y[shown], -1)
        fewer = SSLData.from_arrays(x[shown], where)
        fewer = dataclasses.replace(  # the statistics stay those of all rows
            fewer, dataset=dataclasses.replace(fewer.dataset, mean=data.dataset.mean, std=data.dataset.std)
        )
        one = Trainer(Identity(), FixMatch(threshold=0.6), calibrator, **{**FAST, "steps": 5}, seed=3)
        one.fit(fewer)
        plain, labeled = (standardized(data, rows) for rows in (hidden, shown[where >= 0]))
        with torch.no_grad():
            expected = one.state_.classifier()(plain)
        confidence = one.state_.calibrator.eval().predict(expected)
        assert torch.allclose(fold.method.logits, expected.logits, atol=1e-5)
        assert torch.allclose(fold.calibrator.predict(fold.method), confidence, atol=1e-5)
        assert torch.equal(fold.y, torch.from_numpy(data.dataset.train.y[hidden]))
        probe = fit_probe(labeled, torch.from_numpy(where[where >= 0]), 3, seed=3)
        assert torch.allclose(fold.probe, plain @ probe.weight.T + probe.bias, atol=0.05)  # another order of the labels


def standardized(data, rows):
    x = data.dataset.train.x[rows]
    return torch.from_numpy((x - np.array(data.dataset.mean)) / np.array(data.dataset.std)).float()


def test_answers_do_not_depend_on_the_hidden_labels(short):
    """Permuted labels carry nothing: an honest answer for them is right by chance only."""
    rng = np.random.default_rng(0)
    y = np.full(160, -1)
    y[:120] = rng.permutation(np.arange(120) % 2)
    data = make_data(160, y=y, classes=2, width=30)
    trainer = Trainer(Identity(), FixMatch(), **FAST)
    trainer.fit(data)
    answers = cross_fit(trainer, data)
    truth = torch.cat([fold.y for fold in answers])
    for logits in (torch.cat([fold.method.logits for fold in answers]), torch.cat([fold.probe for fold in answers])):
        assert 0.35 < float((logits.argmax(1) != truth).float().mean()) < 0.65


def test_a_class_with_a_single_label_is_always_shown(short):
    y = np.full(120, -1)
    y[:9] = [0, 1, 2, 0, 1, 0, 1, 0, 1]
    data = make_data(y=y)
    trainer = Trainer(Identity(), FixMatch(), **FAST, cross_fit=True)
    summary = trainer.fit(data)
    assert summary["cross_validated"]["labels"] == 8
    assert trainer.predictor().predict(data.dataset.test.x).calibrated.isfinite().all()


# --- what is handed out


def test_a_mix_of_heads_is_the_mix_of_their_logits():
    method, probe = (Classifier.build(Identity(), (5,), 3) for _ in range(2))
    x = torch.randn(7, 5)
    mix = Mix(0.3, 0.5, 2.0)
    expected = 0.3 * 0.5 * method(x).logits + 0.7 * 2.0 * probe(x).logits
    assert torch.allclose(mixed_heads(mix, method, probe)(x).logits, expected, atol=1e-6)
    assert torch.equal(Mix(1.0, 0.5, 2.0)(x, -x), x)
    assert torch.equal(Mix(0.0, 0.5, 2.0)(x, -x), -x)


def noisy_logits(y, strength, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(y), 3, generator=generator) + strength * torch.eye(3)[y]


def test_evidence_moves_the_mix_and_few_labels_hardly_do():
    y = torch.arange(300) % 3
    good = noisy_logits(y, 3.0, 0)
    bad = noisy_logits(y, 0.0, 1)
    weight = {}
    for name, method, probe in (("good", good, bad), ("bad", bad, good)):
        for count in (6, 300):
            weight[name, count] = choose_mix(method[:count], probe[:count], y[:count], (1.0, 1.0)).weight
    assert weight["good", 300] > 0.9
    assert weight["bad", 300] < 0.1
    assert weight["bad", 300] < weight["bad", 6] < weight["good", 6] < weight["good", 300]
    assert choose_mix(good, good, y, (1.0, 1.0)).weight == 1
    assert choose_one(good, bad, y, (1.0, 1.0)).weight == 1
    assert choose_one(bad, good, y, (1.0, 1.0)).weight == 0
    assert choose_one(good, good, y, (1.0, 1.0)).weight == 1


def test_a_probe_near_chance_keeps_the_method_small_in_the_mix():
    """With as little evidence for either, the method counts for less where its pseudo labels must be wrong."""
    y = torch.arange(60) % 3
    weights = []
    for strength in (2.0, 0.2, -1.0):  # of the evidence in the logits of both
        method, probe = (noisy_logits(y, strength, seed) for seed in (1, 2))
        weights.append(choose_mix(method, probe, y, (1.0, 1.0)).weight)
    assert weights[0] > 1.5 * weights[1] > 1.5 * weights[2]


def test_the_scale_is_that_of_temperature_scaling_where_labels_are_many():
    y = torch.arange(3000) % 3
    logits = noisy_logits(y, 1.0, 0) * 5
    weak = ScalePrior(0.0, 100.0)
    regression = LogisticRegression(C=1e9, fit_intercept=False)  # two classes: the margin is the only column
    two = logits[y < 2][:, :2]
    margin = (two[:, 1] - two[:, 0]).double().numpy()[:, None]
    regression.fit(margin, y[y < 2].numpy())
    assert fit_scale(two, y[y < 2], weak) == pytest.approx(regression.coef_[0, 0], rel=1e-3)
    assert fit_scale(logits[:0], y[:0], ScalePrior(0.45, 0.2)) == pytest.approx(np.exp(0.45), rel=1e-3)
    sure = 50 * torch.eye(3)[y[:9]]  # all right: the prior keeps the scale finite
    assert 0.5 < fit_scale(sure, y[:9], NEAR_ONE) < 2


def test_joining_two_confidences_is_a_logistic_regression_where_labels_are_many(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    columns = torch.randn(5000, 2, generator=generator, dtype=torch.float64)
    chance = torch.sigmoid(columns @ torch.tensor([1.5, 0.2], dtype=torch.float64) - 0.4)
    right = torch.rand(5000, generator=generator, dtype=torch.float64) < chance
    monkeypatch.setattr(cross_fitted, "SLOPE_DEVIATION", 1e6)
    monkeypatch.setattr(cross_fitted, "BIAS_DEVIATION", 1e6)
    oracle = LogisticRegression(C=1e9, tol=1e-8).fit(columns.numpy(), right.numpy())
    expected = [*oracle.coef_[0], oracle.intercept_[0]]
    assert fit_join(columns, right).tolist() == pytest.approx(expected, abs=1e-3)


def test_a_ruinous_method_is_not_handed_out(short):
    """Pseudo labels that are always class 0 ruin a head; the labels show it."""

    class Ruinous(FixMatch):
        def pseudo_label(self, calibrated, step):
            probs = torch.zeros_like(calibrated.probs)
            probs[:, 0] = 1
            return super().pseudo_label(calibrated._replace(probs=probs, confidence=torch.ones(len(probs))), step)

    data = make_data(noise=0.5)
    options = {**FAST, "lr": 0.3, "steps": 60}
    trainer = Trainer(Identity(), Ruinous(weight=50.0), **options, cross_fit=True)
    summary = trainer.fit(data)
    assert summary["error_method"] > summary["error_probe"] + 0.2
    assert summary["error"] <= summary["error_probe"] + 0.02
    assert summary["cross_validated"]["weight"] < 0.4  # of 0.66 before any label was asked
    assert summary["cross_validated"]["method"]["error"] > summary["cross_validated"]["probe"]["error"]
    deep = Trainer(MLP((8,)), Ruinous(weight=50.0), **options, cross_fit=True)
    assert deep.fit(data)["handed_out"] == "probe"
    assert isinstance(deep.predictor().model.backbone, Identity)


def test_the_confidence_of_a_probe_is_calibrated(short):
    data = make_data(600, 300, noise=1.5, test=2000)
    summary = Trainer(Identity(), LinearProbe(), progress=False, cross_fit=True, seed=7).fit(data)
    assert summary["handed_out"] == "method"
    assert summary["error"] == summary["error_method"]
    assert summary["ece_calibrated"] < 0.05


# --- files


@pytest.mark.parametrize("calibrator", [None, Evidence(min_per_class=2)])
def test_what_is_handed_out_is_saved_loaded_and_exported(short, calibrator, tmp_path):
    data = make_data()
    trainer = Trainer(Identity(), FixMatch(), calibrator, **FAST, cross_fit="auto", out=str(tmp_path / "run"))
    summary = trainer.fit(data)
    stored = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert stored["handed_out"] == summary["handed_out"] == "mix"
    assert stored["cross_validated"]["labels"] == 24
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["error"] == stored["error_method"]
    loaded = Predictor.load(tmp_path / "run")
    assert isinstance(loaded.calibrator, CrossFitted)
    x = data.dataset.test.x
    before, after = trainer.predictor().predict(x), loaded.predict(x)
    torch.testing.assert_close(tuple(before), tuple(after), rtol=0, atol=0, equal_nan=True)
    assert loaded.evaluate(data.dataset.test)["ece_calibrated"] == pytest.approx(stored["ece_calibrated"])
    assert loaded.evaluate(data.dataset.test)["error"] == stored["error"]
    if calibrator is None:  # neighbors cannot be looked up in an exported graph
        pytest.importorskip("onnxruntime")
        assert largest_difference(loaded, export_model(loaded, tmp_path / "model.onnx")) < 1e-4


def test_a_run_interrupted_while_cross_validating_hands_out_the_same(short, tmp_path, monkeypatch):
    data = make_data()
    whole = Trainer(Identity(), FixMatch(), **FAST, cross_fit=True).fit(data)
    options = dict(FAST, cross_fit=True, out=str(tmp_path / "run"))

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "answer_hidden", stop)
        with pytest.raises(Interrupted, match="while cross-validating; saved"):
            Trainer(Identity(), FixMatch(), **options).fit(data)
    assert not (tmp_path / "run" / "summary.json").exists()
    resumed = Trainer(Identity(), FixMatch(), **options).fit(data, resume=True)
    for name in ("error", "error_method", "ece_calibrated", "cross_validated", "handed_out"):
        assert resumed[name] == whole[name]


# --- where it is not done


def test_one_line_says_why_a_run_is_not_cross_validated(short, capsys, tmp_path):
    y = np.full(120, -1)
    y[:3] = [0, 1, 2]
    options = {**FAST, "progress": True}
    summary = Trainer(Identity(), FixMatch(), **options, cross_fit="auto").fit(make_data(y=y))
    assert "not cross-validated: every class has a single label" in capsys.readouterr().out
    assert "handed_out" not in summary
    images = SSLData.from_arrays(np.zeros((8, 8, 8, 1), np.uint8), [0, 1, 0, 1, -1, -1, -1, -1])
    for start, reason in (("random", "a head that starts at random has no probe"), ("probe", "the run is too long")):
        Trainer(SmallConv(4), Supervised(), steps=1, head_init=start, cross_fit="auto").fit(images)
        assert f"not cross-validated: {reason}" in capsys.readouterr().out


def test_a_fold_that_diverges_does_not_lose_the_run(short, capsys, monkeypatch):
    def fail(*_):
        raise UserError("the loss is not finite in step 3")

    monkeypatch.setattr(module, "answer_hidden", fail)
    summary = Trainer(Identity(), FixMatch(), **{**FAST, "progress": True}, cross_fit=True).fit(make_data())
    assert "handed_out" not in summary
    assert "not cross-validated: the loss is not finite in step 3" in capsys.readouterr().out


def test_a_long_run_is_not_repeated_unless_asked_for(monkeypatch):
    monkeypatch.setattr(module, "LARGEST", 10)
    data = make_data()
    assert "handed_out" not in Trainer(Identity(), FixMatch(), **FAST, cross_fit="auto").fit(data)
    assert "handed_out" in Trainer(Identity(), FixMatch(), **FAST, cross_fit=True).fit(data)


def test_nor_is_a_fit_of_very_many_products(monkeypatch):
    data = make_data()
    method = SelfTraining()
    assert "handed_out" in Trainer(Identity(), method, progress=False, cross_fit="auto").fit(data)
    monkeypatch.setattr(module, "MOST_PRODUCTS", 5 * method.products(120, 6, 3) - 1)
    assert "handed_out" not in Trainer(Identity(), method, progress=False, cross_fit="auto").fit(data)
    assert "handed_out" in Trainer(Identity(), method, progress=False, cross_fit=True).fit(data)


def test_the_time_of_a_fit_without_steps_is_known_beforehand():
    """A thousand classes take hours; nobody should find that out by waiting."""
    data = make_data(rows=6000, labels=60, classes=20, width=400)
    trainer = Trainer(Identity(), SelfTraining(), progress=False, cross_fit=False)
    expected = training_seconds(trainer, data)
    assert cross_fit_seconds(Trainer(Identity(), SelfTraining(), progress=False, cross_fit=True), data, 10.0) > 50
    assert training_seconds(Trainer(Identity(), LinearProbe(), progress=False), data) == 0
    took = trainer.fit(data)["seconds_train"]
    assert took / 20 < expected < 20 * took


def test_a_rare_class_has_its_say():
    """Half-way between labels that count alike and classes that do."""
    y = torch.tensor([0] * 16 + [1] * 4 + [2])
    weights = label_weights(y)
    assert weights.mean() == pytest.approx(1)
    sums = torch.stack([weights[y == label].sum() for label in range(3)])
    torch.testing.assert_close(sums / sums[2], torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(label_weights(torch.arange(12) % 3), torch.ones(12, dtype=torch.float64))


def test_the_scale_of_weighted_labels_is_that_of_a_weighted_regression():
    generator = torch.Generator().manual_seed(0)
    score = torch.randn(200, generator=generator)
    y = (score + torch.randn(200, generator=generator) > 1.5).long()
    weights = label_weights(y)
    logits = torch.stack([torch.zeros(200), score], 1)
    oracle = LogisticRegression(C=1e9, fit_intercept=False, tol=1e-10)
    oracle.fit(score[:, None].double().numpy(), y, sample_weight=weights.numpy())
    assert oracle.coef_[0, 0] > 0
    assert fit_scale(logits, y, ScalePrior(0.0, 1e6), weights) == pytest.approx(oracle.coef_[0, 0], rel=1e-3)


def test_a_method_that_knows_rare_classes_is_not_outvoted_by_the_frequent_one():
    generator = torch.Generator().manual_seed(0)
    y = torch.tensor([0] * 30 + [1] * 3 + [2] * 3)
    even = 2.0 * torch.eye(3)[y] + torch.randn(36, 3, generator=generator)  # a method as good on every class
    partial = even + torch.tensor([1.5, -1.5, -1.5])  # and a probe that takes them for the frequent one
    uneven = choose_mix(even, partial, y, (1.0, 1.0)).weight
    assert uneven > 0.6
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vcc_infuse.training.hand_out.label_weights", lambda y: torch.ones(len(y), dtype=torch.float64))
        assert choose_mix(even, partial, y, (1.0, 1.0)).weight < uneven - 0.1


def test_a_wrong_value_is_refused():
    with pytest.raises(UserError, match="cross_fit must be true, false or auto, got 'yes'"):
        Trainer(Identity(), cross_fit="yes")


def test_two_classes_and_the_joined_confidence():
    y = torch.arange(40) % 2
    logits = torch.randn(40, 2) + 2 * torch.eye(2)[y]
    features = torch.randn(40, 4)
    method, probe = (Classifier.build(Identity(), (4,), 2) for _ in range(2))
    base = CrossFitted().base
    folds = [FoldAnswers(y, Outputs(logits, features), logits + 0.1, base)]
    chosen = hand_out(folds, method, probe, base, OF_PROBE)
    outputs = chosen.model(features)
    expected = (chosen.calibrator.scale * outputs.logits).softmax(1).amax(1)
    assert torch.allclose(chosen.calibrator.predict(Outputs(*outputs)).float(), expected, atol=1e-6)
    assert logit(torch.tensor([0.5, 1.0])).isfinite().all()

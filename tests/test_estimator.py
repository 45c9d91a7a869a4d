"""SSLClassifier behaves as scikit-learn users expect, and never reports training labels as a test."""

import json
import pickle
import random

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from vcc_infuse import (
    INFUSE,
    MLP,
    VCC,
    FixMatch,
    FlexMatch,
    Identity,
    LabelSpreading,
    LinearProbe,
    RobustVCC,
    SmallConv,
    Softmax,
    SSLClassifier,
    SSLData,
    Supervised,
    TemperatureScaling,
    Timm,
    Trainer,
)
from vcc_infuse.bank.bank import BankConfig
from vcc_infuse.data.sources.arrays import encode
from vcc_infuse.models.backbone import Embedded
from vcc_infuse.models.linear_probe import STRENGTHS

FAST = dict(steps=25, batch_size=16, unlabeled_ratio=1)
EXPECTED = {"check_classifiers_classes": "fits labels −1 and 1 as two classes; here −1 means unlabeled"}


def fast(**options):
    return SSLClassifier(**{"model": MLP((16,)), **FAST, **options})


@pytest.fixture(scope="module")
def blobs():
    """Three groups; X, the true classes, and labels for six rows per class with −1 elsewhere."""
    x, truth = make_blobs(150, n_features=4, centers=3, cluster_std=1.5, random_state=0)
    y = np.full_like(truth, -1)
    for number in range(3):
        rows = np.flatnonzero(truth == number)[:6]
        y[rows] = number
    return x, truth, y


@pytest.fixture(scope="module")
def images():
    """Images with a bright left or right half, which a flip would exchange."""
    rng = np.random.RandomState(0)
    y = np.arange(60) % 2
    x = rng.randint(0, 90, (60, 8, 8)).astype(np.uint8)
    for image, side in zip(x, y, strict=True):
        image[:, 4 * side : 4 * side + 4] += 120
    return x, y


@parametrize_with_checks([fast()], expected_failed_checks=lambda estimator: EXPECTED, xfail_strict=True)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def test_few_labels_suffice_where_groups_are_clear(blobs):
    x, truth, y = blobs
    assert fast(steps=80).fit(x, y).score(x, truth) > 0.9


@pytest.mark.parametrize("names", [["c", "a", "b"], [7, 3, 5], [2.0, 0.0, 1.0]])
def test_labels_of_any_kind_give_sorted_classes_and_the_same_model(blobs, names):
    x, _, y = blobs
    labels = np.array([-1 if v < 0 else names[v] for v in y], dtype=object)
    model = fast(steps=8).fit(x, labels)
    assert list(model.classes_) == sorted(names)
    order = np.argsort(np.argsort(names))
    plain = fast(steps=8).fit(x, np.where(y < 0, -1, order[y]))
    assert np.array_equal(model.predict_proba(x), plain.predict_proba(x))
    assert list(model.predict(x)) == [sorted(names)[v] for v in plain.predict(x)]


@pytest.mark.parametrize("labels", [np.array(["b", "a"] * 10), ["b", "a"] * 10, np.array([True, False] * 10)])
def test_labels_without_unlabeled_rows(labels):
    x = np.arange(40.0).reshape(20, 2)
    model = fast(steps=2).fit(x, labels)
    assert list(model.classes_) == sorted(set(np.asarray(labels).tolist()))
    assert set(model.predict(x)) <= set(np.asarray(labels).tolist())
    assert model.predictor_.task.pool == 20


def test_class_numbers_match_a_slow_loop():
    y = np.array(["b", -1, "a", "b"], dtype=object)
    classes, codes = encode(y)
    assert classes.tolist() == ["a", "b"]
    assert codes.tolist() == [-1 if v == -1 else ["a", "b"].index(v) for v in y]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([-1] * 4, "every label is −1"),
        ([-1, 1, 1, 1], "y has 1 class (1)"),
        (np.array(["a", "b", -1, "a"]), "y holds '-1'; mark unlabeled rows with the number −1"),
        (np.array(["a", "b", None, "a"], dtype=object), "y holds None"),
        (np.array(["a", "b", "", "a"], dtype=object), "y holds ''"),
        (np.array(["a", "b", 3, -1], dtype=object), "y mixes int, str"),
        ([0.5, 1.5, -1, 0.5], "Unknown label type"),
        ([0, 1, 0], "inconsistent numbers of samples"),
        ([0, 1, np.nan, 0], "NaN"),
    ],
)
def test_invalid_labels_are_one_line(y, message):
    with pytest.raises(ValueError) as fault:  # noqa: PT011 - the message is looked at below
        fast().fit(np.zeros((4, 2)), y)
    assert message in str(fault.value)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.full((4, 8, 8), -16.0), "they must lie in 0…1"),
        (np.full((4, 8, 8), np.nan), "NaN"),
        (np.zeros((4, 3, 8, 8), np.uint8), "channels-first"),
        (np.zeros((4, 8, 8, 17), np.uint8), "must be 1 to 16 channels"),
        (np.zeros((4, 2, 2, 2, 2)), "give numbers N×H×W"),
        (np.full((4, 2), np.inf), "infinity"),
    ],
)
def test_invalid_examples_are_one_line(x, message):
    with pytest.raises(ValueError) as fault:  # noqa: PT011 - the message is looked at below
        fast().fit(x, [0, 1, 0, 1])
    assert message in str(fault.value)


def test_images_of_twelve_bits_are_scaled_alike_in_fit_and_predict():
    """New images are scaled by the range of the training images, also if they are all dim."""
    x = np.random.default_rng(0).integers(0, 4096, (8, 8, 8, 2), dtype=np.uint16)
    model = fast(model=SmallConv(4), steps=2).fit(x, [0, 1] * 4)
    assert model.predictor_.ranges == ((0.0, 4095.0),)
    dim = x // 20
    as_bytes = np.rint(dim * (255 / 4095)).astype(np.uint8)
    assert np.array_equal(model.predict_proba(dim), model.predict_proba(as_bytes))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"algorithm": FixMatch},
            "algorithm must be an instance of Algorithm or None, got the class FixMatch; add ()",
        ),
        ({"selector": "INFUSE"}, "selector must be an instance of Selector or None, got 'INFUSE'"),
        ({"steps": "many"}, "steps must be an integer of at least 1, got 'many'"),
        ({"batch_size": 1.5}, "batch_size must be an integer of at least 1, got 1.5"),
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"algorithm": Supervised(), "calibrator": VCC()}, "would have no effect"),
        ({"model": SmallConv()}, "use MLP for vectors"),
        ({"backbone": Timm}, "backbone must be a name, a Backbone or None, got the class Timm; add ()"),
        ({"backbone": "test_resnet"}, "model and backbone exclude each other"),
        ({"backbone": "test_resnet", "model": None}, "a bank needs images"),
        ({"bank": BankConfig()}, "give backbone too"),
        ({"bank": "mlp"}, "bank must be an instance of BankConfig or None, got 'mlp'"),
        ({"head_init": "zero"}, "head_init must be one of random, probe, got 'zero'"),
        ({"slots": (1, 2)}, "which are 0 in x"),
    ],
)
def test_invalid_options_are_one_line(options, message):
    with pytest.raises(ValueError) as fault:  # noqa: PT011 - the message is looked at below
        fast(**options).fit(np.eye(4), [0, 1, 0, 1])
    assert message in str(fault.value)


def test_images_of_bytes_and_of_floats_are_the_same(images):
    x, y = images
    model = SSLClassifier(SmallConv(4), flip=False, **FAST).fit(x, y)
    assert model.n_features_in_ == 64
    assert np.array_equal(model.predict_proba(x), model.predict_proba(x / 255))
    assert np.array_equal(model.predict_proba(x), model.predict_proba(x[..., None]))
    with pytest.raises(ValueError, match=r"fit saw examples of shape \(8, 8, 1\), got \(8, 6, 1\)"):
        model.predict(x[:, :, :6])


def test_flip_decides_whether_mirrored_classes_can_be_distinguished(images):
    x, y = images
    scores = {
        flip: SSLClassifier(SmallConv(4), Supervised(), flip=flip, **FAST).fit(x, y).score(x, y) for flip in (0, 1)
    }
    assert scores[0] > 0.95
    assert scores[1] < 0.9


def test_default_networks_fit_the_data(images):
    x, y = images
    short = dict(FAST, steps=1)
    assert isinstance(SSLClassifier(**short).fit(x, y).predictor_.model.backbone, SmallConv)
    vectors = x.reshape(60, -1)
    assert isinstance(SSLClassifier(**short).fit(vectors, y).predictor_.model.backbone, Identity)
    assert isinstance(SSLClassifier(**short, head_init="random").fit(vectors, y).predictor_.model.backbone, MLP)


# A frozen backbone and ready embeddings


def frozen(**options):
    return SSLClassifier(**{"backbone": "test_resnet", "weights": "none", "flip": False, **FAST, "steps": 5, **options})


def test_a_frozen_backbone_embeds_images_and_predicts_them(images, tmp_path, monkeypatch):
    x, y = images
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    model = frozen().fit(x, np.where(np.arange(60) < 20, y, -1))
    assert isinstance(model.predictor_.model.backbone, Embedded)
    assert isinstance(model.predictor_.model.backbone.layers, Identity)
    assert model.n_features_in_ == 64
    assert model.score(x[20:], y[20:]) > 0.9
    assert list(tmp_path.iterdir()) == []  # the embedded views
    copied = pickle.loads(pickle.dumps(model))
    assert np.array_equal(copied.predict_proba(x), model.predict_proba(x))


def test_embedded_images_are_kept_in_a_cache_folder(images, tmp_path):
    x, y = images
    options = dict(cache=str(tmp_path), steps=1, cross_fit=False)
    first = frozen(**options).fit(x, y).predict_proba(x)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")}
    assert len(written) > 0
    assert np.array_equal(frozen(**options).fit(x, y).predict_proba(x), first)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")} == written


def test_the_bank_decides_the_views_and_the_head(images, tmp_path):
    x, y = images
    backbone = Timm("test_resnet", weights="none", input_size=16)
    before = pickle.dumps(backbone)
    bank = BankConfig(1, 3, head="mlp")
    model = frozen(backbone=backbone, bank=bank, cross_fit=False, cache=str(tmp_path), steps=1).fit(x, y)
    assert isinstance(model.predictor_.model.backbone.layers, MLP)
    (features,) = tmp_path.rglob("train.npy")
    assert np.load(features).shape[:2] == (60, 1 + 1 + 3)
    assert pickle.dumps(backbone) == before


def test_of_views_the_first_is_predicted(blobs):
    x, truth, y = blobs
    rng = np.random.RandomState(0)
    views = x[:, None] + 0.1 * rng.randn(len(x), 3, 4)
    model = SSLClassifier(slots=(1, 1), **FAST).fit(views, y)
    assert isinstance(model.predictor_.model.backbone, Identity)
    assert model.predictor_.views.slots == (1, 1)
    assert model.n_features_in_ == 4
    assert model.score(views, truth) > 0.9
    assert np.array_equal(model.predict_proba(views), model.predict_proba(views[:, 0]))
    assert SSLClassifier(slots=(0, 2), **FAST).fit(views, y).predictor_.views.slots == (0, 2)
    plain = fast().fit(x, y)
    assert np.array_equal(plain.predict_proba(views), plain.predict_proba(views[:, 0]))
    with pytest.raises(ValueError, match="expecting 4 features"):
        model.predict(views[:, :, :3])


def test_methods_without_steps_work_on_the_features_themselves(blobs):
    x, truth, y = blobs
    for method in (LinearProbe(), LabelSpreading()):
        model = SSLClassifier(algorithm=method).fit(x, y)
        assert model.score(x, truth) > 0.9
        assert model.summary_["steps"] == 0
    assert not list(SSLClassifier(algorithm=LinearProbe()).fit(x, y).predictor_.model.backbone.parameters())


def test_a_head_that_starts_at_the_probe_is_a_logistic_regression(blobs):
    """Without a learning rate it stays where it starts."""
    x, _, y = blobs
    model = SSLClassifier(calibrator=Softmax(), head_init="probe", lr=0.0, cross_fit=False, **FAST).fit(x, y)
    assert isinstance(model.predictor_.model.backbone, Identity)
    scaled = StandardScaler().fit_transform(x)
    scaled = scaled - scaled[y >= 0].mean(0)
    scaled /= np.sqrt((scaled[y >= 0] ** 2).sum(1).mean())
    found = model.predict_proba(x)
    distances = []
    for strength in STRENGTHS:
        oracle = LogisticRegression(C=strength, max_iter=2000).fit(scaled[y >= 0], y[y >= 0])
        logits = 3 * oracle.decision_function(scaled)  # more confident than the probe
        expected = np.exp(logits - logits.max(1, keepdims=True))
        distances.append(np.abs(found - expected / expected.sum(1, keepdims=True)).max())
    assert min(distances) < 1e-3
    assert sorted(distances)[1] > 1e-2


@pytest.mark.parametrize("calibrator", [None, TemperatureScaling(labels="labeled_strong"), VCC(), RobustVCC()])
def test_the_largest_probability_is_the_calibrated_confidence(blobs, calibrator):
    x, _, y = blobs
    model = fast(calibrator=calibrator).fit(x, y)
    found, probs = model.predictor_.predict(x.astype(np.float32)), model.predict_proba(x)
    assert np.allclose(probs.sum(1), 1, atol=1e-12)
    assert np.allclose(probs.max(1), found.calibrated.numpy(), atol=2e-5)
    assert np.array_equal(model.classes_[probs.argmax(1)], model.predict(x))
    softmax = found.probs.double().numpy()
    for row, before in zip(probs[:20], softmax[:20], strict=True):
        rest = [i for i in range(3) if i != before.argmax()]
        assert np.allclose(row[rest] / row[rest].sum(), before[rest] / before[rest].sum(), atol=1e-5)


def test_fit_changes_no_argument_and_can_be_repeated(blobs):
    x, _, y = blobs
    model = fast(algorithm=FlexMatch(), calibrator=VCC(), selector=INFUSE(keep=0.5))
    before, data = {k: pickle.dumps(v) for k, v in model.get_params().items()}, (x.copy(), y.copy())
    first = model.fit(x, y).predict_proba(x)
    assert {k: pickle.dumps(v) for k, v in model.get_params().items()} == before
    assert np.array_equal(x, data[0])
    assert np.array_equal(y, data[1])
    assert np.array_equal(model.fit(x, y).predict_proba(x), first)
    assert np.array_equal(clone(model).fit(x, y).predict_proba(x), first)
    assert model.summary_["steps"] == round(0.5 * FAST["steps"])


def test_random_state_is_none_a_number_or_a_generator(blobs):
    x, _, y = blobs

    def probs(state):
        return fast(steps=2, random_state=state).fit(x, y).predict_proba(x)

    assert np.array_equal(probs(None), probs(0))
    assert not np.array_equal(probs(0), probs(1))
    assert np.array_equal(probs(np.random.RandomState(3)), probs(np.random.RandomState(3)))


def test_numbers_of_numpy_work_as_options(tmp_path, blobs):
    x, _, y = blobs
    options = dict(steps=2, batch_size=8, unlabeled_ratio=2, lr=0.5)
    of_numpy = {name: np.asarray(value, dtype="f4" if name == "lr" else "i4")[()] for name, value in options.items()}
    probs = [
        fast(**chosen, out=str(tmp_path / str(i))).fit(x, y).predict_proba(x)
        for i, chosen in enumerate((options, of_numpy))
    ]
    assert np.array_equal(*probs)


def test_fit_leaves_the_callers_random_generators_unchanged(blobs):
    def draws(between):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        between()
        return random.random(), np.random.rand(), torch.rand(()).item()

    x, _, y = blobs
    assert draws(lambda: fast(steps=2).fit(x, y)) == draws(lambda: None)


def test_summary_has_no_metric_from_training_labels(blobs):
    x, _, y = blobs
    summary = fast().fit(x, y).summary_
    assert not [name for name in summary if name.startswith(("error", "ece", "nll")) or "precision_per" in name]
    assert summary["pseudo_label_precision"] is None
    assert summary["labels"] == 18
    assert {name for name in summary if name.startswith("loss_")} == {"loss_labeled", "loss_unlabeled"}
    assert 0 < summary["loss_labeled"] < np.log(3)


def test_score_leaves_unlabeled_rows_out(blobs):
    x, _, y = blobs
    model = fast().fit(x, y)
    known, weights = y >= 0, np.arange(len(y))
    right = model.predict(x)[known] == y[known]
    assert model.score(x, y) == pytest.approx(right.mean())
    assert model.score(x, y, weights) == pytest.approx(np.average(right, weights=weights[known]))
    with pytest.raises(ValueError, match="accuracy needs labels"):
        model.score(x, np.full(len(x), -1))


def test_pickle_keeps_the_predictions(blobs):
    x, _, y = blobs
    model = fast(calibrator=VCC()).fit(x, y)
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict_proba(x), model.predict_proba(x))


def test_unfitted(blobs):
    with pytest.raises(NotFittedError):
        fast().predict(blobs[0])
    assert "FlexMatch" in repr(fast(algorithm=FlexMatch(), selector=INFUSE()))


def test_pipeline_grid_and_cross_validation_with_unlabeled_rows(blobs):
    x, _, y = blobs
    pipeline = make_pipeline(StandardScaler(), fast())
    scores = cross_val_score(pipeline, x, y, cv=3, error_score="raise")
    assert scores.mean() > 0.8
    # scoring="accuracy" counts every row with −1 as a mistake.
    strict = cross_val_score(pipeline, x, y, cv=3, scoring="accuracy", error_score="raise")
    assert strict == pytest.approx(scores * 18 / 150)
    grid = GridSearchCV(pipeline, {"sslclassifier__algorithm": [FixMatch(), Supervised()]}, cv=2, error_score="raise")
    assert grid.fit(x, y).best_score_ > 0.8
    assert set(grid.predict(x)) == {0, 1, 2}


def test_a_run_folder_without_a_test_set_has_a_report_and_no_test_metrics(tmp_path, images):
    x, y = images
    run = tmp_path / "run"
    fast(model=SmallConv(4), selector=INFUSE(keep=0.5), out=str(run)).fit(x, np.where(np.arange(60) < 20, y, -1))
    assert {"config.yaml", "summary.json", "model.safetensors", "report.html"} <= {p.name for p in run.iterdir()}
    assert not (run / "predictions.npz").exists()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4, 6, 8, 10, 12]  # every ceil(25 / 20) steps
    assert not [name for line in lines for name in line if name.startswith(("error", "ece", "reliability"))]
    with pytest.raises(ValueError, match="already holds files"):
        fast(model=SmallConv(4), out=str(run)).fit(x, y)


def test_a_test_set_changes_no_weight(blobs):
    """Evaluations must not affect training: the network is the same with and without a test set."""
    x, truth, y = blobs
    networks = []
    for test in ((), (x, truth)):
        data = SSLData.from_arrays(x, y, *test)
        trainer = Trainer(MLP((8,)), **FAST, eval_every=7, progress=False)
        assert ("error_best" in trainer.fit(data)) == bool(test)
        networks.append(trainer.predictor().model.state_dict())
    assert all(torch.equal(networks[0][name], networks[1][name]) for name in networks[0])
    with pytest.raises(ValueError, match="test_x and test_y belong together"):
        SSLData.from_arrays(x, y, x)


def test_tensorboard_without_a_test_set(tmp_path, blobs):
    pytest.importorskip("tensorboard")
    x, _, y = blobs
    options = dict(steps=2, batch_size=4, unlabeled_ratio=1, progress=False, report=False, tracker="tensorboard")
    Trainer(MLP((8,)), out=str(tmp_path / "run"), **options).fit(SSLData.from_arrays(x, y))
    assert list((tmp_path / "run").glob("events.out.tfevents*"))

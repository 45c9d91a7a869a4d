"""Self-training against a slow loop of scikit-learn, and what it must not do to uneven pools."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import vcc_infuse
from vcc_infuse import SelfTraining, SSLData, UserError
from vcc_infuse.algorithms.self_training import most_confident, quota_shares
from vcc_infuse.models import MLP, Classifier, Identity
from vcc_infuse.models.linear_probe import logistic_regression, probe_on


def blobs(counts: tuple[int, ...], *, seed: int = 0, spread: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Standardized Gaussian classes in ten dimensions."""
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(size=(len(counts), 10))
    y = np.repeat(np.arange(len(counts)), counts)
    x = centers[y] + spread * rng.normal(size=(len(y), 10))
    return ((x - x.mean(0)) / x.std(0)).astype(np.float32), y


def labeled_rows(y: np.ndarray, per_class: int) -> np.ndarray:
    return np.concatenate([np.flatnonzero(y == label)[:per_class] for label in np.unique(y)])


def solve(x: np.ndarray, y: np.ndarray, rows: np.ndarray, **options: object) -> Classifier:
    model = Classifier(Identity(), nn.Linear(x.shape[1], int(y.max()) + 1))
    pool = np.setdiff1d(np.arange(len(y)), rows)
    labeled, labels, others = map(torch.from_numpy, (x[rows], y[rows], x[pool]))
    probe_on(model.backbone, labeled, labels, model.head.out_features).copy_to(model.head)
    return SelfTraining(**options).solve(model, labeled, labels, others).model  # type: ignore[arg-type]


def error(model: Classifier, x: np.ndarray, y: np.ndarray) -> float:
    return float((model(torch.from_numpy(x)).logits.argmax(1).numpy() != y).mean())


def slow_loop(
    x: np.ndarray, y: np.ndarray, rows: np.ndarray, start: np.ndarray, rounds: int, part: float
) -> np.ndarray:
    """The method with equal shares, row by row, from the probabilities of a probe on; the last probabilities."""
    classes = int(y.max()) + 1
    scaled = x - x.mean(0)
    scaled /= np.sqrt(np.mean([row @ row for row in scaled]))
    known = dict(zip(rows.tolist(), y[rows].tolist(), strict=True))
    probs = start
    for number in range(1, rounds + 1):
        quota = max(1, round(part * number / rounds * len(x) / classes))
        chosen: dict[int, int] = {}
        for label in range(classes):
            members = [i for i in range(len(x)) if known.get(i, int(probs[i].argmax())) == label]
            members.sort(key=lambda i: -1.0 if i in known else -float(probs[i].max()))
            chosen |= dict.fromkeys(members[:quota], label)
        chosen |= known
        order = sorted(chosen)
        weight = max(1.0, 0.1 * len(order) / len(known))
        weights = [weight if i in known else 1.0 for i in order]
        sum_of_weights = sum(weights)
        rescaled: dict[int, float] = {}
        for label in range(classes):  # between equal weights and those of the labels
            members = [place for place, i in enumerate(order) if chosen[i] == label]
            roots = [sum(known[i] == other for i in known) ** 0.5 for other in range(classes)]
            share = roots[label] / sum(roots)
            factor = share * sum_of_weights / sum(weights[place] for place in members)
            rescaled |= {place: factor * weights[place] for place in members}
        weights = [rescaled[place] for place in range(len(order))]
        fitted = LogisticRegression(C=10, max_iter=5000, tol=1e-8).fit(
            scaled[order], [chosen[i] for i in order], weights
        )
        probs = fitted.predict_proba(scaled)
    return probs


@pytest.mark.parametrize("part", [0.5, 0.8, 1.0])
def test_rounds_are_those_of_a_slow_loop(part: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vcc_infuse.models.linear_probe.TOLERANCE", 1e-8)  # a rough fit may order two rows otherwise
    x, y = blobs((60, 60, 60), spread=1.3)
    rows = labeled_rows(y, 3)[:-1]  # the last class has a label less
    probe = probe_on(Identity(), *map(torch.from_numpy, (x[rows], y[rows])), 3)
    start = (torch.from_numpy(x) @ probe.weight.T + probe.bias).softmax(1).numpy()
    assert probe.error
    expected = slow_loop(x, y, rows, start, rounds=4, part=min(part, 1 - (probe.error / (2 / 3)) ** 2))
    fitted = solve(x, y, rows, rounds=4, shares="equal", pool_fraction=part)
    found = fitted(torch.from_numpy(x)).logits.softmax(1).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=0.01)


def test_it_errs_less_than_its_probe() -> None:
    x, y = blobs((300, 300, 300), spread=1.2)
    gains = []
    for draw in range(3):
        rows = np.random.default_rng(draw).permutation(len(y))
        rows = np.concatenate([rows[y[rows] == label][:4] for label in range(3)])
        gains.append(error(solve(x[rows], y[rows], np.arange(12)), x, y) - error(solve(x, y, rows), x, y))
    assert min(gains) > 0


def balanced_error(counts: tuple[int, ...], shown: tuple[int, ...], **options: object) -> float:
    """Error on as many test examples of every class, of a run on a pool with these counts and labels."""
    x, y = blobs(tuple(count + 200 for count in counts), spread=1.2)
    rank = np.concatenate([np.arange(count + 200) for count in counts])  # within the class
    pool = rank >= 200
    labels = np.where(rank[pool] - 200 < np.array(shown)[y[pool]], y[pool], -1)
    data = SSLData.from_arrays(x[pool], labels, x[~pool], y[~pool])
    method = SelfTraining(**options)  # type: ignore[arg-type]
    result = vcc_infuse.train(data, preset="frozen", algorithm=method, progress=False, cross_fit=False)
    return float(result.summary["error"])


def test_an_uneven_pool_is_not_made_even() -> None:
    """With as many labels of every class, only an estimate can tell that the pool is uneven."""
    errors = [balanced_error((900, 60, 60), (6, 6, 6), shares=shares) for shares in ("auto", "equal")]
    assert errors[0] < 0.9 * errors[1]


def test_labels_drawn_like_an_uneven_pool_tell_its_shares() -> None:
    errors = [balanced_error((900, 120, 120), (30, 4, 4), shares=shares) for shares in ("auto", "equal")]
    assert errors[0] <= errors[1]


def test_two_classes_and_one_label_each() -> None:
    x, y = blobs((200, 200))
    assert error(solve(x, y, labeled_rows(y, 1)), x, y) < 0.1


def test_features_that_are_not_standardized_are_scaled_one_by_one() -> None:
    x, y = blobs((100, 100, 100))
    rows = labeled_rows(y, 3)
    model = Classifier.build(MLP(hidden=()), (10,), 3)
    scales = torch.logspace(-0.8, 0.2, 10)
    pool = torch.from_numpy(np.delete(x, rows, 0)) * scales
    labeled = torch.from_numpy(x[rows]) * scales
    probe_on(model.backbone, labeled, torch.from_numpy(y[rows]), 3).copy_to(model.head)
    fitted = SelfTraining().solve(model, labeled, torch.from_numpy(y[rows]), pool).model
    logits: Tensor = torch.from_numpy(x) * scales @ fitted.head.weight.T + fitted.head.bias
    assert (logits.argmax(1).numpy() != y).mean() < 0.1


def test_of_a_large_pool_only_some_features_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vcc_infuse.algorithms.self_training.MOST", 90)
    monkeypatch.setattr("vcc_infuse.algorithms.self_training.PER_CLASS", 30)
    seen: list[int] = []
    solve = SelfTraining.solve
    monkeypatch.setattr(SelfTraining, "solve", lambda self, *args: seen.append(len(args[3])) or solve(self, *args))
    x, y = blobs((300, 300, 300))
    data = SSLData.from_arrays(x, np.where(np.arange(900) % 100 < 2, y, -1))
    vcc_infuse.train(data, preset="frozen", progress=False, cross_fit=False)
    assert seen == [90]
    rows = SelfTraining(seed=1).pool_rows(np.arange(1000, 2000), 3)
    assert len(np.unique(rows)) == 90
    assert (np.diff(rows) > 0).all()
    assert rows.min() >= 1000
    assert not np.array_equal(rows, SelfTraining(seed=2).pool_rows(np.arange(1000, 2000), 3))


def test_quotas_are_per_class_and_ties_go_to_the_first() -> None:
    labels = np.array([0, 0, 1, 1, 1])
    confidence = np.array([0.9, 0.8, 0.5, 0.5, 0.4])
    assert most_confident(labels, confidence, np.array([1, 2])).tolist() == [0, 2, 3]
    assert most_confident(labels, confidence, np.array([9, 9])).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("error", "classes", "last"),
    [(0.0, 10, 0.9), (0.45, 10, 0.75), (0.9, 10, 0.0), (0.95, 10, 0.0), (0.45, 2, 0.19), (None, 10, 0.75)],
)
def test_a_probe_that_errs_like_chance_labels_little(error: float | None, classes: int, last: float) -> None:
    parts = SelfTraining(rounds=4).parts(error, classes)
    np.testing.assert_allclose(parts, last * np.array([0.25, 0.5, 0.75, 1]), atol=1e-12)


def test_on_features_that_say_nothing_it_stays_near_its_probe() -> None:
    """Where the labels of the probe are as good as none, a method that believed them would be surer and no better."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 10)).astype(np.float32)
    y = rng.integers(0, 5, 600)
    data = SSLData.from_arrays(x[:400], np.where(np.arange(400) < 60, y[:400], -1), x[400:], y[400:])
    summary = vcc_infuse.train(data, preset="frozen", progress=False, cross_fit=False).summary
    assert summary["pseudo_label_coverage"] < 0.3


def test_what_is_of_no_class_is_not_trusted() -> None:
    even = np.full(3, 1 / 3)
    for counts in ([5, 5, 5], [16, 2, 2]):
        np.testing.assert_allclose(quota_shares(0.4 * even, np.array(counts), np.array([5, 5, 5])), 0.4 * even)
    probs = np.random.default_rng(0).dirichlet(np.ones(3), 90)
    kept = [len(SelfTraining().trusted(probs, np.arange(3), 1.0, known * even)[0]) for known in (1.0, 0.4)]
    assert kept[1] <= 0.4 * 90 + 3 < kept[0]


EVEN = (5, 5, 5)
UNEVEN = (16, 2, 2)


@pytest.mark.parametrize(
    ("estimated", "given", "expected"),
    [
        ((0.3, 0.3, 0.4), EVEN, (1, 1, 1)),  # near the shares of the labels
        ((0.9, 0.1, 0.0), EVEN, ((0.9 * 0.9 + 0.1 / 3) * 6, (0.9 * 0.1 + 0.1 / 3) * 2, 0.1 / 3 * 2)),  # clearly others
        ((0.3, 0.3, 0.4), (2, 3, 2), (1, 1, 1)),  # a total that cannot be dealt out evenly is no sign of anything
    ],
)
def test_quotas_are_even_if_the_labels_are_unless_the_estimate_is_clearly_another(
    estimated: tuple[float, ...], given: tuple[int, ...], expected: tuple[float, ...]
) -> None:
    found = quota_shares(np.array(estimated), np.array(given), np.array([6, 2, 2]))
    wanted = np.sqrt(expected) if expected[2] < 0.1 else np.array(expected)  # a geometric mean with the predictions
    np.testing.assert_allclose(found, wanted / wanted.sum())


def test_quotas_lie_between_even_ones_and_the_predictions_if_labels_are_uneven() -> None:
    """Whatever the counts of the labels: drawn at random, suggested or found, they are chance or habit."""
    for given in (UNEVEN, (2, 2, 16), (20, 12, 9)):
        found = quota_shares(np.array([0.85, 0.1, 0.05]), np.array(given), np.array([5, 5, 5]))
        weight = 1 / (1 + (0.3 * 4 / np.mean(given)) ** 0.5)
        between = (0.9 * np.array([0.85, 0.1, 0.05]) + 0.1 / 3) ** weight
        np.testing.assert_allclose(found, between / between.sum())


def test_counts_of_drawn_labels_are_not_the_quotas() -> None:
    """An even pool of which a few labels were drawn: quotas that follow their counts give whole classes away."""
    errors = [balanced_error((400, 400, 400), (14, 4, 2), shares=shares) for shares in ("auto", "equal")]
    assert errors[0] < 1.2 * errors[1]  # to follow the counts costs 2.8 times as many errors


def test_labels_the_other_way_round_than_the_pool_do_not_mislead() -> None:
    errors = [balanced_error((100, 900), (9, 3), shares=shares) for shares in ("auto", "equal")]
    assert errors[0] < 0.7 * errors[1]


@pytest.mark.parametrize("classes", [2, 4])
def test_with_few_classes_a_smaller_difference_is_clear(classes: int) -> None:
    """A pool of 2:1 differs from even labels by a sixth: of two classes that is sure, of fifty it would be chance."""
    estimated = np.resize([4 / 3, 2 / 3], classes) / classes
    found = quota_shares(estimated, np.full(classes, 5), np.ones(classes))
    assert found[0] > 1.1 * found[1]
    np.testing.assert_allclose(quota_shares(np.resize([4, 2], 50) / 150, np.full(50, 5), np.ones(50)), 0.02)


def test_a_pool_of_two_to_one_is_not_made_even() -> None:
    errors = [balanced_error((800, 400), (6, 6), shares=shares) for shares in ("auto", "equal")]
    assert errors[0] < 0.9 * errors[1]


def test_it_is_what_train_does_on_features_if_nothing_is_named() -> None:
    x, y = blobs((40, 40))
    data = SSLData.from_arrays(x, np.where(np.arange(80) % 10 < 2, y, -1), *blobs((50, 50), seed=1))
    result = vcc_infuse.train(data, preset="frozen", progress=False, cross_fit=False)
    own = vcc_infuse.train(data, preset="frozen", algorithm=SelfTraining(), progress=False, cross_fit=False)
    assert result.summary["error"] == own.summary["error"]
    torch.testing.assert_close(result.predictor.model.head.weight, own.predictor.model.head.weight)
    probe = vcc_infuse.train(data, preset="frozen", algorithm="LinearProbe", progress=False, cross_fit=False)
    assert result.summary["error_probe"] == probe.summary["error"]
    with pytest.raises(UserError, match="has no training steps"):
        vcc_infuse.train(data, preset="frozen", algorithm="SelfTraining", selector="INFUSE", progress=False)
    assert (
        vcc_infuse.train(data, preset="frozen", selector="RandomOnline", steps=2, progress=False).summary["steps"] > 0
    )


def all_of_the_pool(method: SelfTraining, error: float | None, classes: int) -> np.ndarray:
    return np.arange(1, method.rounds + 1) / method.rounds


def test_the_summary_has_the_quality_of_its_own_labels_and_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SelfTraining, "parts", all_of_the_pool)
    x, y = blobs((200, 200), spread=1.5)
    shown = np.where(np.arange(400) % 50 == 0, y, -1)
    options = {"preset": "frozen", "progress": False, "cross_fit": False}
    method = SelfTraining(rounds=2, shares="equal")
    result = vcc_infuse.train(SSLData.from_arrays(x, shown, x, y), algorithm=method, **options)  # type: ignore[arg-type]
    assert result.summary["pseudo_label_coverage"] > 0.9  # two quotas of a half, but for rows that prefer one class
    assert result.summary["pseudo_label_precision"] is None  # no label of the pool is known
    assert result.summary["seconds_train"] > 0
    assert result.summary["images_per_second"] > 0
    data = SSLData(SSLData.from_arrays(x, y, x, y).dataset, SSLData.from_arrays(x, shown).split)
    known = vcc_infuse.train(data, algorithm=method, **options).summary  # type: ignore[arg-type]
    assert known["pseudo_label_coverage"] == result.summary["pseudo_label_coverage"]
    labels = vcc_infuse.train(data, algorithm=SelfTraining(rounds=1, shares="equal"), **options)  # type: ignore[arg-type]
    probe = vcc_infuse.train(data, algorithm="LinearProbe", **options)  # type: ignore[arg-type]
    predicted = probe.predictor.predict(x).labels.numpy()  # a single round learns from what the probe says
    hidden = shown < 0
    right = (predicted == y)[hidden]
    assert labels.summary["pseudo_label_precision"] == pytest.approx(right.mean(), abs=0.03)
    assert probe.summary["pseudo_label_coverage"] is None
    assert probe.summary["pseudo_label_precision"] is None


@pytest.mark.parametrize("classes", [2, 3])
def test_a_fit_ends_where_one_from_nothing_does(classes: int) -> None:
    x, y = blobs((40,) * classes)
    rng = np.random.default_rng(0)
    weights = rng.uniform(0.5, 2, len(y))
    oracle = LogisticRegression(C=10, max_iter=5000, tol=1e-8).fit(x, y, weights)
    start = (torch.from_numpy(rng.normal(size=(classes, 10))).float(), torch.zeros(classes))
    weight, bias = logistic_regression(x, y, 10.0, weights, start=start)
    probs = (torch.from_numpy(x) @ weight.T + bias).softmax(1).numpy()
    np.testing.assert_allclose(probs, oracle.predict_proba(x), atol=5e-3)


def test_a_fit_that_starts_at_the_end_takes_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vcc_infuse.models.linear_probe.ITERATIONS", 1)
    for classes in (2, 3):
        x, y = blobs((40,) * classes)
        oracle = LogisticRegression(C=10, max_iter=5000, tol=1e-8).fit(x, y)
        coef, intercept = map(np.float32, (oracle.coef_, oracle.intercept_))
        both = (
            (coef, intercept)
            if classes > 2
            else (np.concatenate([0 * coef, coef]), np.append(0 * intercept, intercept))
        )
        found = logistic_regression(
            x, y, 10.0, np.ones(len(y)), start=(torch.from_numpy(both[0]), torch.from_numpy(both[1]))
        )
        probs = (torch.from_numpy(x) @ found[0].T + found[1]).softmax(1).numpy()
        np.testing.assert_allclose(probs, oracle.predict_proba(x), atol=1e-3)


BAD = [{"rounds": 0}, {"pool_fraction": 0.0}, {"pool_fraction": 1.5}, {"strength": 0.0}, {"strength": np.nan}]


@pytest.mark.parametrize("options", [*BAD, {"shares": "labels"}])
def test_options_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(options))):
        SelfTraining(**options)  # type: ignore[arg-type]


def test_a_fit_on_features_imports_neither_a_compiler_nor_networks_nor_templates():
    # torch's first optimizer imports its compiler: two seconds of a run that lasts three.
    code = """
import sys
import subprocess
import sys

import numpy as np
from vcc_infuse import SelfTraining, SSLClassifier
rng = np.random.default_rng(0)
y = np.arange(60) % 2
x = rng.normal(size=(60, 4)) + 5 * y[:, None]
SSLClassifier(algorithm=SelfTraining()).fit(x, np.where(np.arange(60) < 20, y, -1))
print(*sorted({name.partition(".")[0] for name in sys.modules} & {"timm", "torchvision", "sympy", "jinja2"}))
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]

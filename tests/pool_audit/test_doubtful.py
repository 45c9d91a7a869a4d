"""Leave-one-out against a loop that leaves one out, rankings against cleanlab, and flipped labels that are found."""

import numpy as np
import pytest
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from scipy.special import log_softmax
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score

from vcc_infuse import UserError
from vcc_infuse.pool_audit import find_doubtful_labels, fit_ridge, judge_labels, leave_one_out
from vcc_infuse.pool_audit.ridge import ridge_scores


def blobs(per_class, classes=4, width=12, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(classes), per_class)
    x = 2 * rng.normal(size=(classes, width))[y] + spread * rng.normal(size=(len(y), width))
    return x / np.linalg.norm(x, axis=1, keepdims=True), y


def flipped(y, count, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(y), count, replace=False)
    given = y.copy()
    given[rows] = (given[rows] + rng.integers(1, y.max() + 1, count)) % (y.max() + 1)
    return given


@pytest.mark.parametrize("width", [3, 40])  # more rows than features, and fewer
@pytest.mark.parametrize("penalty", [0.01, 1.0])
def test_leave_one_out_is_a_fit_without_the_row(width, penalty):
    x, y = blobs(6, width=width)
    left_out = leave_one_out(x, y, 4, penalty)
    for i in range(len(y)):
        others = np.delete(np.arange(len(y)), i)
        slow = Ridge(alpha=penalty).fit(x[others], np.eye(4)[y[others]]).predict(x[i : i + 1])[0]
        np.testing.assert_allclose(left_out.scores[i], slow, atol=1e-5)


def test_the_head_is_scikit_learns_ridge():
    x, y = blobs(10, width=30)
    head = fit_ridge(x, y, 4, penalty=0.3)
    slow = Ridge(alpha=0.3).fit(x, np.eye(4)[y]).predict(x)
    np.testing.assert_allclose(head.scores(x), slow, atol=1e-5)
    np.testing.assert_allclose(ridge_scores(x, y, x[:3], 4, 0.3), slow[:3], atol=1e-5)


def test_temperature_and_noise_make_the_labels_most_likely():
    x, y = blobs(50, spread=2.0)
    given = flipped(y, 30)
    left_out = leave_one_out(x, given, 4)

    def loss(temperature, noise):
        probs = np.exp(log_softmax(left_out.scores / temperature, axis=1))[np.arange(200), given]
        return -np.log((1 - noise) * probs + noise / 4).mean()

    best = min(loss(t, e) for t in np.geomspace(0.01, 2, 200) for e in (0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4))
    assert loss(left_out.temperature, left_out.noise) == pytest.approx(best, abs=1e-3)


def test_flipped_labels_come_first():
    x, y = blobs(25)
    given = flipped(y, 10)
    doubts = find_doubtful_labels(x, given)
    wrong = given != y
    assert wrong[doubts.ranking()[:10]].mean() >= 0.9
    assert roc_auc_score(wrong, doubts.p_wrong) > 0.95
    assert (doubts.suggested[wrong] == y[wrong]).mean() >= 0.8


def test_the_expected_number_of_wrong_labels_is_near_the_true_one():
    x, y = blobs(100)
    for count in (0, 20, 80):
        expected = find_doubtful_labels(x, flipped(y, count)).p_wrong.sum()
        assert expected == pytest.approx(count, abs=8 + 0.15 * count)


def test_scores_are_those_of_cleanlab():
    x, y = blobs(15, spread=2.0)
    given = flipped(y, 6)
    probs = leave_one_out(x, given, 4).probs()
    doubts = judge_labels(given, probs)
    for name in ("self_confidence", "normalized_margin"):
        oracle = get_label_quality_scores(given, probs, method=name)
        np.testing.assert_allclose(getattr(doubts, name), oracle, atol=1e-6)
        np.testing.assert_array_equal(doubts.ranking(name), np.argsort(oracle, kind="stable"))
    issues = find_label_issues(given, probs, return_indices_ranked_by="self_confidence")
    assert set(issues[:4]) <= set(doubts.ranking()[:8])


def test_p_wrong_follows_bayes():
    probs = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.6, 0.3, 0.1], [0.1, 0.7, 0.2]])
    given = [0, 0, 1, 1]
    doubts = judge_labels(given, probs, noise=0.3)
    for row, label in enumerate(given):  # the truth follows the model; a label is the truth or, at times, random
        joint = [probs[row, truth] * (0.7 * (truth == label) + 0.3 / 3) for truth in range(3)]
        assert doubts.p_wrong[row] == pytest.approx(1 - joint[label] / sum(joint))


def test_a_label_alone_in_its_class_is_not_judged():
    x, y = blobs(5)
    x, y = x[:16], y[:16]  # one label of the last class
    doubts = find_doubtful_labels(x, y)
    assert doubts.judged.tolist() == [True] * 15 + [False]
    assert doubts.ranking()[-1] == 15
    assert np.isnan(doubts.p_wrong[15])
    one_each = find_doubtful_labels(x[[0, 5, 10]], [0, 1, 2])
    assert not one_each.judged.any()


def test_all_copies_and_classes_without_labels():
    doubts = find_doubtful_labels(np.ones((8, 3)), [0, 1] * 4, classes=5)
    assert np.isfinite(doubts.self_confidence).all()
    assert doubts.self_confidence.max() - doubts.self_confidence.min() < 0.2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: find_doubtful_labels(np.eye(3), [1, 1, 1]), "labels must hold at least two classes"),
        (lambda: find_doubtful_labels(np.eye(3), [0, 1]), "labels must have one entry per row"),
        (lambda: find_doubtful_labels(np.eye(3), [0, 1, -1]), "labels must hold classes from 0, got -1 to 1"),
        (lambda: find_doubtful_labels(np.eye(3), [0, 1, 2], classes=2), "labels must hold classes from 0 to 1"),
        (lambda: find_doubtful_labels(np.eye(2) * np.nan, [0, 1]), "features must be finite"),
        (lambda: judge_labels([0, 1], [[2.0, 3.0], [1.0, 0.0]]), "probs must be probabilities"),
    ],
)
def test_mistakes_cost_one_line(call, message):
    with pytest.raises(UserError, match=message):
        call()

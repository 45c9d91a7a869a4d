import math

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torchmetrics.functional.classification import multiclass_accuracy

from vcc_infuse import metrics
from vcc_infuse.errors import UserError


@pytest.fixture(scope="module")
def task():
    """Logits, probabilities and truth of an imperfect classifier of six classes, two of them rare."""
    rng = np.random.default_rng(0)
    y = rng.choice(6, size=400, p=[0.4, 0.3, 0.2, 0.06, 0.03, 0.01])
    logits = rng.normal(size=(400, 6)) + 1.5 * np.eye(6)[y]
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return logits, probs, y


def test_error(task):
    _, probs, y = task
    assert metrics.error(probs.argmax(1), y) == pytest.approx(1 - sk.accuracy_score(y, probs.argmax(1)))
    assert metrics.error([0, 1, 2], torch.tensor([0, 1, 1])) == pytest.approx(1 / 3)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_top_k_error(task, k):
    _, probs, y = task
    theirs = multiclass_accuracy(torch.tensor(probs), torch.tensor(y), 6, average="micro", top_k=k)
    assert metrics.top_k_error(probs, y, k) == pytest.approx(1 - float(theirs), abs=1e-6)


def test_top_k_ties_and_large_k(task):
    _, probs, y = task
    assert metrics.top_k_error(probs, y, 6) == metrics.top_k_error(probs, y, 50) == 0.0
    flat = np.full((6, 6), 1 / 6)
    assert metrics.top_k_error(flat, np.arange(6), 2) == pytest.approx(4 / 6)
    assert metrics.top_k_error(flat, np.arange(6), 1) == metrics.error(flat.argmax(1), np.arange(6))


def test_per_class_and_balanced_error(task):
    _, probs, y = task
    pred = probs.argmax(1)
    matrix = sk.confusion_matrix(y, pred)
    expected = 1 - matrix.diagonal() / matrix.sum(1)
    np.testing.assert_allclose(metrics.per_class_error(pred, y, 6), expected)
    balanced = 1 - sk.balanced_accuracy_score(y, pred)
    assert metrics.balanced_error(pred, y, 6) == pytest.approx(balanced)
    assert metrics.per_class_error(pred, y, 8)[6:].isnan().all()
    assert metrics.balanced_error(pred, y, 8) == pytest.approx(balanced)


def test_confusion_counts_and_what_a_class_is_taken_for(task):
    _, probs, y = task
    pred = probs.argmax(1)
    counts = metrics.confusion_counts(pred, y, 8)
    np.testing.assert_array_equal(counts, sk.confusion_matrix(y, pred, labels=range(8)))
    labels, images = metrics.taken_for(counts)
    for true in range(8):
        wrong = [int(guess) for guess, truth in zip(pred, y, strict=True) if truth == true != guess]
        most = max((wrong.count(label) for label in set(wrong)), default=0)
        assert images[true] == most
        assert labels[true] == min((label for label in set(wrong) if wrong.count(label) == most), default=-1)
    assert counts.trace() == (pred == y).sum()  # the matrix itself is left as it is


def test_nll(task):
    logits, probs, y = task
    assert metrics.nll(logits, y) == pytest.approx(sk.log_loss(y, probs))
    assert metrics.nll(logits + 1000, y) == pytest.approx(sk.log_loss(y, probs))
    assert metrics.nll(np.log(probs), y) == pytest.approx(sk.log_loss(y, probs))
    assert metrics.nll([[-math.inf, 0.0]], [1]) == 0.0


def test_brier(task):
    _, probs, y = task
    total = sum((probs[i, k] - (y[i] == k)) ** 2 for i in range(400) for k in range(6))
    assert metrics.brier(probs, y) == pytest.approx(total / 400)
    binary, truth = probs[:, :2] / probs[:, :2].sum(1, keepdims=True), (y > 0).astype(int)
    one_sided = np.mean((binary[:, 1] - truth) ** 2)
    assert metrics.brier(binary, truth) == pytest.approx(2 * one_sided)
    assert one_sided == pytest.approx(sk.brier_score_loss(truth, binary[:, 1]))


@pytest.mark.parametrize("digits", [1, 8])
def test_auroc(task, digits):
    _, probs, y = task
    confidence, correct = probs.max(1).round(digits), probs.argmax(1) == y
    assert metrics.auroc(confidence, correct) == pytest.approx(sk.roc_auc_score(correct, confidence))


def test_auroc_needs_both_kinds():
    assert math.isnan(metrics.auroc([0.1, 0.2], [1, 1]))
    assert metrics.auroc([0.3, 0.3], [0, 1]) == 0.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.error([0, 1], [0]), "pred has 2, y has 1"),
        (lambda: metrics.error([0.5], [0]), "fractions"),
        (lambda: metrics.error([0], [-1]), "y must hold classes of at least 0, got -1"),
        (lambda: metrics.brier([[0.5, 0.5]], [2]), "y must hold classes below 2, got 2"),
        (lambda: metrics.brier([[3.0, 0.5]], [1]), "softmax"),
        (lambda: metrics.nll([[math.inf, 0]], [0]), "diverged"),
        (lambda: metrics.nll([[math.nan, 0]], [0]), "NaN"),
        (lambda: metrics.top_k_error([[0.5, 0.5]], [0], 0), "k must be an integer of at least 1, got 0"),
        (lambda: metrics.per_class_error([3], [0], 3), "pred must hold classes below 3, got 3"),
        (lambda: metrics.balanced_error([], [], 3), "empty"),
        (lambda: metrics.classwise_ece([[0.5, 0.5]], [0, 1]), "probs has 1, y has 2"),
    ],
)
def test_errors_are_one_line(call, message):
    with pytest.raises(UserError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([1000, 599, 359, 215, 129, 77, 46, 27, 16, 10], ([0, 1, 2], [3, 4, 5, 6], [7, 8, 9])),
        ([10, 100, 50], ([1], [2], [0])),
        ([3, 9], ([1], [], [0])),
        ([5, 5, 5, 1], ([0], [1, 2], [3])),
    ],
)
def test_groups_are_thirds_by_label_count(counts, expected):
    assert tuple(metrics.tail_groups(counts)) == expected
    assert tuple(metrics.tail_groups(torch.tensor(counts))) == expected


@pytest.mark.parametrize("classes", range(2, 40))
def test_every_class_is_in_one_group(classes):
    groups = metrics.tail_groups(list(range(classes)))
    assert sorted([*groups.head, *groups.medium, *groups.tail]) == list(range(classes))
    assert len(groups.head) == len(groups.tail)


def test_group_errors_are_means_of_class_errors():
    errors = [0.1, 0.2, 0.3, 0.4, 0.5, math.nan, 0.9]
    found = metrics.group_errors(errors, [70, 60, 50, 40, 30, 20, 10])
    assert found == pytest.approx({"error_head": 0.15, "error_medium": 0.4, "error_tail": 0.9})


@pytest.mark.parametrize("counts", [[4, 4, 4], [5, 4, 4]])
def test_nearly_balanced_classes_have_no_groups(counts):
    assert metrics.group_errors([0.1, 0.2, 0.3], counts) == {}


def test_a_group_without_test_examples_is_left_out():
    assert metrics.group_errors([0.1, 0.2, math.nan], [9, 5, 1]) == pytest.approx(
        {"error_head": 0.1, "error_medium": 0.2}
    )


def test_lengths_must_match():
    with pytest.raises(UserError, match="errors has 2, label_counts has 3"):
        metrics.group_errors([0.1, 0.2], [9, 5, 1])

import math

import numpy as np
import pytest
import torch

from vcc_infuse.inference.evaluate import measure, name_classes
from vcc_infuse.training.summary import TrainingStats, about_classes
from vcc_infuse.types import Losses, PseudoLabels


def test_coverage_and_precision_match_a_slow_loop():
    torch.manual_seed(0)
    tally, rows = TrainingStats(3), []
    for _ in range(4):
        labels, weights = torch.randint(0, 3, (20,)), torch.rand(20) * (torch.rand(20) > 0.4)
        truth = torch.where(torch.rand(20) < 0.2, -1, torch.randint(0, 3, (20,)))
        tally.add(Losses(PseudoLabels(labels, weights), a=torch.tensor(2.0)), truth)
        tally.steps += 1
        rows += zip(labels.tolist(), weights.tolist(), truth.tolist(), strict=True)
    figures = tally.read()
    selected = sum(w for _, w, _ in rows)
    known = sum(w for _, w, t in rows if t >= 0)
    assert figures["pseudo_label_coverage"] == pytest.approx(selected / len(rows))
    assert figures["pseudo_label_precision"] == pytest.approx(sum(w for k, w, t in rows if k == t) / known)
    ones = [(w, t) for k, w, t in rows if k == 1]
    assert figures["pseudo_label_coverage_per_class"][1] == pytest.approx(sum(w for w, _ in ones) / len(ones))
    assert figures["loss_a"] == 2.0


def test_nothing_selected_has_no_precision():
    tally = TrainingStats(2)
    tally.add(Losses(PseudoLabels(torch.tensor([0, 1]), torch.zeros(2)), a=torch.tensor(1.0)), torch.tensor([0, 1]))
    assert math.isnan(tally.read()["pseudo_label_precision"])
    assert tally.read()["pseudo_label_coverage"] == 0


def test_without_hidden_labels_there_is_no_precision():
    tally = TrainingStats(2, checked=False)
    tally.add(Losses(PseudoLabels(torch.tensor([0, 1]), torch.ones(2))), torch.tensor([-1, -1]))
    figures = tally.read()
    assert figures["pseudo_label_coverage"] == 1
    assert not [name for name in figures if "precision" in name]


def test_state_round_trip():
    a, b = TrainingStats(2), TrainingStats(2)
    a.add(Losses(a=torch.tensor(1.0)), torch.zeros(0))
    a.steps = 3
    b.load_state_dict(a.state_dict())
    assert a.read() == b.read()


def test_classes_have_names_counts_and_what_they_are_taken_for():
    rng = np.random.default_rng(0)
    names = ("cat", "dog", "owl")
    y = torch.tensor(rng.integers(0, 2, 60))  # no owl
    logits = torch.tensor(rng.normal(size=(60, 3)))
    figures = measure(logits, logits.softmax(1).amax(1), y, bins=5)
    named = name_classes({**figures, "pseudo_label_share_per_class": [0.5, 0.3, 0.2]}, names, [4, 3, 2])
    assert not [name for name in named if name.endswith("_per_class")]
    assert named["error"] == figures["error"]
    guesses = [names[i] for i in logits.argmax(1)]
    truths = [names[i] for i in y]
    for row, labels, share in zip(named["per_class"], (4, 3, 2), (0.5, 0.3, 0.2), strict=True):
        name = row["class"]
        answers = [guess for guess, truth in zip(guesses, truths, strict=True) if truth == name]
        wrong = [guess for guess in answers if guess != name]
        assert (row["labels"], row["pseudo_label_share"]) == (labels, share)
        assert (row["test_images"], row["answers"]) == (len(answers), guesses.count(name))
        assert row["error"] == (pytest.approx(len(wrong) / len(answers)) if answers else None)
        assert row["taken_for"] == (max(sorted(set(wrong)), key=wrong.count) if wrong else None)
        assert row["taken_for_images"] == (wrong.count(row["taken_for"]) if wrong else 0)


def test_without_a_test_set_a_class_has_its_labels_and_its_share():
    named = name_classes({"pseudo_label_share_per_class": [0.9, 0.1], "loss_a": 1.0}, ("a", "b"), [3, 1])
    assert named == {
        "loss_a": 1.0,
        "per_class": [
            {"class": "a", "labels": 3, "pseudo_label_share": 0.9},
            {"class": "b", "labels": 1, "pseudo_label_share": 0.1},
        ],
    }


def row(name, labels, wrong, images=40, answers=40, **more):
    """A class of which `wrong` of the test images are mistaken for dogs."""
    return {"class": name, "labels": labels, "test_images": images, "error": wrong / images, "answers": answers,
            "taken_for": "dog" if wrong else None, "taken_for_images": wrong, **more}  # fmt: skip


def test_a_class_with_few_labels_that_fails_is_named():
    table = [row("cat", 15, 8), row("dog", 15, 6), row("owl", 15, 5), row("monkey", 2, 39, answers=1)]
    assert list(about_classes(table)) == [
        "class 'monkey' has 2 labels (the others about 15) and 97.5 % error: label more of it"
    ]
    table[-1]["answers"] = 0
    assert list(about_classes(table)) == [
        "class 'monkey' has 2 labels (the others about 15) and 97.5 % error, and is never answered: label more of it"
    ]


def test_a_class_that_fails_with_as_many_labels_as_the_others_is_confused():
    (text,) = about_classes([row("cat", 15, 30), row("dog", 15, 4), row("owl", 15, 5)])
    assert text.startswith("class 'cat' has 15 labels and 75.0 % error; 30 of its 40 images are taken for 'dog': look")


@pytest.mark.parametrize(
    "table",
    [
        [row("cat", 15, 8), row("dog", 15, 6), row("monkey", 2, 9)],  # few labels that are enough
        [row("cat", 15, 1, images=4), row("dog", 15, 0, images=4), row("monkey", 2, 2, images=4)],  # may be chance
        [row("cat", 15, 30), row("dog", 15, 33), row("owl", 15, 34)],  # all fail alike
        [row("cat", 15, 40, answers=0), row("dog", 15, 0, answers=80)],  # a single answer: a warning says so
        [row("cat", 1, 3)],
    ],
)
def test_no_advice_where_there_is_no_reason(table):
    assert list(about_classes(table)) == []


def test_the_worst_three_are_named_and_what_is_never_answered_always_is():
    table = [*(row(f"good {i}", 15, 2) for i in range(8)), *(row(f"bad {i}", 2, 30 + i) for i in range(5))]
    assert [text.split("'")[1] for text in about_classes(table)] == ["bad 4", "bad 3", "bad 2"]
    everywhere = [row("cat", 15, 33), row("dog", 15, 34), row("owl", 15, 40, answers=0)]
    (text,) = about_classes(everywhere)
    assert "'owl' has 15 labels and 100.0 % error, and is never answered" in text


def test_without_a_test_set_few_labels_and_missing_pseudo_labels_are_named():
    table = [{"class": "cat", "labels": 15}, {"class": "dog", "labels": 14}, {"class": "monkey", "labels": 1}]
    assert list(about_classes(table)) == ["class 'monkey' has 1 label (the others about 14.5): label more of it"]
    shares = [0.6, 0.4, 0.0]
    even = [{**line, "labels": 15, "pseudo_label_share": share} for line, share in zip(table, shares, strict=True)]
    assert list(about_classes(even)) == [
        "class 'monkey' has 15 labels, and no unlabeled image is taken for it: label more of it"
    ]


def test_totals_are_of_the_whole_run_and_count_wrong_labels_both_ways():
    tally = TrainingStats(2)
    for truth in (torch.tensor([0, 1, 1, -1]), torch.tensor([1, 1, 0, 0])):
        pseudo = PseudoLabels(torch.tensor([0, 0, 1, 1]), torch.tensor([1.0, 1.0, 0.0, 1.0]))
        tally.add(Losses(pseudo), truth)
        tally.reset()
    # Trusted with known truth: right, wrong; then wrong, wrong, wrong. Six of eight rows are trusted.
    assert tally.read_total() == pytest.approx({"trusted_error": 4 / 5, "trusted_and_wrong": 6 / 8 * 4 / 5})
    other = TrainingStats(2)
    other.load_state_dict(tally.state_dict())
    assert other.read_total() == tally.read_total()
    assert TrainingStats(2).read_total() == {}
    assert TrainingStats(2, checked=False).read_total() == {}
    nothing = TrainingStats(2)
    nothing.add(Losses(PseudoLabels(torch.tensor([0, 1]), torch.zeros(2))), torch.tensor([1, 1]))
    nothing.reset()
    assert nothing.read_total() == {"trusted_and_wrong": 0.0}

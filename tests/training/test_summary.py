import math

import pytest
import torch

from vcc_infuse.training.summary import TrainingStats
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

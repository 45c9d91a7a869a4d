"""Cuts of a confidence, against slow loops and against what the chosen cuts do on further examples."""

import math

import numpy as np
import pytest
from scipy.stats import beta

from vcc_infuse import metrics
from vcc_infuse.errors import UserError
from vcc_infuse.metrics.abstain import CUTS, TARGETS


def draw(rng, size):
    """Confidence that says how often it is right."""
    confidence = rng.beta(3, 1.2, size)
    return confidence, rng.random(size) < confidence


def slow_cut(confidence, correct, cut):
    kept = [bool(right) for score, right in zip(confidence, correct, strict=True) if score >= cut]
    return len(kept), kept.count(False)


def test_a_cut_counts_what_remains_and_has_a_clopper_pearson_interval():
    confidence, correct = draw(np.random.default_rng(0), 150)
    for cut in (0.0, 0.5, 0.9):
        answered, wrong = slow_cut(confidence, correct, cut)
        found = metrics.at_cut(confidence, correct, cut)
        assert (found.cut, found.answered) == (cut, answered)
        assert found.coverage == pytest.approx(answered / 150)
        assert found.error == pytest.approx(wrong / answered)
        assert found.error_low == pytest.approx(beta.ppf(0.025, wrong, answered - wrong + 1))
        assert found.error_high == pytest.approx(beta.ppf(0.975, wrong + 1, answered - wrong))


def test_a_cut_above_everything_answers_nothing():
    found = metrics.at_cut([0.2, 0.3], [True, False], 0.5)
    assert (found.answered, found.coverage, found.error_low, found.error_high) == (0, 0, 0, 1)
    assert math.isnan(found.error)


@pytest.mark.parametrize("seed", range(4))
def test_suggested_cuts_are_the_lowest_that_keep_their_targets(seed):
    confidence, correct = draw(np.random.default_rng(seed), 40 + 150 * seed)
    confidence = confidence.round(2)  # many equal ones, some of them on a cut
    expected = []
    for target in TARGETS:
        for cut in CUTS:
            answered, wrong = slow_cut(confidence, correct, cut)
            if answered >= 1 / target and wrong / answered <= target:
                if cut > 0 and cut not in expected:
                    expected.append(cut)
                break
    assert [found.cut for found in metrics.suggest_cuts(confidence, correct)] == expected
    assert len(expected) >= 2


def test_the_intervals_of_chosen_cuts_hold_on_further_examples():
    rng = np.random.default_rng(1)
    confidence, correct = draw(rng, 100_000)
    held = []
    for _ in range(100):
        for found in metrics.suggest_cuts(*draw(rng, 280), targets=(0.2, 0.1, 0.05)):
            truth = 1 - correct[confidence >= found.cut].mean()
            held.append(found.error_low <= truth <= found.error_high)
    assert len(held) > 250
    assert np.mean(held) > 0.93


@pytest.mark.parametrize(("confidence", "correct"), [
    ([0.9] * 200, [True] * 200),  # nothing to gain
    ([0.9] * 200, [False] * 200),  # nothing to keep
    ([0.9] * 200, [True, False] * 100),  # nothing to tell them apart
    ([0.99, 0.1], [True, False]),  # too few to show an error
    ([0.5], [True]),
])  # fmt: skip
def test_no_cut_where_none_helps(confidence, correct):
    assert metrics.suggest_cuts(confidence, correct) == []
    assert metrics.abstain_table(confidence, correct) == []


def rows(*groups):
    """(confidence, right, wrong) groups as arrays."""
    confidence = np.concatenate([np.full(right + wrong, score) for score, right, wrong in groups])
    correct = np.concatenate([[True] * right + [False] * wrong for _, right, wrong in groups])
    return confidence, correct


def test_the_suggestion_is_the_strictest_that_answers_two_thirds():
    table = metrics.abstain_table(*rows((0.95, 400, 0), (0.85, 270, 30), (0.5, 200, 100)))
    assert [(row["cut"], row["coverage"], row["suggested"]) for row in table] == [(0.51, 0.7, True), (0.86, 0.4, False)]


def test_where_no_cut_answers_two_thirds_the_mildest_is_suggested():
    table = metrics.abstain_table(*rows((0.95, 200, 0), (0.85, 90, 10), (0.5, 100, 600)))
    assert [(row["cut"], row["suggested"]) for row in table] == [(0.51, True), (0.86, False)]


def test_one_mistake_is_one_line():
    with pytest.raises(UserError, match="must not be empty"):
        metrics.suggest_cuts([], [])
    with pytest.raises(UserError, match="NaN"):
        metrics.suggest_cuts([0.5, math.nan], [True, False])
    with pytest.raises(UserError, match="same length"):
        metrics.at_cut([0.5], [True, False], 0.5)

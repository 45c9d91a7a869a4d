"""RobustINFUSE's rule: the harmful are dropped, the rest is drawn at random within class quotas."""

import re
from dataclasses import replace

import numpy as np
import pytest
from tests.helpers.scored_rows import make_table

from vcc_infuse.errors import OptionError
from vcc_infuse.selectors import INFUSE, RobustINFUSE
from vcc_infuse.selectors.infuse.robust import random_scores
from vcc_infuse.selectors.ranking import Scored

TOP = {"strategy": "top", "quota": "none"}


def test_without_quota_and_randomness_it_is_infuse(make_pool):
    for pool in (make_pool(), make_pool(number=9)):
        assert (
            RobustINFUSE(keep=0.3, **TOP).select(pool, 90).ids.tolist()
            == INFUSE(keep=0.3).select(pool, 90).ids.tolist()
        )


@pytest.mark.parametrize("options", [
    {"quota": "some"}, {"score_momentum": 1.0}, {"random_fraction": -0.1}, {"strategy": "best"}, {"params": "tail"},
    {"score_with": "both"}, {"keep": 0}, {"mixup_draws": 0},
])  # fmt: skip
def test_wrong_options_are_named(options):
    name = list(options)[-1]
    with pytest.raises(OptionError, match=f"^{name} must .*, got {re.escape(repr(options[name]))}$"):
        RobustINFUSE(**options)


@pytest.mark.parametrize("name", ["quota", "score_momentum", "random_fraction", "strategy", "resample_each_pass"])
def test_the_papers_selection_has_none_of_these_options(name):
    with pytest.raises(TypeError):
        INFUSE(**{name: "none"})


def test_the_random_fraction_is_drawn_from_what_the_ranking_leaves_out(make_pool):
    pool = make_pool()
    ranked = RobustINFUSE(keep=0.3, **TOP).select(pool, 90).ids
    mixed = RobustINFUSE(keep=0.3, random_fraction=0.4, **TOP).select(pool, 90).ids
    assert mixed[:54].tolist() == ranked[:54].tolist()
    assert len(set(mixed.tolist())) == 90
    assert len(set(mixed.tolist()) & set(ranked.tolist())) < 80
    other = RobustINFUSE(keep=0.3, random_fraction=0.4, **TOP).select(make_pool(number=8), 90).ids
    assert set(other[54:].tolist()) != set(mixed[54:].tolist())


def test_quota_keeps_classes_that_the_ranking_drops(make_pool):
    pool = make_pool()
    counts = {}
    for quota in ("none", "proportional", "equal"):
        selector = RobustINFUSE(keep=0.1, strategy="top", quota=quota)
        kept = selector.select(pool, 30).ids.numpy()
        counts[quota] = np.bincount(selector.selection_.rows.labels[kept], minlength=10)
    selected = np.bincount(selector.selection_.rows.labels[selector.selection_.rows.selected], minlength=10)
    assert ((counts["equal"] > 0) == (selected > 0)).all()
    assert ((counts["none"] > 0) < (selected > 0)).any()
    exact = 30 * selected / selected.sum()
    assert np.abs(counts["proportional"] - exact).max() < 1


def test_score_momentum_averages_refreshes_and_survives_a_resume(make_pool):
    pools = [make_pool(number=n) for n in (1, 2, 3)]
    raw = []
    for pool in pools:
        selector = RobustINFUSE(keep=0.3)
        selector.select(pool, 90)
        raw.append(selector.selection_.rows)
    averaging, expected, seen = RobustINFUSE(keep=0.3, score_momentum=0.5), np.zeros(300), np.zeros(300, bool)
    for number, (pool, rows) in enumerate(zip(pools, raw, strict=True)):
        if number == 2:  # stop and resume in a new process
            saved = {name: value.clone() for name, value in averaging.state_dict().items()}
            averaging = RobustINFUSE(keep=0.3, score_momentum=0.5)
            averaging.load_state_dict(saved)
        averaging.select(pool, 90)
        scaled = rows.scores / np.abs(rows.scores[rows.selected]).mean()
        expected = np.where(rows.selected, np.where(seen, 0.5 * expected + 0.5 * scaled, scaled), expected)
        seen |= rows.selected
        found = averaging.selection_.rows
        np.testing.assert_allclose(found.scores[found.selected], expected[found.selected], rtol=1e-4, atol=1e-6)
    assert RobustINFUSE(keep=0.3).state_dict() == {}


def test_harmful_examples_are_dropped_and_the_rest_is_drawn_at_random(make_pool, eval_mode):
    pool = eval_mode(make_pool())
    scored = RobustINFUSE(keep=0.3).score_pool(pool)
    harmful = set(np.flatnonzero((scored["weight"] > 0).numpy() & (scored["score"] < 0).numpy()))
    budget = pool.size - len(harmful) - 5
    assert 0 < len(harmful) < pool.size - 10
    first = RobustINFUSE(keep=0.3, quota="none").choose(pool, budget).coreset.ids.tolist()
    assert len(set(first)) == budget
    assert not harmful & set(first)
    later = (
        RobustINFUSE(keep=0.3, quota="none").choose(replace(pool, number=pool.number + 1), budget).coreset.ids.tolist()
    )
    assert set(first) != set(later)
    # If there are too few harmless examples, the least harmful come next.
    more = RobustINFUSE(keep=0.3, quota="none").choose(pool, pool.size - 3).coreset.ids.tolist()
    left = sorted(set(range(pool.size)) - set(more))
    worst = sorted(harmful, key=lambda i: float(scored["score"][i]))[:3]
    assert left == sorted(worst)


def test_by_default_selected_and_unselected_examples_keep_their_proportions_harmless_first(make_pool, eval_mode):
    """Unselected examples do no harm, but they must not take the places of selected ones."""
    pool = eval_mode(make_pool())
    scored, kept = RobustINFUSE(keep=0.3).score_pool(pool), RobustINFUSE(keep=0.3).choose(pool, 90).coreset.ids.numpy()
    used, score = (scored["weight"] > 0).numpy(), scored["score"].numpy()
    kinds = 2 * scored["label"].numpy() + used
    harmful = used & (score < 0)
    counts = np.bincount(kinds, minlength=20)
    assert counts[::2].sum() > 10  # enough of both kinds for a meaningful comparison
    assert counts[1::2].sum() > 10
    assert np.abs(np.bincount(kinds[kept], minlength=20) - 90 * counts / pool.size).max() < 1
    left_out = np.setdiff1d(np.arange(pool.size), kept)
    for kind in range(1, 20, 2):
        mine, others = kept[kinds[kept] == kind], left_out[kinds[left_out] == kind]
        if harmful[mine].any():
            assert harmful[others].all()
            assert score[others].max(initial=-np.inf) <= score[mine[harmful[mine]]].min()


def test_an_equal_quota_does_not_separate_selected_and_unselected():
    """Three places per class; counted separately, the class with unselected examples would get four."""
    labels, selected = np.repeat([0, 1, 1], [10, 5, 5]), np.repeat([True, True, False], [10, 5, 5])
    rows = Scored(np.arange(20), np.ones(20), selected, np.ones(20), labels)
    kept = RobustINFUSE(keep=0.3, quota="equal").coreset(rows, 6, classes=2, rng=np.random.default_rng).ids
    assert np.bincount(labels[kept]).tolist() == [3, 3]


def test_random_scores_replace_harmless_scores_only():
    rows = make_table(4000)._replace(scores=np.random.default_rng(1).normal(size=4000).astype(np.float32))
    harmful = rows.selected & (rows.scores < 0)
    drawn = random_scores(rows, np.random.default_rng(3)).scores
    assert drawn[harmful].max() < 0 <= drawn[~harmful].min()
    np.testing.assert_array_equal(drawn[harmful], rows.scores[harmful])
    free = rows.selected & ~harmful
    assert abs(np.corrcoef(drawn[free], rows.scores[free])[0, 1]) < 0.1  # the size of a harmless score has no effect
    assert abs(drawn[free].mean() - 0.5) < 0.04
    other = random_scores(rows, np.random.default_rng(4)).scores
    assert (drawn[free] != other[free]).mean() > 0.99

"""What is shown next: random where promises need it, uncertain where the model learns, never what was judged."""

import numpy as np
import pytest
from scipy.stats import binomtest

from benchmarks.human_minutes import next_class
from vcc_infuse.errors import UserError
from vcc_infuse.label.policy import (
    AUDIT_FROM,
    SURE,
    audit_reserve,
    grid_rows,
    is_audit,
    next_batch,
)
from vcc_infuse.pool_audit import suggest_labels, unit_rows


@pytest.fixture
def probs():
    rng = np.random.default_rng(0)
    return rng.dirichlet((0.2, 0.2, 0.2), 600)


def test_every_fifth_image_is_an_audit_image_once_there_is_a_model():
    audits = [is_audit(position, 3) for position in range(1000)]
    assert not any(audits[:AUDIT_FROM])
    assert [sum(audits[start : start + 5]) for start in range(AUDIT_FROM, 1000, 5)] == [1] * ((1000 - AUDIT_FROM) // 5)
    assert audits == [is_audit(position, 3) for position in range(1000)]
    assert audits != [is_audit(position, 4) for position in range(1000)]
    assert len({np.argmax(audits[start : start + 5]) for start in range(AUDIT_FROM, 1000, 5)}) == 5


def test_audit_images_are_a_fixed_random_part_of_the_pool():
    reserve = audit_reserve(1000, 0)
    assert len(set(reserve)) == 100
    assert set(audit_reserve(1000, 1)) != set(reserve)
    assert len(audit_reserve(10**6, 0)) == 500
    assert len(audit_reserve(1, 0)) == 1
    often = np.bincount(np.concatenate([audit_reserve(20, seed) for seed in range(2000)]), minlength=20)
    assert min(binomtest(int(count), 2000, 0.1).pvalue for count in often) > 1e-4


def test_next_images_are_those_of_suggest_without_the_excluded():
    rng = np.random.default_rng(0)
    features = unit_rows(rng.normal(size=(80, 8)))
    labels = np.full(80, -1)
    exclude = rng.random(80) < 0.5
    chosen = next_batch(features, labels, count=6, exclude=exclude, seed=1)
    oracle = suggest_labels(features, labels, count=6, candidates=np.flatnonzero(~exclude), seed=1)
    assert chosen.rows.tolist() == oracle.rows.tolist()
    assert chosen.strategy == "coverage"
    labels[:40] = np.arange(40) % 3
    assert next_batch(features, labels, count=3, classes=3).strategy == "margin"
    assert len(next_batch(features, labels, exclude=np.ones(80, bool)).rows) == 0


@pytest.mark.parametrize("purpose", ["teach", "confirm"])
def test_tiles_are_drawn_from_the_batch_with_equal_chances(probs, purpose):
    """Confidence must not decide who is looked at: the promise on the rest of the batch rests on that."""
    nobody = np.zeros(len(probs), bool)
    batch = grid_rows(probs, nobody, 1, purpose=purpose).batch
    seen = np.zeros(len(probs), int)
    for seed in range(2000):
        grid = grid_rows(probs, nobody, 1, count=20, purpose=purpose, batch=batch, seed=seed)
        seen[grid.rows] += 1
        assert (np.diff(grid.confidence) <= 0).all()
    assert seen.sum() == 20 * 2000
    assert min(binomtest(int(seen[row]), 2000, 20 / len(batch)).pvalue for row in batch) > 1e-5


def test_a_batch_to_teach_is_the_less_certain_half(probs):
    judged = np.arange(600) % 7 == 0
    rows = np.flatnonzero((probs.argmax(1) == 2) & ~judged)
    batch = grid_rows(probs, judged, 2, count=10).batch
    assert len(batch) == (len(rows) + 1) // 2
    assert probs[batch, 2].max() <= probs[np.setdiff1d(rows, batch), 2].min()
    assert set(grid_rows(probs, judged, 2, count=10**6).rows) == set(rows)


def test_a_batch_to_confirm_is_the_longest_that_is_expected_to_be_right(probs):
    judged = np.zeros(600, bool)
    rows = np.flatnonzero(probs.argmax(1) == 0)
    order = rows[np.argsort(-probs[rows, 0])]
    lengths = [n for n in range(1, len(order) + 1) if (1 - probs[order[:n], 0]).mean() <= SURE]
    batch = grid_rows(probs, judged, 0, purpose="confirm").batch
    assert 0 < max(lengths) < len(rows)
    assert set(batch) == set(order[: max(lengths)])
    assert len(grid_rows(np.full((5, 2), 0.5), np.zeros(5, bool), 0, purpose="confirm").rows) == 0


def test_a_batch_goes_on_without_what_was_looked_at_even_if_the_model_changed(probs):
    judged = np.zeros(600, bool)
    first = grid_rows(probs, judged, 0, count=30, seed=1)
    judged[first.rows] = True
    second = grid_rows(probs[::-1], judged, 0, count=30, batch=first.batch, seed=2)
    assert second.batch.tolist() == first.batch.tolist()
    assert set(second.rows) <= set(first.batch) - set(first.rows)
    judged[first.batch] = True
    assert len(grid_rows(probs, judged, 0, batch=first.batch).rows) == 0


def test_refused_images_are_of_their_next_class(probs):
    refused = np.zeros(probs.shape, bool)
    refused[:, 0] = probs.argmax(1) == 0
    nobody = np.zeros(600, bool)
    assert len(grid_rows(probs, nobody, 0, refused=refused).rows) == 0
    second = np.flatnonzero(refused[:, 0] & (probs[:, 1] > probs[:, 2]))
    assert set(second) <= set(grid_rows(probs, nobody, 1, refused=refused, count=600).batch)
    assert len(grid_rows(probs, nobody, 2, refused=np.ones(probs.shape, bool)).rows) == 0


def test_classes_take_turns_and_the_least_certain_begins(probs):
    nobody = np.zeros(600, bool)
    doubt = [(1 - probs[probs.argmax(1) == cls, cls]).mean() for cls in range(3)]
    assert next_class(probs, nobody, np.zeros(3)) == np.argmax(doubt)
    assert next_class(probs, nobody, np.array([2, 1, 2])) == 1
    assert next_class(probs, probs.argmax(1) == 1, np.array([2, 1, 3])) == 0
    assert next_class(probs, np.ones(600, bool), np.zeros(3)) is None


def test_mistakes_are_named(probs):
    nobody = np.zeros(600, bool)
    with pytest.raises(UserError, match="cls must be from 0 to 2, got 3"):
        grid_rows(probs, nobody, 3)
    with pytest.raises(UserError, match="count"):
        grid_rows(probs, nobody, 0, count=0)
    with pytest.raises(UserError, match="purpose"):
        grid_rows(probs, nobody, 0, purpose="learn")
    with pytest.raises(UserError, match="position"):
        is_audit(-1, 0)

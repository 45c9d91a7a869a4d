"""Distances and p-values against slow loops; rows of known classes are rarely called foreign."""

import numpy as np
import pytest

from vcc_infuse import UserError
from vcc_infuse.pool_audit import (
    KnownRows,
    Unknown,
    arrays,
    conformal_p,
    find_unknown,
    foreign_clusters,
    known_share,
    unit_rows,
)
from vcc_infuse.pool_audit import unknown as module


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def slow_score(row, others, classes, k):
    """Half the mean distance to the k nearest others, half that to the nearest mean; without classes the first."""
    far = np.mean(sorted(np.linalg.norm(row - other) for other in others)[:k])
    if classes is None:
        return far
    means = [unit(others[classes == label].sum(0)[None])[0] for label in sorted(set(classes.tolist()))]
    return (far + min(np.linalg.norm(row - mean) for mean in means)) / 2


def slow(row, labeled, classes, k):
    """Score and p-value: the share of row and labels, each judged by the other labels, that are as far."""
    score = slow_score(row, labeled, classes, min(k, len(labeled)))
    own = [np.inf]
    for i in range(len(labeled)) if len(labeled) > 1 else ():
        rest = np.arange(len(labeled)) != i
        left = None if classes is None else classes[rest]
        own.append(slow_score(labeled[i], labeled[rest], left, min(k, len(labeled) - 1)))
    return score, np.mean(np.array(own + [np.inf] * (len(labeled) + 1 - len(own))) >= score - 1e-6)


@pytest.mark.parametrize("classes", [None, 1, 3])
@pytest.mark.parametrize(("labels", "neighbors"), [(1, 3), (2, 3), (3, 3), (4, 3), (12, 3), (12, 1)])
def test_score_and_p_are_those_of_a_slow_loop(labels, neighbors, classes):
    rng = np.random.default_rng(labels)
    labeled = rng.normal(size=(labels, 5))
    of = None if classes is None else rng.permutation(np.arange(labels) % classes)
    rows = rng.normal(size=(7, 5)) + rng.normal(size=(7, 1))
    result = find_unknown(rows, labeled, of, neighbors=neighbors)
    expected = [slow(unit(row[None])[0], unit(labeled), of, neighbors) for row in rows]
    np.testing.assert_allclose(result.score, [score for score, _ in expected], atol=2e-4)
    np.testing.assert_allclose(result.p, [p for _, p in expected])


def test_blocks_do_not_change_the_result(monkeypatch):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, 6))
    labeled = rng.normal(size=(20, 6))
    classes = np.arange(20) % 3
    whole = find_unknown(rows, labeled, classes)
    monkeypatch.setattr(module, "block_for", lambda columns: 7)
    monkeypatch.setattr(module, "blocks", lambda rows, size=7: arrays.blocks(rows, 7))
    parts = find_unknown(rows, labeled, classes)
    np.testing.assert_allclose(parts.score, whole.score, atol=1e-6)
    np.testing.assert_array_equal(parts.p, whole.p)


def test_p_is_valid_for_known_classes_and_small_for_foreign_ones():
    rng = np.random.default_rng(1)
    centers = 3 * rng.normal(size=(5, 20))
    small = []
    for _ in range(40):
        y = rng.integers(0, 4, 240)
        x = centers[y] + rng.normal(size=(240, 20))
        small.append((find_unknown(x[40:], x[:40], y[:40]).p <= 0.1).mean())
    assert 0.06 < np.mean(small) < 0.11
    foreign = centers[4] + rng.normal(size=(50, 20))
    assert (find_unknown(foreign, x[:40], y[:40]).p <= 0.1).mean() > 0.9


def test_conformal_p_against_a_loop():
    rng = np.random.default_rng(2)
    scores = rng.normal(size=30)
    calibration = rng.normal(size=11).round(1)
    by_loop = [(1 + sum(c >= s for c in calibration)) / 12 for s in scores]
    np.testing.assert_allclose(conformal_p(scores, calibration), by_loop)


@pytest.mark.parametrize("foreign", [0, 1000])
@pytest.mark.parametrize("spread", [1.0, 2.0])
def test_the_known_part_is_found_and_is_all_where_nothing_is_foreign(foreign, spread):
    """Also where most of the pool is of a class that is more spread out than the others."""
    estimates = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        centers = 8 * rng.normal(size=(4, 16))
        scale = np.array([spread, 1.0, 1.0, 1.0])

        def draw(classes, rng=rng, centers=centers, scale=scale):
            return centers[classes] + scale[classes, None] * rng.normal(size=(len(classes), 16))

        labels = np.repeat([0, 1, 2], 10)
        known = KnownRows.of(arrays.unit(draw(labels).astype(np.float32)), labels)
        rows = draw(np.concatenate([np.repeat([0, 1, 2], (800, 100, 100)), np.full(foreign, 3)]))
        rows = arrays.unit(rows.astype(np.float32))
        predicted = (rows @ known.means.T).argmax(1)
        estimates.append(known_share(known.judge(rows).score, predicted, known.own, labels))
    assert np.mean(estimates) == pytest.approx(1000 / (1000 + foreign), abs=0.08)


def test_clusters_of_foreign_rows():
    rng = np.random.default_rng(3)
    centers = 6 * np.eye(8)
    y = np.repeat(np.arange(4), (60, 60, 15, 12))
    x = centers[y] + rng.normal(size=(len(y), 8)) * 0.7
    labeled = np.r_[0:20, 60:80]
    rest = np.setdiff1d(np.arange(len(y)), labeled)
    clusters = foreign_clusters(x[rest], find_unknown(x[rest], x[labeled]))
    members = [set(y[rest[cluster.rows]]) for cluster in clusters[:2]]
    assert sorted(map(sorted, members)) == [[2], [3]]
    assert {cluster.size for cluster in clusters[:2]} == {15, 12}
    for cluster in clusters:
        vectors = unit(x[rest[cluster.rows]])
        mean_cosine = (vectors @ vectors.T).mean(1)
        assert cluster.representative == cluster.rows[mean_cosine.argmax()]
        assert cluster.similarity == pytest.approx(mean_cosine.mean(), abs=1e-4)


def test_nothing_foreign_gives_no_cluster():
    rows = np.eye(6)
    assert foreign_clusters(rows, Unknown(np.zeros(6), np.ones(6))) == []
    copies = np.ones((6, 3))
    (cluster,) = foreign_clusters(copies, Unknown(np.ones(6), np.zeros(6)))
    assert cluster.size == 6


def test_copies_are_all_known():
    copies = np.ones((30, 4)) * [1.0, 2.0, 3.0, 4.0]
    result = find_unknown(copies, copies[:5])
    assert (result.score == 0).all()
    assert (result.p == 1).all()


@pytest.mark.parametrize(
    ("features", "labeled", "message"),
    [
        (np.ones((3, 2)), np.ones((0, 2)), "labeled is empty; label at least one image"),
        (np.array([[1.0, np.nan], [0, 1]]), np.ones((1, 2)), "features must be finite, but 1 of 2 rows"),
        (np.ones((3, 2)), np.ones((2, 3)), "labeled must have the width of features, 2, got 3"),
        (np.ones((0, 2)), np.ones((2, 2)), "features must hold at least one row"),
        (np.ones(3), np.ones((2, 2)), r"features must have shape \(rows, width\)"),
        ([["a", "b"]], np.ones((2, 2)), "features must hold numbers"),
    ],
)
def test_mistakes_cost_one_line(features, labeled, message):
    with pytest.raises(UserError, match=message):
        find_unknown(features, labeled)


def test_unit_rows_standardizes_by_the_reference():
    rng = np.random.default_rng(4)
    pool = (rng.normal(size=(5000, 6)) * [1, 2, 3, 4, 5, 0] + 7).astype(np.float16)
    rows = pool[:9].astype(np.float64)
    std = pool.astype(np.float64).std(0)
    expected = unit(np.where(std > 0, (rows - pool.astype(np.float64).mean(0)) / np.where(std > 0, std, 1), 0))
    np.testing.assert_allclose(unit_rows(rows, reference=pool), expected, atol=1e-4)
    np.testing.assert_allclose(unit_rows(np.ones((3, 2))), np.full((3, 2), 2**-0.5))  # copies alone stay copies

"""The head that spreads labels, against slow loops, scikit-learn and images in clusters."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import NearestNeighbors

from vcc_infuse.label import head
from vcc_infuse.label.head import fit_head, hidden_scores, joined, pool_graph, spread_labels
from vcc_infuse.pool_audit import unit_rows


@pytest.fixture(scope="module")
def pool():
    """Three classes of two clusters each, in 20 dimensions, with noise."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    center = rng.normal(size=(3, 2, 20))
    x = center[y, rng.integers(0, 2, 300)] + 0.5 * rng.normal(size=(300, 20))
    return unit_rows(x), y


def some_labels(y, per_class, seed=0):
    labels = np.full(len(y), -1)
    for cls in range(3):
        rows = np.random.default_rng([seed, cls]).permutation(np.flatnonzero(y == cls))[:per_class]
        labels[rows] = cls
    return labels


def test_the_graph_links_nearest_neighbors(pool):
    x, _ = pool
    affinity = pool_graph(x).affinity.toarray()
    near = NearestNeighbors(n_neighbors=head.NEIGHBORS + 1).fit(x).kneighbors(return_distance=False, X=x)[:, 1:]
    linked = np.zeros((len(x), len(x)), bool)
    linked[np.repeat(np.arange(len(x)), head.NEIGHBORS), near.ravel()] = True
    weight = np.where(linked, np.maximum(x @ x.T, 0) ** 3, 0)
    weight = weight + weight.T
    degree = weight.sum(1)
    np.testing.assert_allclose(affinity, weight / np.sqrt(np.outer(degree, degree)), atol=1e-5)


def test_rows_that_join_are_linked_to_their_nearest(pool):
    """One row more changes the degrees of its neighbors only a little, so that the whole graph is nearly the same."""
    x, _ = pool
    graph = pool_graph(x[:-1])
    last = joined(graph, x[-1:] @ graph.basis)
    whole = pool_graph(x).affinity.toarray()[-1]
    np.testing.assert_array_equal(last.affinity.toarray()[-1] > 0, last.affinity.toarray()[:, -1] > 0)
    cosine = np.maximum(x[:-1] @ x[-1], 0) ** 3
    near = np.argsort(-cosine)[: head.NEIGHBORS]
    expected = np.zeros(len(x))
    expected[near] = cosine[near] / np.sqrt(cosine[near].sum() * graph.degree[near])
    np.testing.assert_allclose(last.affinity.toarray()[-1], expected, atol=1e-4)
    assert np.corrcoef(whole[near], expected[near])[0, 1] > 0.7
    np.testing.assert_array_equal(last.affinity.toarray()[:-1, :-1], graph.affinity.toarray())


def test_hidden_labels_are_not_seen(pool):
    x, y = pool
    labels = some_labels(y, 6)
    graph = pool_graph(x)
    answers = labels[labels >= 0]
    fold = np.arange(len(answers)) % 4 - 1
    scores = hidden_scores(graph, labels, 3, fold)
    changed = labels.copy()
    place = np.flatnonzero(labels >= 0)[fold == 2]
    changed[place] = (changed[place] + 1) % 3
    np.testing.assert_array_equal(hidden_scores(graph, changed, 3, fold)[fold == 2], scores[fold == 2])
    assert (scores[fold < 0] == 0).all()
    assert (scores[fold >= 0].argmax(1) == answers[fold >= 0]).mean() > 0.8


def test_spreading_is_the_sum_of_all_walks(pool):
    """Far enough, the steps reach the limit of Zhou et al.: (1 − a)(1 − a·S)⁻¹ Y."""
    x, y = pool
    labels = some_labels(y, 2)
    affinity = pool_graph(x).affinity
    start = np.zeros((len(y), 3))
    for row in np.flatnonzero(labels >= 0):
        start[row, labels[row]] = 1 / np.sum(labels == labels[row])
    limit = np.linalg.solve(np.eye(len(y)) - head.SPREAD * affinity.toarray(), start)
    reached = limit.sum(1) > 0
    scores = spread_labels(affinity, labels, 3)
    expected = limit[reached] / limit[reached].sum(1, keepdims=True)
    np.testing.assert_allclose(scores[reached], expected, atol=0.02)
    assert (scores[~reached] == 0).all()  # no walk leads there


def test_the_head_is_weighted_ridge_regression(pool):
    x, y = pool
    labels = some_labels(y, 4)
    graph = pool_graph(x)
    fitted = fit_head(graph, labels, 3, calibrate=False)
    spread = spread_labels(graph.affinity, labels, 3)
    known = labels >= 0
    weights = np.where(known, 1.0, head.SPREAD_WEIGHT * spread.max(1))
    targets = np.eye(3)[np.where(known, labels, spread.argmax(1))]
    oracle = Ridge(head.PENALTY).fit(x, targets, sample_weight=weights)
    np.testing.assert_allclose(fitted.basis @ fitted.weight, oracle.coef_.T, atol=1e-3)
    np.testing.assert_allclose(fitted.bias, oracle.intercept_, atol=1e-3)
    np.testing.assert_allclose(fitted.probs(x), fitted.probs_of(graph.rows), atol=1e-5)


def test_with_few_labels_it_beats_logistic_regression():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    x = unit_rows(rng.normal(size=(3, 40))[y] + 1.2 * rng.normal(size=(300, 40)))
    graph = pool_graph(x)
    errors = []
    for seed in range(10):
        labels = some_labels(y, 2, seed)
        known = labels >= 0
        probe = LogisticRegression(C=30).fit(x[known], labels[known])
        fitted = fit_head(graph, labels, 3)
        errors.append([(fitted.probs(x).argmax(1) != y).mean(), (probe.predict(x) != y).mean()])
    ours, theirs = np.mean(errors, axis=0)
    assert ours < theirs / 2


def test_confidence_is_fitted_to_labels_it_did_not_see(pool):
    x, y = pool
    graph = pool_graph(x)
    noisy = some_labels(y, 20)
    known = np.flatnonzero(noisy >= 0)
    noisy[known] = np.random.default_rng(0).permutation(noisy[known])
    clean = fit_head(graph, some_labels(y, 20), 3)
    assert fit_head(graph, noisy, 3).probs(x).max(1).mean() < 0.6 < clean.probs(x).max(1).mean()
    assert abs(clean.probs(x).max(1).mean() - (clean.probs(x).argmax(1) == y).mean()) < 0.1


def test_one_class_no_label_one_image_and_a_class_without_labels(pool):
    x, y = pool
    graph = pool_graph(x)
    assert fit_head(graph, np.full(len(y), -1), 3) is None
    assert fit_head(graph, np.where(y == 0, 0, -1), 3) is None
    assert fit_head(pool_graph(x[:1]), np.array([0]), 2) is None
    probs = fit_head(graph, np.where(y < 2, y, -1), 5).probs(x)
    assert np.isfinite(probs).all()
    assert set(probs.argmax(1)) <= {0, 1}
    twins = fit_head(pool_graph(np.ones((4, 3), np.float32)), np.array([0, 1, -1, -1]), 2)
    assert np.isfinite(twins.probs(np.ones((1, 3), np.float32))).all()

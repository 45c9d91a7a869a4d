"""Coverage against scikit-activeml's TypiClust; margins against a loop; no copies; bad pools."""

import numpy as np
import pytest
from skactiveml.pool import TypiClust
from sklearn.cluster import KMeans

from vcc_infuse import UserError
from vcc_infuse.pool_audit import fit_ridge, ridge, suggest, suggest_labels


def blobs(sizes, width=6, seed=0, spread=0.3):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(sizes)), sizes)
    x = 3 * np.eye(len(sizes), width)[y] + spread * rng.normal(size=(len(y), width))
    return x / np.linalg.norm(x, axis=1, keepdims=True), y


@pytest.mark.parametrize("labeled", [[], [0, 45]])
def test_coverage_is_typiclust(labeled):
    x, y = blobs((40, 30, 25, 20))
    labels = np.full(len(x), -1)
    labels[labeled] = y[labeled]
    count = 4 - len(labeled)
    ours = suggest_labels(x, labels, count=count, seed=3, copy_threshold=1.0)
    oracle = TypiClust(random_state=3, missing_label=-1, k=20).query(x.astype(np.float32), labels, batch_size=count)
    assert sorted(ours.rows) == sorted(oracle)
    assert ours.strategy == "coverage"
    assert set(y[ours.rows]) == set(range(4)) - set(y[labeled])
    assert ours.reasons[0] == f"most typical of {(25 if labeled else 40)} similar images, none of them labeled"


def test_of_several_groups_without_labels_the_largest_comes_first():
    x, y = blobs((10, 50, 30))
    assert y[suggest_labels(x, count=3).rows].tolist() == [1, 2, 0]


def test_large_pools_are_clustered_on_a_part_of_their_rows(monkeypatch):
    monkeypatch.setattr(suggest, "FIT_ROWS", 40)
    monkeypatch.setattr(suggest, "MOST_MEMBERS", 10)
    monkeypatch.setattr(suggest, "DIRECTIONS", 4)
    x, y = blobs((60, 50, 40))
    assert sorted(y[suggest_labels(x, count=3).rows]) == [0, 1, 2]


def test_margin_takes_typical_rows_of_groups_that_are_uncertain_and_hardly_labeled():
    """Against a loop over the groups that k-means finds, each worth the sum of 1 − margin over 1 + its labels."""
    x, y = blobs((60, 60, 60), spread=1.2)
    labels = np.where(np.arange(180) % 60 < 6, y, -1)
    ours = suggest_labels(x, labels, count=5, names=["ant", "bee", "cow"], seed=2, copy_threshold=1.0)
    assert ours.strategy == "margin"
    probs = fit_ridge(x[labels >= 0], labels[labels >= 0], 3).probs(x)
    groups = KMeans(18 + 5, random_state=2).fit_predict(x.astype(np.float32))
    chosen = []
    for _ in range(5):
        worth = np.zeros(23)
        for row in np.flatnonzero(labels < 0):
            best, second = sorted(probs[row])[::-1][:2]
            worth[groups[row]] += 1 - (best - second)
        worth /= [1 + sum(groups[row] == group and (labels[row] >= 0 or row in chosen) for row in range(180))
                  for group in range(23)]  # fmt: skip
        members = np.flatnonzero((labels < 0) & (groups == worth.argmax())).tolist()
        far = np.linalg.norm(x[members][:, None] - x[members], axis=2)
        typical = np.argsort(np.sort(far, axis=1)[:, :21].sum(1), kind="stable")
        chosen.append(next(members[i] for i in typical if members[i] not in chosen))
    assert ours.rows.tolist() == chosen
    assert (np.diff(ours.scores) <= 0).all()
    for row, reason in zip(ours.rows, ours.reasons, strict=True):
        first, second = np.argsort(-probs[row])[:2]
        names = ("ant", "bee", "cow")
        race = f"between {names[first]} ({probs[row, first]:.0%}) and {names[second]} ({probs[row, second]:.0%})"
        close = probs[row, first] < 4 * probs[row, second]
        assert reason == race if close else reason.startswith(f"probably {names[first]} (")


@pytest.mark.parametrize(
    ("sizes", "probs", "reasons"),
    [
        (
            (3, 6), ([0.6, 0.4], [0.15, 0.85]),
            ("between boat (60%) and tree (40%)", "probably tree (85%), typical of 6 similar images with few labels"),
        ),
        (
            (1, 20), ([0.9, 0.1], [0.004, 0.996]),
            ("probably boat (90%), unlike all others",
             "probably tree (over 99%), typical of 20 similar images with few labels"),
        ),
    ],
)  # fmt: skip
def test_a_certain_image_is_not_said_to_be_between_two_classes(sizes, probs, reasons):
    x, _ = blobs(sizes, spread=0.05)
    options = dict(names=["boat", "tree"], strategy="margin", copy_threshold=1.0)
    ours = suggest_labels(x, count=2, probs=np.repeat(probs, sizes, axis=0), **options)
    assert ours.reasons == reasons
    assert (ours.rows < sizes[0]).tolist() == [True, False]


def test_a_batch_is_spread_out():
    """Two places are uncertain, and the least certain rows are all in one of them."""
    x = np.repeat(np.eye(4), 20, axis=0) + 0.1 * np.random.default_rng(0).normal(size=(80, 4))
    probs = np.tile([0.95, 0.05], (80, 1))
    probs[0:20] = [0.5, 0.5]
    probs[20:40] = [0.52, 0.48]
    rows = suggest_labels(x, count=4, probs=probs, strategy="margin", copy_threshold=1.0).rows
    assert {row // 20 for row in rows} >= {0, 1}


def test_auto_changes_at_four_labels_per_class():
    x, y = blobs((30, 30))
    for count, strategy in ((3, "coverage"), (4, "margin")):
        labels = np.where(np.arange(60) % 30 < count, y, -1)
        assert suggest_labels(x, labels, count=2).strategy == strategy
    assert suggest_labels(x, labels, count=2, classes=3).strategy == "coverage"


@pytest.mark.parametrize("strategy", ["coverage", "margin"])
def test_neither_copies_of_labels_nor_of_each_other(strategy):
    x, y = blobs((12, 12, 12), spread=1.0)
    x = np.tile(x, (3, 1))  # every image three times
    labels = np.full(108, -1)
    labels[[0, 5, 12, 20, 24, 30]] = y[[0, 5, 12, 20, 24, 30]]
    rows = suggest_labels(x, labels, count=60, strategy=strategy, copy_threshold=0.9999).rows
    pictures = rows % 36
    assert len(pictures) == len(set(pictures)) <= 30
    assert not set(pictures) & {0, 5, 12, 20, 24, 30}


def test_only_candidates():
    x, _ = blobs((20, 20))
    assert suggest_labels(x, count=9, candidates=[3, 30]).rows.tolist() in ([3, 30], [30, 3])


def test_poor_pools():
    assert suggest_labels([[1.0, 2.0]], count=5).rows.tolist() == [0]
    assert len(suggest_labels(np.ones((40, 3)), count=5).rows) == 1  # all are copies of the first
    one_class = np.r_[np.zeros(10), np.full(30, -1)]
    x, _ = blobs((20, 20))
    assert suggest_labels(x, one_class, count=3).strategy == "coverage"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(labels=[0, 1, 0]), "every candidate is labeled already"),
        (dict(labels=[0, -1]), "labels must have one entry per row"),
        (dict(count=0), "count must be an integer of at least 1, got 0"),
        (dict(strategy="margin"), "strategy needs labels of two classes, got 'margin'; use coverage"),
        (dict(strategy="best"), "strategy must be one of"),
        (dict(strategy="margin", probs=[[1.0, 0.0]]), "probs must have one row per row of features, 3, got 1"),
    ],
)
def test_mistakes_cost_one_line(options, message):
    with pytest.raises(UserError, match=message):
        suggest_labels(np.eye(3), **options)


def test_a_head_on_one_label_per_class_is_no_guess_at_the_class_with_two():
    """Only two labels can be judged; what they say of the penalty must not flatten the head."""
    x, y = blobs((40,) * 9, width=40, spread=0.8)
    rows = [40 * label for label in range(9)] + [1]
    head = fit_ridge(x[rows], y[rows], 9)
    assert (head.scores(x).argmax(1) == y).mean() > 0.6
    assert ridge.leave_one_out(x[rows], y[rows], 9).penalty == ridge.FALLBACK

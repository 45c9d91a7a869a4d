import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vcc_infuse.data.split import LongTail, balanced, from_given_labels, long_tailed, tail_sizes, train_test_rows
from vcc_infuse.errors import UserError

CIFAR = np.arange(50_000) % 10


def counts(y, rows, classes=10):
    return np.bincount(y[rows], minlength=classes).tolist()


def test_balanced_takes_the_same_number_of_every_class_and_keeps_all_in_the_pool():
    split = balanced(CIFAR, 40, 10, seed=3)
    assert counts(CIFAR, split.labeled) == [4] * 10
    assert np.array_equal(split.pool[:40], split.labeled)
    assert np.array_equal(np.sort(split.pool), np.arange(50_000))


def test_balanced_can_leave_the_labeled_images_out_of_the_pool():
    split = balanced(CIFAR, 40, 10, seed=3, include_labeled=False)
    assert len(split.pool) == 49_960
    assert not set(split.pool) & set(split.labeled)


def test_seed_zero_gives_exactly_these_rows():
    y = np.array([0, 1, 2] * 4 + [-1, -1])
    split = balanced(y, 7, 3, seed=0)
    assert split.labeled.tolist() == [6, 9, 1, 7, 4, 11, 2]
    assert split.pool.tolist() == [6, 9, 1, 7, 4, 11, 2, 0, 3, 5, 8, 10, 12, 13]


@given(st.integers(0, 2**32 - 1), st.integers(3, 30), st.booleans())
def test_balanced_invariants(seed, labels, include):
    y = np.random.RandomState(1).permutation([0] * 10 + [1] * 10 + [2] * 10 + [-1] * 5)
    split = balanced(y, labels, 3, seed, include)
    sizes = counts(y, split.labeled, 3)
    assert sum(sizes) == labels
    assert max(sizes) - min(sizes) <= 1
    assert len(np.unique(split.pool)) == len(split.pool) == 35 - (0 if include else labels)
    assert set(np.flatnonzero(y == -1)) <= set(split.pool)


def test_remaining_labels_go_to_classes_chosen_by_the_seed():
    y = np.arange(50) % 10
    favored = {int(np.argmax(counts(y, balanced(y, 11, 10, seed).labeled))) for seed in range(30)}
    assert len(favored) > 5


def test_fewer_labels_are_a_subset_of_more():
    few, many = (balanced(CIFAR, n, 10, seed=1).labeled for n in (40, 250))
    assert set(few) < set(many)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (2, "labels must be at least 3, one per class, got 2"),
        (12, "labels must be at most 6, because class 'cat' has 2 .*, got 12"),
    ],
)
def test_impossible_numbers_of_labels_are_one_line(labels, message):
    with pytest.raises(UserError, match=message):
        balanced(np.array([0] * 9 + [1] * 2 + [2] * 9), labels, ("ant", "cat", "dog"), seed=0)


def test_a_seed_out_of_range_is_one_line():
    with pytest.raises(UserError, match="seed must be .*, got -1"):
        balanced(CIFAR, 40, 10, seed=-1)


# Published class sizes of the long-tailed protocols.
TAILS = [
    (1500, 100, [1500, 899, 539, 323, 193, 116, 69, 41, 25, 15], 3720),
    (3000, 100, [3000, 1798, 1078, 646, 387, 232, 139, 83, 50, 30], 7443),
    (500, 100, [500, 299, 179, 107, 64, 38, 23, 13, 8, 5], 1236),
    (4000, 100, [4000, 2397, 1437, 861, 516, 309, 185, 111, 66, 40], 9922),
    (1000, 100, [1000, 599, 359, 215, 129, 77, 46, 27, 16, 10], 2478),
    (150, 10, [150, 116, 89, 69, 53, 41, 32, 25, 19, 15], 609),
    (1500, 150, [1500, 859, 492, 282, 161, 92, 53, 30, 17, 10], 3496),
    (3000, 150, [3000, 1719, 985, 564, 323, 185, 106, 60, 34, 20], 6996),
]


@pytest.mark.parametrize(("first", "gamma", "sizes", "total"), TAILS)
def test_tail_sizes_of_ten_classes(first, gamma, sizes, total):
    assert tail_sizes(first, gamma, 10) == sizes
    assert sum(sizes) == total
    assert tail_sizes(first, -gamma, 10) == sizes[::-1]


@pytest.mark.parametrize(
    ("first", "head", "last", "total"), [(150, [150, 146, 143], 15, 5835), (300, [300, 293], 30, 11720)]
)
def test_tail_sizes_of_a_hundred_classes(first, head, last, total):
    sizes = tail_sizes(first, 10, 100)
    assert sizes[: len(head)] == head
    assert sizes[-1] == last
    assert sum(sizes) == total


@pytest.mark.parametrize("base", range(2, 12))
def test_integer_sizes_survive_rounding(base):
    for power in range(1, 6):
        whole = [base ** (power - c) for c in range(power + 1)]
        assert tail_sizes(base**power, base**power, power + 1) == whole


def test_long_tail_of_the_paper():
    split = long_tailed(CIFAR, 10, 0, LongTail(first=1000, gamma=100, beta=0.2))
    assert counts(CIFAR, split.labeled) == TAILS[4][2]
    assert counts(CIFAR, split.pool) == TAILS[3][2]
    assert not set(split.labeled) & set(split.pool)


def test_long_tail_reversed_and_with_the_labeled_images():
    split = long_tailed(CIFAR, 10, 0, LongTail(500, 100, unlabeled_first=4000, gamma_u=-100), include_labeled=True)
    assert np.array_equal(split.pool[:1236], split.labeled)
    assert counts(CIFAR, split.pool[1236:]) == TAILS[3][2][::-1]
    assert len(np.unique(split.pool)) == 1236 + 9922


def test_long_tail_with_an_unlabeled_pool():
    y = np.concatenate([np.arange(5000) % 10, np.full(700, -1)])
    split = long_tailed(y, 10, 0, LongTail(first=150, gamma=10))
    assert counts(y, split.labeled) == TAILS[5][2]
    assert np.array_equal(split.pool, np.arange(5000, 5700))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"first": 3000, "gamma": 100, "beta": 0.2},
            "first must be smaller, because class '0' has 5000 images and needs 3000\\+12000, got 3000",
        ),
        (
            {"first": 50, "gamma": 100, "beta": 0.2},
            "first must be larger, because class '8' gets no label, got 50; or lower long_tail.gamma",
        ),
        ({"gamma": 10, "beta": 0.5}, "first must be the number of labels of the largest class, got None"),
        ({"first": 0, "gamma": 10, "beta": 0.5}, "first must be an integer of at least 1, got 0"),
        ({"first": 50, "gamma": 10, "beta": 1.5}, "beta must be .*, got 1.5"),
        ({"first": 50, "gamma": 0.5, "beta": 0.5}, "gamma must be .*, got 0.5"),
        ({"first": 50, "gamma": float("nan"), "beta": 0.5}, "gamma must be .*, got nan"),
        ({"first": 50, "gamma": 10, "beta": 0.5, "gamma_u": 0.3}, "gamma_u must be .*, got 0.3"),
        ({"first": 50, "gamma": 10, "unlabeled_first": -5}, "unlabeled_first must be .*, got -5"),
        ({"first": 50, "gamma": 10}, "set long_tail.beta or long_tail.unlabeled_first"),
        ({"first": 50, "gamma": 10, "unlabeled_first": 0}, "set long_tail.beta or long_tail.unlabeled_first"),
        ({"first": 50, "gamma": 10, "beta": 0.5, "unlabeled_first": 50}, "exclude each other"),
    ],
)
def test_impossible_tails_are_one_line(options, message):
    """Every option has the dotted name that the command line knows."""
    with pytest.raises(UserError, match=message) as caught:
        long_tailed(CIFAR, 10, 0, LongTail(**options))
    assert "\n" not in str(caught.value)
    assert "long_tail." in str(caught.value)


def test_the_pool_may_be_only_the_unlabeled_rows():
    y = np.concatenate([np.arange(5000) % 10, np.full(700, -1)])
    assert len(long_tailed(y, 10, 0, LongTail(first=150, gamma=10, unlabeled_first=0)).pool) == 700


def test_given_labels_are_all_shown():
    split = from_given_labels(np.array([1, -1, 0, -1, 1]))
    assert split.labeled.tolist() == [2, 0, 4]
    assert split.pool.tolist() == [2, 0, 4, 1, 3]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.sampled_from([0.1, 0.2, 0.5]))
def test_train_and_test_rows_are_stratified_and_disjoint(sizes, fraction):
    y = np.random.RandomState(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    train, test = train_test_rows(y, fraction)
    assert sorted([*train, *test]) == list(range(len(y)))
    assert train.tolist() == sorted(train)
    assert len(test) <= np.ceil(fraction * len(y))
    for number, size in enumerate(sizes):
        taken = (y[test] == number).sum()
        assert taken <= size - 1
        assert taken in (size - 1, np.floor(fraction * size), np.floor(fraction * size) + 1)

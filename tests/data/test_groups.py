"""Rows that belong together stay together: names, columns, validation splits, folds."""

import numpy as np
import pytest
from PIL import Image
from sklearn.model_selection import StratifiedGroupKFold

from vcc_infuse.data.groups import group_folds, named_groups, sample_groups
from vcc_infuse.data.split import from_given_labels, hold_out, train_test_rows, validation_rows
from vcc_infuse.data.ssl_data import SSLData, load_ssl
from vcc_infuse.errors import OptionError, UserError


def scenes(rng, classes=3, per_class=12, largest=5):
    """Labels, and groups of 1 to `largest` rows of one class."""
    y = np.repeat(np.arange(classes), per_class)
    starts = np.concatenate([[True], (y[1:] != y[:-1]) | (rng.random(len(y) - 1) < 0.4)])
    groups = np.cumsum(starts)
    order = rng.permutation(len(y))
    return y[order], groups[order]


def torn(groups, part):
    return np.intersect1d(groups[part], groups[~part])


def test_names_are_grouped_by_the_first_group_or_the_whole_match():
    names = ["cat/s1_a.png", "cat/s1_b.png", "dog/s2_a.png", "dog/x.png", "dog/y.png"]
    assert named_groups(r"s\d+", names).tolist() == [0, 0, 2, 3, 4]
    assert named_groups(r"s\d+_(.)", names).tolist() == [0, 1, 0, 3, 4]
    assert named_groups("scene", names, {"cat/s1_a.png": "1", "dog/y.png": "1"}).tolist() == [0, 1, 2, 3, 0]
    with pytest.raises(OptionError, match="matches no file name"):
        named_groups("zebra", names)
    with pytest.raises(OptionError, match="needs names"):
        named_groups("a", None)


@pytest.mark.parametrize("seed", range(5))
def test_folds_keep_groups_together_and_are_as_even_as_those_of_scikit_learn(seed):
    y, groups = scenes(np.random.default_rng(seed))
    folds = group_folds(y, groups, 4, seed)
    assert all(len(np.unique(folds[groups == group])) == 1 for group in groups)
    for number in range(folds.max() + 1):
        assert set(y[folds != number]) == set(y)
        assert (folds == number).any()
    if (folds >= 0).all():
        splits = StratifiedGroupKFold(folds.max() + 1, shuffle=True, random_state=0).split(y, y, groups)
        reference = np.array([np.bincount(y[test], minlength=3) for _, test in splits])
        table = np.array([np.bincount(y[folds == number], minlength=3) for number in range(folds.max() + 1)])
        assert table.std(0).mean() <= reference.std(0).mean() + 0.5


def test_folds_of_groups_with_several_classes_never_hide_a_class():
    rng = np.random.default_rng(0)
    for _ in range(20):
        y = rng.integers(0, 3, 14)
        groups = rng.integers(0, 4, 14)
        folds = group_folds(y, groups, 5, 0)
        assert all(len(np.unique(folds[groups == group])) == 1 for group in groups)
        assert all(set(y[folds != number]) == set(y) for number in range(folds.max() + 1))
    assert (group_folds(np.array([0, 0, 1, 1]), np.array([5, 5, 7, 7]), 5, 0) == -1).all()


@pytest.mark.parametrize("seed", range(5))
def test_validation_takes_whole_groups_and_leaves_every_class_a_label(seed):
    y, groups = scenes(np.random.default_rng(seed))
    rows = validation_rows(y, 0.25, groups)
    part = np.isin(np.arange(len(y)), rows)
    assert len(torn(groups, part)) == 0
    assert set(y[~part]) == set(y)
    assert abs(len(rows) - 9) <= 3
    assert np.array_equal(rows, validation_rows(y, 0.25, groups))
    held = hold_out(from_given_labels(y), y, 0.25, ["a", "b", "c"], groups)
    assert len(torn(groups, np.isin(np.arange(len(y)), held.held_out))) == 0
    assert len(np.intersect1d(held.labeled, held.held_out)) == 0


def test_single_rows_are_split_as_if_there_were_no_groups_in_number():
    y = np.repeat(np.arange(4), 10)
    alone = sample_groups(y, np.arange(40), np.full(4, 2), np.random.RandomState(0))
    assert np.bincount(y[alone]).tolist() == [2, 2, 2, 2]
    train, test = train_test_rows(y, 0.2, np.arange(40))
    assert len(test) == 8
    assert len(np.intersect1d(train, test)) == 0


def test_one_group_per_class_cannot_be_split():
    y = np.array([0, 0, 1, 1])
    with pytest.raises(UserError, match="belong together"):
        validation_rows(y, 0.5, y)
    with pytest.raises(UserError, match="group_by"):
        hold_out(from_given_labels(y), y, 0.5, ["a", "b"], y)


def test_regrouping_draws_validation_again_only_where_it_tears_a_group():
    rng = np.random.default_rng(0)
    y, groups = scenes(rng)
    data = SSLData.from_arrays(rng.normal(size=(len(y), 3)), y, validation=0.25)
    assert len(torn(groups, np.isin(np.arange(len(y)), data.dataset.validation)))
    again = data.regrouped(groups)
    part = np.isin(np.arange(len(y)), again.dataset.validation)
    assert len(torn(groups, part)) == 0
    assert np.array_equal(again.dataset.test.y, y[part])
    assert np.array_equal(np.sort(again.split.labeled), np.flatnonzero(~part))
    assert (again.dataset.train.y[part] == -1).all()
    assert np.array_equal(again.labeled_y, y[again.split.labeled])
    assert abs(int(part.sum()) - len(data.dataset.validation)) <= 4
    same = data.regrouped(np.arange(len(y)))
    assert np.array_equal(same.dataset.validation, data.dataset.validation)


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "p" / label).mkdir(parents=True)
        for number in range(12):
            pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "p" / label / f"scene{number // 3}_{number}.png")
    return tmp_path


def test_class_folders_are_split_by_names(photos):
    data = load_ssl(str(photos / "p"), group_by=r"\w+/scene\d+", labels=8, cache=str(photos / "cache"), progress=False)
    scene = [{name.rsplit("_")[0] for name in part.names} for part in (data.dataset.train, data.dataset.test)]
    assert scene[0] | scene[1] == {f"{label}/scene{number}" for label in ("cat", "dog") for number in range(4)}
    assert not scene[0] & scene[1]
    assert len(data.dataset.groups) == len(data.dataset.train)
    plain = load_ssl(str(photos / "p"), labels=8, cache=str(photos / "cache"), progress=False)
    assert plain.dataset.groups is None


def test_a_column_of_the_label_file_groups_rows(photos):
    lines = ["file,label,Patient"]
    for label in ("cat", "dog"):
        lines += [f"{label}/scene{n // 3}_{n}.png,{label},{label}{n % 4}" for n in range(12)]
    (photos / "labels.csv").write_text("\n".join(lines))
    options = dict(label_file=str(photos / "labels.csv"), validation=0.25, cache=str(photos / "cache"), progress=False)
    data = load_ssl(str(photos / "p"), group_by="patient", **options)
    rows = data.dataset.validation
    part = np.isin(np.arange(24), rows)
    assert len(torn(data.dataset.groups, part)) == 0
    assert len(np.unique(data.dataset.groups)) == 8
    assert np.bincount(data.dataset.test.y).tolist() == [3, 3]


@pytest.mark.parametrize("value", ["(", "nothing_like_it"])
def test_a_wrong_group_by_is_one_line(photos, value):
    with pytest.raises(OptionError, match="group_by"):
        load_ssl(str(photos / "p"), group_by=value, labels=8, cache=str(photos / "cache"), progress=False)
    with pytest.raises(OptionError, match="group_by"):
        load_ssl("digits", group_by=value, labels=40, progress=False)

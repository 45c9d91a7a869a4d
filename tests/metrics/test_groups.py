import math

import pytest
import torch

from vcc_infuse.errors import UserError
from vcc_infuse.metrics.classification import group_errors, tail_groups


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([1000, 599, 359, 215, 129, 77, 46, 27, 16, 10], ([0, 1, 2], [3, 4, 5, 6], [7, 8, 9])),
        ([10, 100, 50], ([1], [2], [0])),
        ([3, 9], ([1], [], [0])),
        ([5, 5, 5, 1], ([0], [1, 2], [3])),
    ],
)
def test_groups_are_thirds_by_label_count(counts, expected):
    assert tuple(tail_groups(counts)) == expected
    assert tuple(tail_groups(torch.tensor(counts))) == expected


@pytest.mark.parametrize("classes", range(2, 40))
def test_every_class_is_in_one_group(classes):
    groups = tail_groups(list(range(classes)))
    assert sorted([*groups.head, *groups.medium, *groups.tail]) == list(range(classes))
    assert len(groups.head) == len(groups.tail)


def test_group_errors_are_means_of_class_errors():
    errors = [0.1, 0.2, 0.3, 0.4, 0.5, math.nan, 0.9]
    found = group_errors(errors, [70, 60, 50, 40, 30, 20, 10])
    assert found == pytest.approx({"error_head": 0.15, "error_medium": 0.4, "error_tail": 0.9})


@pytest.mark.parametrize("counts", [[4, 4, 4], [5, 4, 4]])
def test_nearly_balanced_classes_have_no_groups(counts):
    assert group_errors([0.1, 0.2, 0.3], counts) == {}


def test_a_group_without_test_examples_is_left_out():
    assert group_errors([0.1, 0.2, math.nan], [9, 5, 1]) == pytest.approx({"error_head": 0.1, "error_medium": 0.2})


def test_lengths_must_match():
    with pytest.raises(UserError, match="errors has 2, label_counts has 3"):
        group_errors([0.1, 0.2], [9, 5, 1])

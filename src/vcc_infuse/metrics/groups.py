"""Head, medium and tail: the test error of frequent, medium and rare classes of a long-tailed dataset."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ._inputs import Values, class_numbers, same_length


class TailGroups(NamedTuple):
    """Class numbers, the most frequent class first."""

    head: list[int]
    medium: list[int]
    tail: list[int]


def tail_groups(label_counts: Values) -> TailGroups:
    """The third of the classes with the most labels, the third with the fewest, and the rest.

    A third is rounded down, but is at least one class. Of classes with equally many labels, the lower number counts as
    more frequent.

    >>> tail_groups([500, 10, 50])
    TailGroups(head=[0], medium=[2], tail=[1])
    """
    order = class_numbers("label_counts", label_counts).argsort(descending=True, stable=True).tolist()
    third = max(1, len(order) // 3)
    last = max(third, len(order) - third)
    return TailGroups(order[:third], order[third:last], order[last:])


def group_errors(errors: Values, label_counts: Values) -> dict[str, float]:
    """The mean class error of each group; empty if no class has twice the labels of another.

    Classes without test examples (NaN) do not count; a group without any is left out.

    >>> group_errors([0.25, 0.75, 0.5], [500, 10, 50])
    {'error_head': 0.25, 'error_medium': 0.5, 'error_tail': 0.75}
    """
    counts = class_numbers("label_counts", label_counts)
    errors = torch.as_tensor(errors, dtype=torch.float64)
    same_length(errors=errors, label_counts=counts)
    if counts.max() < 2 * counts.min():
        return {}
    means = {f"error_{name}": float(errors[group].nanmean()) for name, group in tail_groups(counts)._asdict().items()}
    return {name: mean for name, mean in means.items() if mean == mean}

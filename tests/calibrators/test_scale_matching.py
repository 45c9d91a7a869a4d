import numpy as np
import pytest
import torch

from vcc_infuse.calibrators import scale_matching
from vcc_infuse.calibrators.scale_matching import Queue, ScaleMatching


def match_classwise(values, labels, *queue):
    return scale_matching.match_classwise(values, labels, Queue.of(*queue, pooled=False))


def match_pooled(values, labels, *queue, shares=None):
    return scale_matching.match_pooled(values, labels, Queue.of(*queue, pooled=True), shares)


def draws(n: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.rand(n, generator=g), torch.rand(n, generator=g) ** 0.3, torch.randint(classes, (n,), generator=g)


@pytest.mark.parametrize("classes", [2, 6])
def test_queue_values_get_the_reference_distribution_of_their_class(classes):
    values, reference, labels = draws(300, classes)
    got = match_classwise(values, labels, values, reference, labels, classes)
    for label in range(classes):
        own = labels == label
        assert torch.equal(got[own].sort().values, reference[own].sort().values)
        assert torch.equal(got[own].argsort(), values[own].argsort())
        for threshold in (0.5, 0.8, 0.95):
            assert (got[own] >= threshold).sum() == (reference[own] >= threshold).sum()


def test_new_values_are_interpolated():
    values, reference, labels = draws(200, 4)
    fresh, _, classes = draws(50, 4, 1)
    got = match_classwise(fresh, classes, values, reference, labels, 4)
    for value, label, mapped in zip(fresh, classes, got, strict=True):
        own = np.sort(values[labels == label].numpy())
        heights = np.sort(reference[labels == label].numpy())
        # A value between its i-th and next neighbor lies half-way between their ranks.
        rank = np.searchsorted(own, value.item()) - 0.5
        oracle = np.interp(rank, np.arange(len(own)), heights)
        assert mapped.item() == pytest.approx(oracle, abs=1e-5)


def test_map_is_monotone_and_stays_in_the_range_of_its_class():
    values, reference, labels = draws(200, 3)
    line = torch.linspace(0, 1, 101)
    for label in range(3):
        got = match_classwise(line, torch.full((101,), label), values, reference, labels, 3)
        own = reference[labels == label]
        assert (got.diff() >= 0).all()
        assert got[0] == own.min()
        assert got[-1] == own.max()


def test_ties_get_the_middle_of_their_ranks():
    values, labels = torch.tensor([0.5, 0.5, 0.5, 0.9]), torch.zeros(4, dtype=torch.long)
    reference = torch.tensor([0.1, 0.2, 0.3, 0.4])
    got = match_classwise(values, labels, values, reference, labels, 2)
    assert torch.allclose(got, torch.tensor([0.2, 0.2, 0.2, 0.4]))


def test_values_that_differ_in_the_last_bit_keep_their_order():
    values = torch.tensor([0.99999988, 0.99999994, 1.0])
    labels = torch.full((3,), 999)
    got = match_classwise(values, labels, values, torch.tensor([0.7, 0.8, 0.9]), labels, 1000)
    assert torch.allclose(got, torch.tensor([0.7, 0.8, 0.9]))


def test_a_class_missing_from_the_queue_gives_nan():
    values, reference, labels = draws(20, 2)
    got = match_classwise(torch.tensor([0.3, 0.4]), torch.tensor([2, 0]), values, reference, labels, 3)
    assert got.isnan().tolist() == [True, False]


def test_order_of_the_queue_has_no_effect():
    values, reference, labels = draws(100, 3)
    fresh, _, classes = draws(30, 3, 1)
    order = torch.randperm(100)
    one = match_classwise(fresh, classes, values, reference, labels, 3)
    other = match_classwise(fresh, classes, values[order], reference[order], labels[order], 3)
    assert torch.equal(one, other)


def test_pooled_map_keeps_the_coverage_and_selects_the_same_fraction_of_every_class():
    values, reference, labels = draws(4000, 4)
    low = torch.where(labels == 2, 0.5 * reference, reference)
    got = match_pooled(values, labels, values, low, labels, 4)
    for threshold in (0.3, 0.6, 0.9):
        total = (low >= threshold).float().mean().item()
        for label in range(4):
            own = labels == label
            assert (got[own] >= threshold).float().mean().item() == pytest.approx(total, abs=2e-3)
            assert torch.equal(got[own].argsort(), values[own].argsort())
    assert not (low[labels == 2] >= 0.6).any()


def test_pooled_map_with_one_class_is_the_classwise_map():
    values, reference, _ = draws(100, 2)
    labels = torch.ones(100, dtype=torch.long)
    arguments = (values, labels, values, reference, labels, 3)
    assert torch.allclose(match_pooled(*arguments), match_classwise(*arguments), atol=1e-5)


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.95])
def test_with_shares_each_class_has_as_many_as_its_share_of_all_that_are_selected(threshold):
    values, reference, labels = draws(4000, 4)
    shares = torch.tensor([0.55, 0.2, 0.2, 0.05])  # a class that is predicted too rarely, one too often
    got = match_pooled(values, labels, values, reference, labels, 4, shares=shares)
    wanted = shares * (reference >= threshold).sum()
    for label in range(4):
        own = labels == label
        expected = min(wanted[label].item(), own.sum().item())
        assert (got[own] >= threshold).sum().item() == pytest.approx(expected, abs=1.5 / shares.min().item())
        assert (got[own][values[own].argsort()].diff() >= 0).all()


def test_shares_as_predicted_change_nothing():
    values, reference, labels = draws(500, 4)
    arguments = (values, labels, values, reference, labels, 4)
    shares = torch.bincount(labels).float() / len(labels)
    torch.testing.assert_close(match_pooled(*arguments, shares=shares), match_pooled(*arguments))


def test_a_class_of_no_share_gets_the_lowest_confidence():
    values, reference, labels = draws(500, 2)
    got = match_pooled(values, labels, values, reference, labels, 2, shares=torch.tensor([1.0, 0.0]))
    assert (got[labels == 1] == reference.min()).all()


def test_pooled_map_leaves_out_missing_references_and_missing_classes():
    values, reference, labels = draws(60, 2)
    padded = torch.cat([reference, torch.full((40,), torch.inf)])
    queue = torch.cat([values, torch.zeros(40)])
    classes = torch.cat([labels, torch.full((40,), 3)])
    got = match_pooled(values, labels, queue, padded, classes, 4)
    assert torch.equal(got, match_pooled(values, labels, values, reference, labels, 4))
    assert match_pooled(values[:1], torch.tensor([2]), queue, padded, classes, 4).isnan().all()


@pytest.mark.parametrize("match", ["balanced", "confidence", "none"])
@pytest.mark.parametrize("size", [300, 500])
def test_scale_matching_maps_by_its_memory_and_leaves_rare_classes(match, size):
    """A memory that is full, and one that is not yet."""
    score, confidence, labels = draws(300, 4)
    labels[labels == 3] = 0
    labels[:9] = 3
    scale = ScaleMatching(match, classes=5, size=size, min_per_class=10)
    scale.observe(lambda rows: rows, score=score, confidence=confidence, labels=labels)
    got = scale(score, confidence, labels)
    arguments = (score, labels, score, confidence, labels, 5)
    expected = {"balanced": match_pooled, "confidence": match_classwise, "none": lambda *_: score}[match](*arguments)
    assert torch.equal(got, torch.where(labels == 3, confidence, expected))
    unseen = scale(score[:1], confidence[:1], torch.tensor([4]))
    assert torch.equal(unseen, confidence[:1])

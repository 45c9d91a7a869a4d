"""What RandAugment draws: operations with replacement, magnitudes uniform over their ranges."""

import pytest
import torch

from vcc_infuse.augment.randaugment import POOL, draw_changes
from vcc_infuse.augment.recipe import read_augment

CPU = torch.device("cpu")
NAMES = list(POOL)

EVERY = read_augment("natural").strong.changes


def test_operations_are_uniform_independent_and_repeat():
    torch.manual_seed(0)
    drawn = draw_changes(42000, 3, EVERY)
    assert drawn.operations.shape == drawn.magnitudes.shape == (3, 42000)
    for draw in drawn.operations:
        assert torch.bincount(draw, minlength=14).sub(3000).abs().max() < 270  # five standard deviations
    pairs = torch.bincount(drawn.operations[0] * 14 + drawn.operations[1], minlength=196)
    assert pairs.sub(42000 / 196).abs().max() < 75
    assert len(drawn.operations.unique(dim=1).T) > 2700  # of 2744 triples, repeats among them


@pytest.mark.parametrize("name", [name for name in NAMES if POOL[name].high])
def test_magnitudes_are_uniform_over_the_range(name):
    torch.manual_seed(0)
    drawn = draw_changes(42000, 3, EVERY)
    low, high = POOL[name].low, POOL[name].high
    drawn = (drawn.magnitudes[drawn.operations == NAMES.index(name)] - low) / (high - low)
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    assert torch.histc(drawn, 10, 0, 1).sub(len(drawn) / 10).abs().max() < 160


def test_posterize_keeps_four_to_eight_bits():
    torch.manual_seed(0)
    drawn = draw_changes(42000, 3, EVERY)
    bits = drawn.magnitudes[drawn.operations == NAMES.index("posterize")].long()
    assert bits.unique().tolist() == [4, 5, 6, 7, 8]

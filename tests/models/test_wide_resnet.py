import math

import pytest
import torch
import torch.nn.functional as F

from vcc_infuse.errors import UserError
from vcc_infuse.models import Classifier, WideResNet
from vcc_infuse.models.wide_resnet import Block, layout


def built(shape=(3, 32, 32), **options):
    torch.manual_seed(0)
    model = WideResNet(**options)
    model.setup(shape)
    return model


def expected_parameters(groups, blocks, width, channels=3):
    """Convolutions and normalizations counted from the published description."""
    widths = [16 * width * 2**g for g in range(groups)]
    total = channels * 16 * 9 + 16
    before = 16
    for g, w in enumerate(widths):
        total += before * w * 9 + w * w * 9 + 2 * w  # first block: two convolutions, second norm
        total += 0 if before == w else before * w  # shortcut
        total += 2 * before if g == 0 else 0  # the first norm exists in the first group only
        total += (blocks - 1) * (2 * w * w * 9 + 4 * w)
        before = w
    return total + 2 * before


@pytest.mark.parametrize(
    ("depth", "width", "groups", "blocks"),
    [(10, 1, 3, 1), (16, 1, 3, 2), (28, 2, 3, 4), (28, 8, 3, 4), (37, 2, 4, 4)],
)
def test_parameter_count(depth, width, groups, blocks):
    assert layout(depth) == (groups, blocks)
    model = built(depth=depth, width=width)
    count = sum(p.numel() for p in model.parameters())
    assert count == expected_parameters(groups, blocks, width)
    assert model.features == 16 * width * 2 ** (groups - 1)


def test_usual_size():
    model = Classifier.build(WideResNet(), (3, 32, 32), 10)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(1.47e6, rel=2e-3)


@pytest.mark.parametrize(("depth", "near"), [(27, "22, 28, 29"), (-3, "10, 13, 16"), (36, "34, 37, 40")])
def test_an_impossible_depth_gets_the_nearest_ones(depth, near):
    with pytest.raises(UserError, match=f"depth must be .*, got {depth}; .* {near}$"):
        built(depth=depth)


def test_maps_halve_from_the_second_group():
    model, maps = built(depth=37, width=1, shape=(3, 96, 96)), []
    for group in model.groups:
        group.register_forward_hook(lambda _, __, out: maps.append(tuple(out.shape[1:])))
    model(torch.zeros(2, 3, 96, 96))
    assert maps == [(16, 96, 96), (32, 48, 48), (64, 24, 24), (128, 12, 12)]


def test_last_map_of_a_cifar_image_is_8_by_8():
    model, maps = built(depth=10, width=1), []
    model.norm.register_forward_hook(lambda _, __, out: maps.append(out.shape[2:]))
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 64)
    assert maps == [(8, 8)]


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 13), (1, 28, 28), (4, 32, 32)])
def test_any_image(shape):
    assert built(depth=10, width=1, shape=shape)(torch.randn(2, *shape)).shape == (2, 64)


def norm(x, layer):
    """Batch normalization in training mode, from its definition."""
    mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), unbiased=False, keepdim=True)
    scale, shift = layer.weight[None, :, None, None], layer.bias[None, :, None, None]
    return (x - mean) / torch.sqrt(var + layer.eps) * scale + shift


def act(x):
    return torch.where(x > 0, x, 0.1 * x)


@pytest.mark.parametrize(
    ("before", "width", "stride", "activate"),
    [(16, 32, 1, True), (16, 32, 2, False), (16, 16, 1, False), (16, 16, 1, True)],
)
def test_block_step_by_step(before, width, stride, activate):
    torch.manual_seed(0)
    block = Block(before, width, stride=stride, activate=activate, bn_momentum=0.001, dropout=0.0)
    for p in block.parameters():
        torch.nn.init.normal_(p, 0.5, 0.2)
    x = torch.randn(4, before, 8, 8)
    if before == width:  # plain pre-activation: the shortcut stays raw
        start, other = act(norm(x, block.norm1)), x
    else:  # both branches share one input, activated in the first group, raw in the others
        start = act(norm(x, block.norm1)) if activate else x
        other = F.conv2d(start, block.shortcut.weight, stride=stride)
    hidden = act(norm(F.conv2d(start, block.conv1.weight, stride=stride, padding=1), block.norm2))
    expected = F.conv2d(hidden, block.conv2.weight, padding=1) + other
    torch.testing.assert_close(block(x), expected, rtol=1e-4, atol=1e-4)


def test_which_blocks_normalize_their_input():
    model = built(depth=16, width=2)
    assert [[block.norm1 is not None for block in group] for group in model.groups] == [
        [True, True],
        [False, True],
        [False, True],
    ]


def test_constants():
    model = built(bn_momentum=0.25)
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert {m.momentum for m in norms} == {0.25}
    assert model.norm.eps == 1e-3
    assert {m.eps for m in norms if m is not model.norm} == {1e-5}
    convs = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    assert [m.bias is not None for m in convs] == [True] + [False] * (len(convs) - 1)


def test_initial_weights():
    for name, p in built(width=4).named_parameters():
        if p.ndim == 4:
            fan_out = p.shape[0] * p.shape[2] * p.shape[3]
            spread = math.sqrt(2 / fan_out)
            assert p.std().item() == pytest.approx(spread, rel=4 / math.sqrt(2 * p.numel())), name
            assert abs(p.mean().item()) < 4 * spread / math.sqrt(p.numel()), name
        else:
            constant = 1.0 if name.endswith("weight") else 0.0
            assert (p == constant).all(), name


def test_dropout_acts_in_training_only():
    model, x = built(depth=10, width=1, dropout=0.5), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        assert not torch.equal(model(x), model(x))
        model.eval()
        assert torch.equal(model(x), model(x))


def test_vectors_and_tiny_images_are_refused():
    with pytest.raises(UserError, match="MLP"):
        built(shape=(64,))
    with pytest.raises(UserError, match="7×32"):
        built(shape=(3, 7, 32))
    with pytest.raises(UserError, match="width must be an integer of at least 1, got 0"):
        built(width=0)

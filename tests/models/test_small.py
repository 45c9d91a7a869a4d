import pytest
import torch

from vcc_infuse.errors import UserError
from vcc_infuse.models import MLP, SmallConv


def built(model, shape):
    torch.manual_seed(0)
    model.setup(shape)
    return model


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8), (1, 28, 28), (3, 32, 32), (2, 2, 5), (1, 3, 3)])
def test_conv_takes_any_image(shape):
    model = built(SmallConv(width=4), shape)
    assert model(torch.randn(5, *shape)).shape == (5, 16)
    assert model.features == 16


@pytest.mark.parametrize(("size", "maps"), [(2, [2, 2, 2]), (8, [4, 2, 2]), (28, [14, 7, 3])])
def test_conv_halves_maps_larger_than_two(size, maps):
    model, seen = built(SmallConv(width=4), (1, size, size)), []
    for stage in model.stages:
        stage.register_forward_hook(lambda _, __, out: seen.append(out.shape[-1]))
    model(torch.zeros(2, 1, size, size))
    assert seen == maps


def test_conv_mistakes():
    with pytest.raises(UserError, match="MLP"):
        built(SmallConv(), (64,))
    with pytest.raises(UserError, match="1×8"):
        built(SmallConv(), (1, 1, 8))
    with pytest.raises(UserError, match="width must be an integer of at least 1, got 0"):
        built(SmallConv(width=0), (1, 8, 8))


@pytest.mark.parametrize("shape", [(10,), (1, 8, 8), (3, 4, 5)])
def test_mlp_flattens(shape):
    model = built(MLP(hidden=(12, 7)), shape)
    x = torch.randn(5, *shape)
    assert model.features == 7
    torch.testing.assert_close(model.eval()(x), model(x.flatten(1)))
    assert model(x).shape == (5, 7)


def test_mlp_without_hidden_layers_is_the_input():
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(built(MLP(hidden=()), (3, 4, 4))(x), x.flatten(1))


def test_mlp_mistakes():
    with pytest.raises(UserError, match="hidden must be an integer of at least 1, got 0"):
        built(MLP(hidden=(8, 0)), (4,))


@pytest.mark.parametrize("model", [SmallConv(4, bn_momentum=0.3), MLP((4,), bn_momentum=0.3)])
def test_momentum_reaches_the_norms(model):
    built(model, (1, 8, 8))
    found = {m.momentum for m in model.modules() if hasattr(m, "running_mean")}
    assert found == {0.3}


@pytest.mark.parametrize("make", [SmallConv, MLP])
def test_learns_a_simple_rule(make):
    """Which half of the image is bright: a few steps must suffice."""
    model = built(make(), (1, 8, 8))
    head = torch.nn.Linear(model.features, 2)
    y = torch.arange(128) % 2
    x = 0.5 * torch.randn(128, 1, 8, 8)
    x[y == 1, :, :4] += 1
    x[y == 0, :, 4:] += 1
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
    for _ in range(30):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(head(model(x)), y).backward()
        optimizer.step()
    assert (head(model.eval()(x)).argmax(1) == y).float().mean() > 0.95

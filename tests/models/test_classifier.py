import copy
import math

import pytest
import torch
from torch import nn

from vcc_infuse.errors import UserError
from vcc_infuse.models import MLP, Classifier, SmallConv, Timm, WideResNet

IMAGE = (1, 16, 16)
MAKERS = {
    "WideResNet": lambda: WideResNet(10, 2),
    "WideResNet-4-groups": lambda: WideResNet(13, 1),
    "SmallConv": lambda: SmallConv(8),
    "MLP": lambda: MLP((16, 8)),
    # By default timm starts the last norm of each block at zero, and with it the gradient of the first step.
    "Timm": lambda: Timm("test_resnet", model_kwargs={"zero_init_last": False}),
    "own": lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 9), nn.BatchNorm1d(9), nn.Tanh()),
}


@pytest.fixture(params=MAKERS)
def model(request):
    torch.manual_seed(0)
    return Classifier.build(MAKERS[request.param](), IMAGE, 5)


def test_logits_are_the_head_of_the_features(model):
    out = model(torch.randn(4, *IMAGE))
    assert out.logits.shape == (4, 5)
    assert out.features.shape == (4, model.head.in_features)
    torch.testing.assert_close(out.logits, out.features @ model.head.weight.T + model.head.bias)


def test_gradient_reaches_every_parameter(model):
    model(torch.randn(8, *IMAGE)).logits.square().sum().backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert idle == []


def test_eval_is_deterministic_and_treats_examples_independently(model):
    model.eval()
    x = torch.randn(4, *IMAGE)
    with torch.no_grad():
        assert torch.equal(model(x).logits, model(x).logits)
        torch.testing.assert_close(model(x).logits[:2], model(x[:2]).logits, rtol=1e-4, atol=1e-5)


def test_deepcopy_is_separate_and_equal(model):
    twin, x = copy.deepcopy(model).eval(), torch.randn(2, *IMAGE)
    with torch.no_grad():
        assert torch.equal(twin(x).logits, model.eval()(x).logits)
        model.head.weight.zero_()
        assert twin.head.weight.abs().sum() > 0


@pytest.mark.parametrize("name", MAKERS)
def test_state_round_trip(name):
    first, second = (Classifier.build(MAKERS[name](), IMAGE, 5) for _ in range(2))
    x = torch.randn(8, *IMAGE)
    first(x)
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        assert torch.equal(first.eval()(x).logits, second.eval()(x).logits)


@pytest.mark.parametrize("name", MAKERS)
def test_bf16_autocast_is_finite(name):
    # Where a layer sees a single pixel, torch's convolution in bf16 may leave NaN in the gradient of its weight, on
    # some CPUs and not every time for the same numbers: timm's network gets larger images.
    shape = (1, 32, 32) if name == "Timm" else IMAGE
    torch.manual_seed(0)
    model = Classifier.build(MAKERS[name](), shape, 5)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(torch.randn(4, *shape))
        out.logits.float().logsumexp(1).sum().backward()
    assert out.logits.dtype == torch.bfloat16
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_channels_last_gives_the_same(model):
    x = torch.randn(4, *IMAGE)
    with torch.no_grad():
        expected = model.eval()(x).logits
        got = model.to(memory_format=torch.channels_last)(x.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(got.logits, expected, rtol=1e-3, atol=1e-4)


def test_head_is_xavier_normal():
    torch.manual_seed(0)
    head = Classifier.build(MLP((400,)), (3,), 100).head
    assert head.weight.std().item() == pytest.approx(math.sqrt(2 / 500), rel=0.02)
    # A uniform distribution of this variance would end at √3 standard deviations.
    assert head.weight.abs().max() > 3 * math.sqrt(2 / 500)
    assert (head.bias == 0).all()


def test_a_user_module_is_not_changed():
    own = MAKERS["own"]()
    own[2].eval()
    before = copy.deepcopy(own.state_dict())
    assert Classifier.build(own, IMAGE, 3).head.in_features == 9
    assert own.training
    assert not own[2].training
    assert all(torch.equal(before[k], v) for k, v in own.state_dict().items())


def test_mistakes():
    with pytest.raises(UserError, match="classes must be at least 2, got 1"):
        Classifier.build(MLP(), (3,), 1)
    with pytest.raises(UserError, match=r"\(2, 4, 14, 14\)"):
        Classifier.build(nn.Conv2d(1, 4, 3), IMAGE, 3)
    with pytest.raises(UserError, match="Outputs"):
        Classifier.build(Classifier.build(MLP(), IMAGE, 3), IMAGE, 3)

import math

import pytest
import torch
from torch import nn

from vcc_infuse import Classifier, OptionError, SmallConv, Timm, UserError
from vcc_infuse.training.config import TrainConfig
from vcc_infuse.training.optimizer import (
    bn_momentum,
    clip,
    freeze,
    learning_rate,
    make_optimizer,
    parameter_groups,
    set_learning_rate,
)


def classifier(name=None, shape=(3, 32, 32)):
    return Classifier.build(Timm(name, weights="none") if name else SmallConv(4), shape, 5)


def test_only_matrices_decay():
    model = classifier()
    decayed, free = parameter_groups(model, [], TrainConfig(weight_decay=0.1))
    assert all(p.ndim > 1 for p in decayed["params"])
    assert all(p.ndim <= 1 for p in free["params"])
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0)
    assert len(decayed["params"]) + len(free["params"]) == len(list(model.parameters()))


@pytest.mark.parametrize("head_lr", [None, 0.4])
def test_a_part_with_a_factor_of_its_own_learns_by_it(head_lr):
    model, plain, fast = classifier(), torch.nn.Linear(2, 2), torch.nn.Linear(2, 3)
    fast.lr_scale = 10.0
    optimizer = make_optimizer(model, [plain, fast], TrainConfig(lr=0.1, head_lr=head_lr))
    set_learning_rate(optimizer, 0.1)
    rate = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    usual = head_lr or 0.1
    assert [rate[id(p)] for p in plain.parameters()] == pytest.approx([usual, usual])
    assert [rate[id(p)] for p in fast.parameters()] == pytest.approx([10 * usual, 10 * usual])
    assert rate[id(model.head.weight)] == pytest.approx(usual)
    assert len(rate) == len(list(model.parameters())) + 4


@pytest.mark.parametrize("step", [0, 1, 500, 1000])
def test_schedule_is_seven_sixteenths_of_a_cosine(step):
    expected = 0.03 * math.cos(7 * math.pi * step / 16000)
    assert learning_rate(TrainConfig(lr=0.03), step, 1000) == pytest.approx(expected)


def test_constant_schedule():
    assert learning_rate(TrainConfig(lr=0.03, schedule="constant"), 999, 1000) == 0.03


def test_warm_up_rises_linearly_to_the_schedule():
    config = TrainConfig(lr=1.0, schedule="constant", warmup_steps=4)
    assert [learning_rate(config, step, 10) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_nesterov_step_matches_the_written_out_rule():
    """On the head's bias, which does not decay, and its weight, which does."""
    model = classifier()
    optimizer = make_optimizer(model, [], TrainConfig(lr=0.1, momentum=0.9, weight_decay=0.01))
    for parameter, decay in ((model.head.weight, 0.01), (model.head.bias, 0.0)):
        with torch.no_grad():
            parameter.fill_(0.5)
        value, velocity = parameter.detach().clone(), torch.zeros_like(parameter)
        for _ in range(3):
            optimizer.zero_grad()
            (parameter**2).sum().backward()
            optimizer.step()
            gradient = 2 * value + decay * value
            velocity = 0.9 * velocity + gradient
            value = value - 0.1 * (gradient + 0.9 * velocity)
        torch.testing.assert_close(parameter.detach(), value)


def test_adamw_takes_the_place_of_sgd():
    optimizer = make_optimizer(classifier(), [], TrainConfig(optimizer="adamw", weight_decay=0.05))
    assert isinstance(optimizer, torch.optim.AdamW)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.05, 0.0]


def test_layer_decay_falls_from_the_head_down():
    """Rates of a transformer of two blocks, against the rule written out: decay^(layers below the head)."""
    model = Classifier.build(Timm("test_vit", weights="none", model_kwargs={"depth": 2}), (3, 32, 32), 5)
    config = TrainConfig(optimizer="adamw", lr=0.1, head_lr=0.4, layer_decay=0.5)
    optimizer = make_optimizer(model, [], config)
    set_learning_rate(optimizer, 0.1)
    rate = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    net = model.backbone.net
    depth = [net.patch_embed.proj.weight, net.blocks[0].attn.qkv.weight, net.blocks[1].attn.qkv.weight]
    first, second, third = (rate[id(p)] for p in depth)
    assert second / first == pytest.approx(2)
    assert third / second == pytest.approx(2)
    assert rate[id(model.head.weight)] == pytest.approx(0.4)
    assert len(rate) == len(list(model.parameters()))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decay[id(net.blocks[0].norm1.weight)] == decay[id(net.blocks[0].attn.qkv.bias)] == 0
    assert decay[id(net.blocks[0].attn.qkv.weight)] == config.weight_decay


def test_layer_decay_needs_a_network_of_timm():
    with pytest.raises(OptionError, match="layer_decay must be 1 for a network that is not timm's, got 0.5"):
        make_optimizer(classifier(), [], TrainConfig(layer_decay=0.5))


def test_a_frozen_backbone_leaves_only_the_head():
    model = classifier("test_resnet")
    freeze(model, TrainConfig(freeze="backbone"))
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    assert learning == {"head.weight", "head.bias"}
    assert bn_momentum(model) == {}


def test_freezing_stages_counts_from_the_input():
    model = classifier("test_resnet")
    before = {name: p.clone() for name, p in model.backbone.net.named_parameters()}
    freeze(model, TrainConfig(freeze=1))
    fixed = {name for name, p in model.backbone.net.named_parameters() if not p.requires_grad}
    assert "conv1.weight" in fixed or any(name.startswith("conv1") for name in fixed)
    assert not any(name.startswith("layer4") for name in fixed)
    assert 0 < len(fixed) < len(before)
    with pytest.raises(UserError, match="freeze must be at most"):
        freeze(model, TrainConfig(freeze=99))


def test_frozen_norms_keep_their_statistics_in_every_mode():
    model = classifier("test_resnet")
    freeze(model, TrainConfig(freeze_bn=True))
    layers = [m for m in model.backbone.modules() if isinstance(m, nn.BatchNorm2d)]
    before = [layer.running_mean.clone() for layer in layers]
    model.train().eval().train()
    model(torch.randn(8, 3, 32, 32) * 5 + 3).logits.sum().backward()
    assert layers
    assert all(not layer.training for layer in layers)
    assert all(torch.equal(a, layer.running_mean) for a, layer in zip(before, layers, strict=True))
    assert all(layer.weight.grad is not None for layer in layers)  # scales still learn


def test_clipping_bounds_the_norm():
    model = nn.Linear(3, 3)
    (1e3 * model(torch.ones(2, 3))).sum().backward()
    clip([model], 1.0)
    assert torch.cat([p.grad.flatten() for p in model.parameters()]).norm() == pytest.approx(1.0, rel=1e-4)

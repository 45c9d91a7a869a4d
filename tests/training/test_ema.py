import copy

import torch
from torch import nn

from vcc_infuse import Classifier
from vcc_infuse.models.classifier import EMA, decay_at, frozen_statistics
from vcc_infuse.training.optimizer import bn_momentum, warm_up_bn_momentum


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=0.001), nn.Linear(4, 2))


def test_average_follows_the_recursion():
    model = network()
    ema, expected = EMA(model, 0.9), None
    for step in range(30):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p))
        ema.update(model, step)
        weight = model[0].weight.detach().clone()
        decay = min(0.9, (1 + step) / (10 + step))
        expected = weight if expected is None else decay * expected + (1 - decay) * weight
    torch.testing.assert_close(ema.module[0].weight, expected)


def test_long_runs_use_the_given_decay():
    assert decay_at(10**6, 0.999) == 0.999
    assert decay_at(0, 0.999) == 0.1


def test_statistics_come_from_the_live_model_and_mode_stays_eval():
    model = network().train()
    ema = EMA(model)
    ema.train()
    assert not ema.module.training
    model(torch.randn(8, 3) + 5)
    ema.update(model, 0)
    assert torch.equal(ema.module[1].running_mean, model[1].running_mean)


def test_frozen_statistics_normalize_by_the_batch_without_a_trace():
    model = network().train()
    x = torch.randn(16, 3) * 3 + 2
    before = copy.deepcopy(model.state_dict())
    with frozen_statistics(model):
        frozen = model(x)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert torch.equal(frozen, model(x))
    assert not torch.equal(before["1.running_mean"], model.state_dict()["1.running_mean"])


def test_running_statistics_settle_in_a_short_run():
    """With the layer's own 0.001 the statistics would still be near (0, 1) after 200 steps."""
    model, batch = network().train(), torch.randn(4096, 3) * 2 + 1
    momentum = bn_momentum(Classifier(model, torch.nn.Linear(3, 2)))
    for step in range(200):
        warm_up_bn_momentum(momentum, step)
        model(batch)
    hidden = model[0](batch)
    torch.testing.assert_close(model[1].running_mean, hidden.mean(0), rtol=0.01, atol=0.01)
    warm_up_bn_momentum(momentum, 10**7)
    assert model[1].momentum == 0.001

import math

import pytest
import torch
from torch import nn

from vcc_infuse.training.optimization import learning_rate, parameter_groups, sgd


def test_only_matrices_decay():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))
    decayed, free = parameter_groups([model], 0.1)
    assert {id(p) for p in decayed["params"]} == {id(model[0].weight), id(model[3].weight)}
    assert decayed["weight_decay"] == 0.1
    assert free["weight_decay"] == 0
    assert len(decayed["params"]) + len(free["params"]) == len(list(model.parameters()))


@pytest.mark.parametrize("step", [0, 1, 500, 1000])
def test_schedule_is_seven_sixteenths_of_a_cosine(step):
    assert learning_rate(0.03, step, 1000) == pytest.approx(0.03 * math.cos(7 * math.pi * step / 16000))


def test_constant_schedule():
    assert learning_rate(0.03, 999, 1000, "constant") == 0.03


def test_nesterov_step_matches_the_written_out_rule():
    weight = nn.Parameter(torch.tensor([[1.0, -2.0]]))
    holder = nn.Module()
    holder.weight = weight
    optimizer = sgd([holder], lr=0.1, momentum=0.9, weight_decay=0.01)
    value, velocity = weight.detach().clone(), torch.zeros(1, 2)
    for _ in range(3):
        optimizer.zero_grad()
        (weight**2).sum().backward()
        optimizer.step()
        gradient = 2 * value + 0.01 * value
        velocity = 0.9 * velocity + gradient
        value = value - 0.1 * (gradient + 0.9 * velocity)
    torch.testing.assert_close(weight.detach(), value)

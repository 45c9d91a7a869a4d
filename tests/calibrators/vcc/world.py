"""A model, its EMA, a pool, and training steps through them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from vcc_infuse.calibrators import VCC
from vcc_infuse.models import Classifier
from vcc_infuse.types import Batch, Calibrated, Step, Task

POOL, SIZE = 60, 24


def classifier(classes: int = 4) -> Classifier:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU())
    model = Classifier(backbone, nn.Linear(16, classes))
    model.head.weight.data.mul_(5)
    return model


def make_task(classes: int = 4) -> Task:
    return Task(classes, 8, POOL, torch.full((classes,), 2), 100, 8, SIZE)


class World:
    """The EMA differs from the model, in its backbone and in its head."""

    def __init__(self, vcc: VCC, classes: int = 4) -> None:
        self.classes, self.model, self.vcc = classes, classifier(classes), vcc
        self.ema = copy.deepcopy(self.model).eval().requires_grad_(False)
        for p in self.ema.parameters():
            p.add_(0.3 * torch.randn_like(p))
        self.x = 3 * torch.randn(POOL, 6)
        vcc.setup(self.model, make_task(classes))

    def step(self, number: int, ids: torch.Tensor | None = None, **more: Any) -> Step:
        ids = torch.randperm(POOL)[:SIZE] if ids is None else ids
        x, y = self.x[:8] + torch.randn(8, 6), torch.arange(8) % self.classes
        views = {"weak": self.x[ids], "labeled_strong": x}
        batch = Batch(x, y, torch.arange(8), views, ids, torch.ones(len(ids)))
        return Step(batch, self.model, self.ema, self.vcc, number, 100, **more)

    def run(self, step: Step) -> Calibrated:
        weak = step.batch.views["weak"]
        return step.confidence(weak, step.forward_weak(weak))

    def warm_up(self, steps: int = 12) -> World:
        """Fill the memories."""
        for number in range(steps):
            out = self.run(self.step(number))
            if out.loss is not None:
                out.loss.backward()
        return self

    def perturb_network(self) -> World:
        """Move the network away from its start."""
        for p in self.vcc.network.parameters():
            p.data.add_(0.3 * torch.randn_like(p))
        return self

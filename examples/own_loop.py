"""A plain PyTorch FixMatch loop on scikit-learn's digits, with RobustVCC in place of the softmax confidence.

It needs a model that returns Outputs(logits, features) and has a linear `head`, an averaged copy of that model, and
the numbers of the unlabeled examples within their pool. Run: python examples/own_loop.py [steps]
"""

import copy
import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from vcc_infuse import RobustVCC
from vcc_infuse.metrics import ece
from vcc_infuse.types import Batch, Outputs, Step, Task

BATCH, UNLABELED, CLASSES, PER_CLASS = 32, 160, 10, 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(24, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(48 * 4, CLASSES)

    def forward(self, x):
        features = self.body(x)
        return Outputs(self.head(features), features)


def weak(x):
    shift = torch.randint(-1, 2, (2,)).tolist()
    return x.roll(shift, (2, 3))


def strong(x):
    hidden = torch.rand(len(x), 1, 8, 8) < 0.15
    return weak(x).masked_fill(hidden, 0.0) + 0.1 * torch.randn_like(x)


def digits():
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(y)
    order = torch.randperm(len(x))
    return x[order[:1400]], y[order[:1400]], x[order[1400:]], y[order[1400:]]


def main(steps):
    torch.manual_seed(0)
    pool, truth, test_x, test_y = digits()
    labeled = torch.cat([(truth == c).nonzero().flatten()[:PER_CLASS] for c in range(CLASSES)])
    model = Net()
    ema = copy.deepcopy(model).eval().requires_grad_(False)

    vcc = RobustVCC()  # or VCC(), the paper's method
    counts = torch.full((CLASSES,), PER_CLASS)
    vcc.setup(model, Task(CLASSES, len(labeled), len(pool), counts, steps, BATCH, UNLABELED))
    parameters = [*model.parameters(), *vcc.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.03, momentum=0.9, nesterov=True, weight_decay=5e-4)

    for number in range(steps):
        ids, pool_ids = torch.randint(len(labeled), (BATCH,)), torch.randint(len(pool), (UNLABELED,))
        rows = labeled[ids]
        x, y, u = weak(pool[rows]), truth[rows], weak(pool[pool_ids])
        views = {"labeled_strong": strong(pool[rows])}
        batch = Batch(x, y, ids, views, pool_ids, torch.ones(UNLABELED))
        step = Step(batch, model, ema, vcc, number, steps)

        calibrated = step.confidence(u, step.forward_weak(u))
        selected = (calibrated.confidence >= 0.95).float()
        logits = model(torch.cat([x, strong(pool[pool_ids])])).logits
        loss = F.cross_entropy(logits[:BATCH], y) + calibrated.loss
        loss = loss + (F.cross_entropy(logits[BATCH:], calibrated.labels, reduction="none") * selected).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for average, now in zip(ema.state_dict().values(), model.state_dict().values(), strict=True):
            average.lerp_(now, 0.02) if average.is_floating_point() else average.copy_(now)

    vcc.eval()
    outputs = ema(test_x)
    right, softmax = outputs.logits.argmax(1) == test_y, outputs.logits.softmax(1).amax(1)
    print(f"error {1 - right.float().mean():.3f}")
    print(f"calibration error: softmax {ece(softmax, right):.3f}, calibrated {ece(vcc.predict(outputs), right):.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)

"""VCC in a plain PyTorch loop: FixMatch on scikit-learn's digits, with any model that returns logits.

python examples/own_loop.py [steps]
"""

import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from vcc_infuse import VCC
from vcc_infuse.metrics import ece

CLASSES, PER_CLASS, BATCH, UNLABELED = 10, 4, 32, 160


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(24, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(48 * 4, CLASSES),
    )  # fmt: skip


def digits():
    """Images and labels of the pool and of the test set, and the rows of the pool that are labeled."""
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x))
    x = torch.tensor(x, dtype=torch.float32).view(-1, 1, 8, 8)[order] / 16
    y = torch.tensor(y)[order]
    labeled = torch.cat([(y[:1400] == c).nonzero().flatten()[:PER_CLASS] for c in range(CLASSES)])
    return x[:1400], y[:1400], x[1400:], y[1400:], labeled


def weak(x):
    return x.roll(torch.randint(-1, 2, (2,)).tolist(), (2, 3))


def strong(x):
    hidden = torch.rand(len(x), 1, 8, 8) < 0.15
    return weak(x).masked_fill(hidden, 0.0) + 0.1 * torch.randn_like(x)


def main(steps):
    torch.manual_seed(0)
    pool, truth, test_x, test_y, labeled = digits()
    model = make_model()
    vcc = VCC.for_model(model, classes=CLASSES, pool_size=len(pool), batch_size=UNLABELED)
    optimizer = torch.optim.SGD([*model.parameters(), *vcc.parameters()], lr=0.03, momentum=0.9, nesterov=True)

    for _ in range(steps):
        rows = labeled[torch.randint(len(labeled), (BATCH,))]
        pool_ids = torch.randint(len(pool), (UNLABELED,))
        images = weak(pool[pool_ids])

        model.eval()
        with torch.no_grad():
            outputs = model(images)
        confidence, calibration_loss = vcc.update(images, outputs, pool_ids)
        model.train()

        logits = model(torch.cat([weak(pool[rows]), strong(pool[pool_ids])]))
        consistency = F.cross_entropy(logits[BATCH:], outputs.argmax(1), reduction="none")
        loss = F.cross_entropy(logits[:BATCH], truth[rows]) + calibration_loss
        loss = loss + (consistency * (confidence >= 0.95)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    vcc.update_ema()
    outputs = vcc.ema(test_x)
    right = outputs.logits.argmax(1) == test_y
    softmax = outputs.logits.softmax(1).amax(1)
    print(f"error {1 - right.float().mean():.3f}")
    print(f"ECE: softmax {ece(softmax, right):.3f}, calibrated {ece(vcc.predict(outputs), right):.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 250)

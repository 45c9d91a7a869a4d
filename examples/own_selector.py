"""Train on a part of the unlabeled pool: with a selector of your own, and with INFUSE in a plain PyTorch loop.

python examples/own_selector.py [steps]
vcc-infuse train --data digits --labels 40 --import examples/own_selector.py --selector own_selector.SmallMargin
"""

import sys
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader

from vcc_infuse import INFUSE, CoresetSampler, FixMatch, train
from vcc_infuse.errors import check_range
from vcc_infuse.selectors.base import ScoredSelector, example_columns


@dataclass(kw_only=True, eq=False, repr=False)
class SmallMargin(ScoredSelector):
    """Keep the examples whose two most likely classes are closest.

    Args:
        temperature: divides the logits.
    """

    temperature: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        check_range("temperature", self.temperature, 0, open_low=True)

    def score_pool(self, pool):
        return pool.scan(lambda chunk: {"score": -self.margin(chunk.outputs.logits), **example_columns(chunk)})

    def margin(self, logits):
        first, second = (logits / self.temperature).softmax(1).topk(2, dim=1).values.unbind(1)
        return first - second


def train_with_own_selector(steps):
    selector = SmallMargin(keep=0.5)
    method = FixMatch(threshold=0.8)
    summary = train("digits", labels=40, algorithm=method, selector=selector, steps=steps, batch_size=16).summary
    print(f"SmallMargin: error {100 * summary['error']:.1f} % with {summary['coreset_size']} examples at a time")


class Net(nn.Module):
    """Any network that ends in a linear layer; INFUSE needs the inputs and outputs of that layer."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        features = self.body(x)
        return features, self.head(features)


def strong(x):
    return F.dropout(x, 0.2) + 0.1 * torch.randn_like(x)


@torch.no_grad()
def refresh(sampler, net, pool, labeled, y):
    """Score the whole pool: pseudo labels from the plain images, gradients from strong views of them."""
    confidence, targets = net(pool)[1].softmax(1).max(1)
    features, logits = net(strong(pool))
    sampler.refresh(
        features,
        logits,
        targets=targets,
        weights=(confidence > 0.8).float(),
        support_features=net(labeled)[0],
        support_labels=y,
        head=net.head,
    )


def plain_loop(epochs):
    torch.manual_seed(0)
    images, truth = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    images = images.float() / 16
    pool, test_x, test_y = images[:1400], images[1400:], truth[1400:]
    rows = torch.cat([(truth[:1400] == label).nonzero()[:4, 0] for label in range(10)])
    labeled, y = pool[rows], truth[rows]

    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    sampler = CoresetSampler(len(pool), selector=INFUSE(keep=0.4))
    loader = DataLoader(pool, batch_size=64, sampler=sampler)
    for epoch in range(epochs):
        if epoch and epoch % 5 == 0:  # the first core set is a random subset
            refresh(sampler, net, pool, labeled, y)
        for u in loader:
            with torch.no_grad():
                confidence, targets = net(u)[1].softmax(1).max(1)
            unlabeled = F.cross_entropy(net(strong(u))[1], targets, reduction="none") * (confidence > 0.8)
            loss = F.cross_entropy(net(strong(labeled))[1], y) + unlabeled.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    error = (net(test_x)[1].argmax(1) != test_y).float().mean()
    print(f"INFUSE in a plain loop: error {100 * error:.1f} % with {len(sampler)} of {len(pool)} examples per epoch")


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    train_with_own_selector(steps)
    plain_loop(epochs=max(1, steps // 4))

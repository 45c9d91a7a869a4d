"""The step that ours is compared with: FlexMatch as toolboxes write it, in plain PyTorch.

One forward in single precision with gradient for labeled, weak and strong images together, PIL augmentation image by
image, NCHW memory layout, activations out of place, optimizer and average of the weights tensor by tensor.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vcc_infuse.data.ssl_data import SSLData
from vcc_infuse.models import Classifier, WideResNet
from vcc_infuse.models.wide_resnet import SLOPE, Block

from .pil import batch, strong, weak
from .turns import Maker, Work
from .workloads import Case

THRESHOLD = 0.95


def reference_step(case: Case, data: SSLData) -> Maker:
    """Makes the step; its network has the layers of the case's, without what we do to them."""

    def make() -> Work:
        height, width, channels = data.dataset.shape
        net = Classifier.build(plain(case.model()), (channels, height, width), len(data.dataset.classes))
        net.apply(out_of_place)
        return Reference(net, data, case.batch_size).step

    return make


class Reference:
    """FlexMatch with SGD and an average of the weights."""

    def __init__(self, net: Classifier, data: SSLData, batch_size: int) -> None:
        self.net = net.train()
        self.ema = copy.deepcopy(net).requires_grad_(False)
        self.data = data
        self.batch_size = batch_size
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, nesterov=True, weight_decay=5e-4)
        self.selected = torch.full((len(data.split.pool),), -1)
        self.classes = len(data.dataset.classes)

    def step(self, number: int) -> None:
        """One batch."""
        x = self.data.dataset.train.x
        split = self.data.split
        rng = np.random.default_rng(number)
        labeled = rng.integers(len(split.labeled), size=self.batch_size)
        pool = rng.integers(len(split.pool), size=7 * self.batch_size)
        raw = x[split.pool[pool]]
        images = [batch(x[split.labeled[labeled]], weak), batch(raw, weak), batch(raw, strong)]
        logits = self.net(torch.cat(images)).logits.split([len(part) for part in images])
        loss = F.cross_entropy(logits[0], torch.from_numpy(self.data.labeled_y[labeled]))
        labels, mask = self.pseudo_labels(logits[1].detach(), torch.from_numpy(pool))
        loss = loss + (F.cross_entropy(logits[2], labels, reduction="none") * mask).mean()
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.average()

    def pseudo_labels(self, logits: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """FlexMatch's rule, with the learning status counted anew."""
        confidence, labels = logits.softmax(1).max(1)
        counts = torch.bincount(self.selected + 1, minlength=self.classes + 1)
        status = counts[1:] / counts.max()
        mask = confidence >= THRESHOLD * (status / (2 - status))[labels]
        sure = confidence >= THRESHOLD
        self.selected[ids[sure]] = labels[sure]
        return labels, mask.float()

    @torch.no_grad()
    def average(self) -> None:
        """Average the weights, copy the statistics."""
        for mean, now in zip(self.ema.parameters(), self.net.parameters(), strict=True):
            mean.copy_(0.999 * mean + 0.001 * now)
        for copied, buffer in zip(self.ema.buffers(), self.net.buffers(), strict=True):
            copied.copy_(buffer)


def plain(backbone: nn.Module) -> nn.Module:
    """The same network; a Wide ResNet with blocks that write nothing in place."""
    return PlainWideResNet(backbone.depth, backbone.width) if isinstance(backbone, WideResNet) else backbone


class PlainWideResNet(WideResNet):
    """Every activation and sum is a new tensor."""

    def forward(self, x: Tensor) -> Tensor:
        """Mean of the last feature map."""
        x = self.first(x)
        for group in self.groups:
            for block in group:  # type: ignore[attr-defined]
                x = plain_block(block, x)
        return F.leaky_relu(self.norm(x), SLOPE).mean((2, 3))


def plain_block(block: Block, x: Tensor) -> Tensor:
    """Both branches and their sum."""
    active = x if block.norm1 is None else F.leaky_relu(block.norm1(x), SLOPE)
    hidden = F.leaky_relu(block.norm2(block.conv1(active)), SLOPE)
    out: Tensor = block.conv2(hidden) + (x if block.shortcut is None else block.shortcut(active))
    return out


def out_of_place(module: nn.Module) -> None:
    """Undo `inplace` of an activation."""
    if isinstance(module, nn.LeakyReLU):
        module.inplace = False

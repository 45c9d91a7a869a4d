"""Evidence in a module as Lightning wants it: `training_step` returns the loss. Lightning itself is not needed here.

With Lightning, derive from `lightning.LightningModule` and leave the loop in `main` to its Trainer.
python examples/own_loop_lightning.py [steps]
"""

import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from vcc_infuse import Evidence

CLASSES, LABELED, BATCH, UNLABELED = 10, 40, 32, 128


class SemiSupervised(nn.Module):
    """FixMatch whose threshold judges the probability that a pseudo label is right."""

    def __init__(self, y, pool_size, steps):
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, CLASSES)
        )
        # A submodule: it moves to the device and is in the checkpoint with everything else.
        self.calibrator = Evidence.for_model(
            self.model, classes=CLASSES, pool_size=pool_size, y=y, steps=steps, batch_size=UNLABELED
        )

    def training_step(self, batch, batch_index):
        x, y, ids, weak, strong, pool_ids = batch
        logits = self.model(torch.cat([x, strong]))
        # Without outputs it evaluates the weak views itself, as at inference.
        confidence, loss = self.calibrator.update(weak, None, pool_ids, labeled=(x, y, ids), views={"strong": strong})
        consistency = F.cross_entropy(logits[len(x) :], self.calibrator.last.labels, reduction="none")
        loss = 0 if loss is None else loss  # Evidence learns in every other step
        return loss + F.cross_entropy(logits[: len(x)], y) + (consistency * (confidence >= 0.9)).mean()

    def configure_optimizers(self):
        parameters = [*self.model.parameters(), *self.calibrator.parameters()]
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True)


def batches(x, y, labeled, count):
    for _ in range(count):
        ids, pool_ids = torch.randint(len(labeled), (BATCH,)), torch.randint(len(x), (UNLABELED,))
        weak = x[pool_ids] + 0.05 * torch.randn(UNLABELED, 64)
        strong = x[pool_ids] * (torch.rand(UNLABELED, 64) > 0.2) + 0.1 * torch.randn(UNLABELED, 64)
        yield x[labeled[ids]], y[labeled[ids]], ids, weak, strong, pool_ids


def main(steps):
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    labeled = torch.cat([(y == c).nonzero().flatten()[: LABELED // CLASSES] for c in range(CLASSES)])
    module = SemiSupervised(y[labeled], len(x), steps)
    optimizer = module.configure_optimizers()
    for number, batch in enumerate(batches(x, y, labeled, steps)):
        optimizer.zero_grad()
        module.training_step(batch, number).backward()
        optimizer.step()
    outputs = module.calibrator.ema(x)
    right = (outputs.logits.argmax(1) == y).float().mean()
    print(f"accuracy {right:.3f}, mean confidence {module.calibrator.predict(outputs).mean():.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)

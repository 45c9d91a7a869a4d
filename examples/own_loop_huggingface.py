"""VCC in a trainer in the style of Hugging Face: only `compute_loss(model, inputs)` changes.

With transformers, give `SelfTrainer` the base class `transformers.Trainer` and leave out `train`; here it is ten lines.
The examples are vectors, such as embeddings of texts. python examples/own_loop_huggingface.py [steps]
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from vcc_infuse import VCC

CLASSES, WIDTH, POOL, PER_CLASS = 5, 20, 600, 3


class SelfTrainer:
    """Adds confident pseudo labels of unlabeled examples to the loss of the labeled ones."""

    def __init__(self, model, dataset, steps):
        self.model, self.steps = model, steps
        self.loader = DataLoader(dataset, batch_size=64, shuffle=True)
        self.vcc = VCC.for_model(model, classes=CLASSES, pool_size=len(dataset))
        self.optimizer = torch.optim.AdamW([*model.parameters(), *self.vcc.parameters()], lr=3e-3)

    def compute_loss(self, model, inputs):
        logits, features = model(inputs["weak"])
        confidence, calibration_loss = self.vcc.update(inputs["weak"], (logits, features), inputs["index"])
        strong_logits, _ = model(inputs["strong"])
        consistency = F.cross_entropy(strong_logits, logits.argmax(1), reduction="none")
        known = inputs["label"] >= 0
        supervised = F.cross_entropy(logits, inputs["label"], ignore_index=-1) if known.any() else 0
        return supervised + calibration_loss + (consistency * (confidence >= 0.8) * ~known).mean()

    def train(self):
        done = 0
        while done < self.steps:
            for inputs in self.loader:
                self.optimizer.zero_grad()
                self.compute_loss(self.model, inputs).backward()
                self.optimizer.step()
                done += 1


class Encoder(nn.Module):
    """Returns logits and the features they come from."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.classifier = nn.Linear(64, CLASSES)

    def forward(self, x):
        features = self.body(x)
        return self.classifier(features), features


class Clusters(torch.utils.data.Dataset):
    """One cluster per class; all but a few labels are hidden (−1)."""

    def __init__(self):
        self.truth = torch.arange(POOL) % CLASSES
        self.x = 2.5 * torch.randn(CLASSES, WIDTH)[self.truth] / WIDTH**0.25 + torch.randn(POOL, WIDTH)
        self.labels = torch.where(torch.arange(POOL) < PER_CLASS * CLASSES, self.truth, -1)

    def __len__(self):
        return POOL

    def __getitem__(self, index):
        x = self.x[index]
        weak, strong = x + 0.1 * torch.randn(WIDTH), x + 0.5 * torch.randn(WIDTH)
        return {"weak": weak, "strong": strong, "index": index, "label": self.labels[index]}


def main(steps):
    torch.manual_seed(0)
    data = Clusters()
    trainer = SelfTrainer(Encoder(), data, steps)
    trainer.train()
    hidden = data.labels < 0
    outputs = trainer.vcc.ema(data.x[hidden])
    right = outputs.logits.argmax(1) == data.truth[hidden]
    confidence = trainer.vcc.predict(outputs)
    print(f"accuracy {right.float().mean():.3f}, mean confidence {confidence.mean():.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 150)

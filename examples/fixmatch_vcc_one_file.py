"""FixMatch + VCC in one file of plain PyTorch, on scikit-learn's handwritten digits with 40 labels.

FixMatch (Sohn et al., NeurIPS 2020): if the softmax confidence of a weakly augmented image reaches a threshold, its
predicted class becomes the label of a strongly augmented view. VCC (Fang et al., IJCAI 2024) replaces that confidence:
predictions that are stable under dropout, over time and between two networks get a higher one. Measuring stability is
expensive, so a small variational autoencoder (VAE) learns to reconstruct the result from probabilities and features.

This is the library's `FixMatch()` with `VCC()`, the paper's method with its two wrong signs corrected;
tests/integration/test_one_file.py feeds both the same batches and compares every loss and weight.
Run: python examples/fixmatch_vcc_one_file.py [steps]
"""

import copy
import math
import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

CLASSES, LABELED_BATCH, UNLABELED_BATCH = 10, 64, 448
LR, MOMENTUM, WEIGHT_DECAY, EMA_DECAY = 0.03, 0.9, 5e-4, 0.999
MC_SAMPLES, DROPOUT = 8, 0.3  # the ensemble: forwards of the head under dropout
QUEUE_SIZE, MIN_PER_CLASS = 128 * CLASSES, 16  # recent examples, by which scores are normalized
VCC_WEIGHT = 2.0
TINY = 1e-7


# 1. The network: three convolutions and a linear head. VCC needs the features as well as the logits.
class Net(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        layers = []
        for before, after, pool in ((1, width, 2), (width, 2 * width, 2), (2 * width, 4 * width, 1)):
            conv = nn.Conv2d(before, after, 3, padding=1, bias=False)
            layers += [conv, nn.MaxPool2d(pool), nn.BatchNorm2d(after), nn.LeakyReLU(0.1)]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(4 * width, CLASSES)
        nn.init.xavier_normal_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        features = self.body(x).mean((2, 3))
        return self.head(features), features


# 2. The three consistency scores of VCC. Each is 0 for a prediction that never changes.
def kl(p, q):
    return (p * (p.clamp_min(TINY).log() - q.clamp_min(TINY).log())).sum(1).clamp_min(0)


@torch.no_grad()
def consistency_scores(model, ema, images, probs, features, last_probs, visited):
    # Ensemble: entropy of the mean prediction of the head under dropout, the same for all rows of a sample.
    kept = F.dropout(torch.ones(MC_SAMPLES, 1, features.shape[1]), DROPOUT)
    mean = model.head(kept * features).softmax(2).mean(0)
    ensemble = -(mean * mean.clamp_min(TINY).log()).sum(1)
    # Temporal: divergence from the last prediction for the same example; NaN, which means no score, if there is none.
    temporal = torch.where(visited, kl(probs, last_probs), torch.nan)
    # View: divergence between the model and its moving average, with their heads swapped to widen the difference.
    _, ema_features = ema(images)
    view = kl(ema.head(features).softmax(1), model.head(ema_features).softmax(1))
    return torch.stack([ensemble, temporal, view], 1)


# 3. Fusion and interpolation: from scores to the target confidence.
def instability(rows, queue):
    """0…1: the mean square of 1 − confidence and of the scores, each normalized by its extremes in the queue.

    A missing score does not count. The paper prints confidence², which would trust confident predictions less.
    """
    known = queue["scores"].isnan().logical_not()
    low = torch.where(known, queue["scores"], torch.inf).amin(0)
    high = torch.where(known, queue["scores"], -torch.inf).amax(0)
    scores = torch.where(high > low, ((rows["scores"] - low) / (high - low)).clamp(0, 1), rows["scores"] * 0)
    return torch.cat([scores, 1 - rows["confidence"][:, None]], 1).square().nanmean(1)


def interpolate(rows, queue):
    """Within each pseudo class, the most stable example gets the highest confidence, the least stable the lowest."""
    fused, queue_fused = instability(rows, queue), instability(queue, queue)
    target = rows["confidence"].clone()
    for label in rows["labels"].unique():
        mine, known = rows["labels"] == label, queue["labels"] == label
        best, worst = queue_fused[known].aminmax()
        low, high = queue["confidence"][known].aminmax()
        if known.sum() >= MIN_PER_CLASS and worst > best:
            target[mine] = ((worst - fused[mine]) / (worst - best)).clamp(0, 1) * (high - low) + low
    return target


# 4. The VAE: learns the target from probabilities and features, so that no score is needed to select or to predict.
def mlp(inputs, outputs):
    hidden = [nn.Linear(inputs, 256), nn.LayerNorm(256), nn.ReLU(), nn.Linear(256, 64), nn.LayerNorm(64), nn.ReLU()]
    last = nn.Linear(64, outputs)
    for parameter in last.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(*hidden, last)


class VAE(nn.Module):
    def __init__(self, features, latent_dim=16):
        super().__init__()
        self.latent_dim = latent_dim
        self.decoder = mlp(CLASSES + features + latent_dim, 1)
        self.encoder = mlp(CLASSES + features, 2 * latent_dim)

    def condition(self, probs, features):
        return torch.cat([probs, F.layer_norm(features, features.shape[1:])], 1)

    def decode(self, probs, condition, z):
        """The logit of r. The paper does not say where the VAE starts: here, at the confidence of the softmax."""
        return probs.amax(1).logit(1e-6) + self.decoder(torch.cat([condition, z], 1)).squeeze(1)

    @torch.no_grad()
    def confidence(self, probs, features):
        """The reconstructed confidence, with z at the mean of its prior."""
        z = probs.new_zeros(len(probs), self.latent_dim)
        return self.decode(probs, self.condition(probs, features), z).sigmoid()

    def loss(self, probs, features, target):
        """Negative ELBO: reconstruction plus KL(q(z) ‖ N(0, 1)). The paper prints a minus, which has no minimum."""
        condition = self.condition(probs, features)
        mean, log_var = self.encoder(condition).chunk(2, 1)
        log_var = log_var.clamp(-10, 10)
        z = mean + torch.randn_like(mean) * (log_var / 2).exp()
        divergence = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(1)
        return F.binary_cross_entropy_with_logits(self.decode(probs, condition, z), target) + divergence.mean()


# 5. One training step: FixMatch's two losses, with VCC's confidence in the place of the softmax's.
class FixMatchVCC:
    def __init__(self, model, pool_size, steps, threshold=0.95):
        self.model, self.steps, self.threshold = model, steps, threshold
        self.ema = copy.deepcopy(model).eval().requires_grad_(False)
        self.vae = VAE(model.head.in_features)
        self.history = torch.zeros(pool_size, CLASSES, dtype=torch.float16)  # the last prediction of each example
        self.visited = torch.zeros(pool_size, dtype=torch.bool)
        self.queue = {"scores": torch.empty(0, 3), "confidence": torch.empty(0), "labels": torch.empty(0).long()}
        parameters = [*model.parameters(), *self.vae.parameters()]
        decayed = {"params": [p for p in parameters if p.ndim > 1], "weight_decay": WEIGHT_DECAY}
        vectors = {"params": [p for p in parameters if p.ndim <= 1]}  # biases and normalization do not decay
        self.optimizer = torch.optim.SGD([decayed, vectors], lr=LR, momentum=MOMENTUM, nesterov=True)

    def train_step(self, number, x, y, weak, strong, pool_ids):
        """Train on labeled images x, y and on two views of the unlabeled images with these numbers in the pool."""
        self.schedule(number)
        with torch.no_grad():  # the weak view is seen as a test image is, with BatchNorm's running statistics
            logits, features = self.model.eval()(weak)
        logits_xs, _ = self.model.train()(torch.cat([x, strong]))
        confidence, vcc_loss = self.calibrate(weak, logits.softmax(1), features, pool_ids)
        selected = (confidence >= self.threshold).float()
        labeled_loss = F.cross_entropy(logits_xs[: len(x)], y)
        each = F.cross_entropy(logits_xs[len(x) :], logits.argmax(1), reduction="none")
        unlabeled_loss = (each * selected).mean()  # examples that are not selected count in the denominator
        self.optimizer.zero_grad()
        (labeled_loss + unlabeled_loss + vcc_loss).backward()
        self.optimizer.step()
        self.update_ema(number)
        return {"labeled": labeled_loss, "unlabeled": unlabeled_loss, "calibration": vcc_loss}, confidence

    def calibrate(self, weak, probs, features, pool_ids):
        """The confidence of the batch, and the loss of the VAE on it."""
        confidence, labels = probs.max(1)
        past = self.history[pool_ids].float(), self.visited[pool_ids]
        scores = consistency_scores(self.model, self.ema, weak, probs, features, *past)
        self.history[pool_ids], self.visited[pool_ids] = probs.half(), True
        rows = {"scores": scores, "confidence": confidence, "labels": labels}
        self.queue = {name: torch.cat([self.queue[name], rows[name]])[-QUEUE_SIZE:] for name in rows}
        loss = VCC_WEIGHT * self.vae.loss(probs, features, interpolate(rows, self.queue))
        return self.vae.confidence(probs, features), loss

    def schedule(self, number):
        """The learning rate follows 7/16 of a cosine; BatchNorm's statistics follow quickly at first."""
        for group in self.optimizer.param_groups:
            group["lr"] = LR * math.cos(7 * math.pi * number / (16 * self.steps))
        for layer in self.model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.momentum = max(0.1, 9 / (10 + number))

    @torch.no_grad()
    def update_ema(self, number):
        """Average the weights, at first over a tenth of the steps so far; copy BatchNorm's statistics."""
        decay = min(EMA_DECAY, (1 + number) / (10 + number)) if number else 0.0  # start from the weights of one step
        for average, value in zip(self.ema.parameters(), self.model.parameters(), strict=True):
            average.lerp_(value, 1 - decay)
        for average, value in zip(self.ema.buffers(), self.model.buffers(), strict=True):
            average.copy_(value)

    @torch.no_grad()
    def predict(self, x):
        """Labels, softmax confidence and VCC's confidence, by the averaged weights."""
        logits, features = self.ema(x)
        probs = logits.softmax(1)
        confidence, labels = probs.max(1)
        return labels, confidence, self.vae.confidence(probs, features)


# 6. Data and augmentation, on whole batches.
def digits(labels_per_class=4):
    """Training images, their classes and the rows of the labeled ones; test images and their classes."""
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(y)
    order = torch.randperm(len(x))
    x, y = (x[order] - x.mean()) / x.std(), y[order]
    labeled = torch.cat([(y[360:] == c).nonzero().flatten()[:labels_per_class] for c in range(CLASSES)])
    return (x[360:], y[360:], labeled), (x[:360], y[:360])


def warp(x, angle, shift):
    """Rotate each image (in radians) and move it (1 is half its width), with bilinear interpolation."""
    cos, sin = angle.cos(), angle.sin()
    matrix = torch.stack([cos, -sin, shift[:, 0], sin, cos, shift[:, 1]], 1).view(-1, 2, 3)
    grid = F.affine_grid(matrix, x.shape, align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def weak_view(x):
    """Move by up to one pixel of eight. Nothing is flipped: a mirrored digit is another sign."""
    return warp(x, torch.zeros(len(x)), torch.randint(-1, 2, (len(x), 2)) / 4)


def strong_view(x):
    """Rotate and move further, change the contrast, and cover a square (Cutout)."""
    x = warp(x, (torch.rand(len(x)) - 0.5) * math.pi / 3, (torch.rand(len(x), 2) - 0.5) * 0.75)
    x = x * (0.4 + 0.8 * torch.rand(len(x), 1, 1, 1))
    center, half = torch.rand(len(x), 2, 1) * 8, torch.rand(len(x), 1, 1) * 2
    rows, columns = ((torch.arange(8) + 0.5 - center).abs() < half).unbind(1)
    return x.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0)


def batches(count, size, steps):
    """Steps × size numbers below `count`, from random permutations, so that all are seen equally often."""
    permutations = [torch.randperm(count) for _ in range(math.ceil(steps * size / count))]
    return torch.cat(permutations)[: steps * size].view(steps, size)


def main(steps):
    torch.set_num_threads(1)  # tensors this small gain nothing from more
    torch.manual_seed(0)
    (pool, truth, labeled), (test_x, test_y) = digits()
    run = FixMatchVCC(Net(), len(pool), steps)
    labeled_batches = labeled[batches(len(labeled), LABELED_BATCH, steps)]
    pool_batches = batches(len(pool), UNLABELED_BATCH, steps)
    for number, (rows, pool_ids) in enumerate(zip(labeled_batches, pool_batches, strict=True)):
        x, weak, strong = weak_view(pool[rows]), weak_view(pool[pool_ids]), strong_view(pool[pool_ids])
        losses, confidence = run.train_step(number, x, truth[rows], weak, strong, pool_ids)
        if (number + 1) % 50 == 0:
            terms = ", ".join(f"{name} {value:.3f}" for name, value in losses.items())
            print(f"step {number + 1}: {terms}, selected {(confidence >= run.threshold).float().mean():.2f}")
    labels, softmax, calibrated = run.predict(test_x)
    accuracy = (labels == test_y).float().mean()
    print(f"error {100 * (1 - accuracy):.1f} % with {len(labeled)} labels")
    print(f"accuracy {accuracy:.3f}; mean confidence: softmax {softmax.mean():.3f}, VCC {calibrated.mean():.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 250)

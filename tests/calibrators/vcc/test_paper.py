"""VCC against the formulas of the paper in plain NumPy loops, with the two signs of docs/paper-notes.md corrected."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.calibrators.vcc.world import SIZE, World

from vcc_infuse.calibrators import VCC
from vcc_infuse.types import Outputs, WeakOutputs

QUEUE, LATENT, SAMPLES = 60, 3, 4


def softmax(rows):
    return np.array([[math.exp(v - max(row)) / sum(math.exp(w - max(row)) for w in row) for v in row] for row in rows])


def kl(p, q):
    """Not below 0: the history is in half precision."""
    return max(0.0, sum(a * math.log(max(a, 1e-7) / max(b, 1e-7)) for a, b in zip(p, q, strict=True)))


def linear(layer, x):
    return x @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()


def perceptron(net, x):
    """Linear, LayerNorm, ReLU, twice, and a last Linear."""
    for layer in net:
        if isinstance(layer, torch.nn.Linear):
            x = linear(layer, x)
        elif isinstance(layer, torch.nn.LayerNorm):
            x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + layer.eps)
            x = x * layer.weight.detach().double().numpy() + layer.bias.detach().double().numpy()
        else:
            x = np.maximum(x, 0)
    return x


class Paper:
    """The state of the paper's method: the last prediction of each example, and a queue of quadruples."""

    def __init__(self, fusion):
        self.fusion, self.last, self.queue = fusion, {}, []

    def scores(self, world, step, kept):
        """(ensemble, temporal, view, confidence, label) of each example; `kept` has what dropout left, per sample."""
        images = step.batch.views["weak"]
        with torch.no_grad():
            world.model.eval()
            features, ema_features = world.model.backbone(images), world.ema.backbone(images)
            world.model.train()
        features, ema_features = features.double().numpy(), ema_features.double().numpy()
        probs = softmax(linear(world.model.head, features))
        y, y_ema = softmax(linear(world.ema.head, features)), softmax(linear(world.model.head, ema_features))
        copies = np.stack([softmax(linear(world.model.head, features * row)) for row in kept.double().numpy()[:, 0]])
        rows = []
        for i, number in enumerate(step.batch.pool_ids.tolist()):
            mean = copies[:, i].sum(0) / SAMPLES
            ensemble = -sum(p * math.log(p) for p in mean)
            temporal = kl(probs[i], self.last[number]) if number in self.last else None
            rows.append((ensemble, temporal, kl(y[i], y_ema[i]), max(probs[i]), int(np.argmax(probs[i]))))
            self.last[number] = probs[i].astype(np.float16).astype(float)
        return rows, probs, features

    def fused(self, row):
        """The sum of squares; over the terms that exist, for a missing one would otherwise count as stable."""
        total, terms = 0.0, 0
        for column in range(3):
            if row[column] is not None:
                known = [r[column] for r in self.queue if r[column] is not None]
                total += ((row[column] - min(known)) / (max(known) - min(known))) ** 2 if len(set(known)) > 1 else 0.0
                terms += 1
        doubt = 1 - row[3] if self.fusion == "corrected" else row[3]
        return (total + doubt**2) / (terms + 1)

    def targets(self, rows):
        """Interpolation between the extremes of the same pseudo class in the queue."""
        self.queue = (self.queue + rows)[-QUEUE:]
        found = []
        for row in rows:
            peers = [r for r in self.queue if r[4] == row[4]]
            scores, confidences = [self.fused(r) for r in peers], [r[3] for r in peers]
            if max(scores) == min(scores):
                found.append(row[3])
                continue
            share = (max(scores) - self.fused(row)) / (max(scores) - min(scores))
            found.append(share * (max(confidences) - min(confidences)) + min(confidences))
        return found


def reconstruction(network, probs, features, noise, targets):
    """r at z = 0, and −log p(r̃ | c, z, x) + KL(q(z | c, x) ‖ N(0, 1)) with z = μ + ε·σ."""
    scaled = (features - features.mean(1, keepdims=True)) / np.sqrt(features.var(1, keepdims=True) + 1e-5)
    condition = np.concatenate([probs, scaled], 1)
    mean, log_var = np.split(perceptron(network.encoder, condition), 2, axis=1)
    sigma = np.exp(log_var / 2)
    highest = probs.max(1).clip(1e-6, 1 - 1e-6)
    start = np.log(highest / (1 - highest)) if network.residual else 0.0
    decode = lambda z: 1 / (1 + np.exp(-start - perceptron(network.decoder, np.concatenate([condition, z], 1))[:, 0]))  # noqa: E731
    r, sampled, losses = decode(np.zeros_like(mean)), decode(mean + noise * sigma), []
    for i, target in enumerate(targets):
        likelihood = target * math.log(sampled[i]) + (1 - target) * math.log(1 - sampled[i])
        divergence = sum(-np.log(sigma[i]) + (mean[i] ** 2 + sigma[i] ** 2) / 2 - 0.5)
        losses.append(divergence - likelihood)
    return r, sum(losses) / len(losses)


@pytest.mark.parametrize("fusion", ["corrected", "printed"])
@pytest.mark.parametrize(("joint", "residual"), [(False, True), (True, True), (False, False)])
def test_scores_target_reconstruction_and_loss_are_those_of_the_paper(fusion, joint, residual, monkeypatch):
    options = {"queue_size": QUEUE, "latent_dim": LATENT, "mc_samples": SAMPLES, "min_per_class": 1}
    vcc = VCC(fusion=fusion, joint=joint, residual=residual, **options)
    world, paper, dropped = World(vcc, 3), Paper(fusion), []
    world.perturb_network()
    noise = torch.randn(SIZE, LATENT)
    monkeypatch.setattr(torch, "randn_like", lambda tensor: noise)
    dropout = F.dropout
    monkeypatch.setattr(F, "dropout", lambda x, rate: dropped.append(dropout(x, rate)) or dropped[-1])
    for number in range(4):
        step = world.step(number)
        dropped.clear()
        out = world.run(step)
        (kept,) = dropped
        assert ((kept == 0) | kept.isclose(torch.tensor(1 / 0.7))).all()
        rows, probs, features = paper.scores(world, step, kept)
        targets = paper.targets(rows)
        memory = vcc.queue
        newest = memory["scores"][(memory.cursor - SIZE + torch.arange(SIZE)) % memory.size].numpy()
        expected = np.array([[math.nan if s is None else s for s in row[:3]] for row in rows])
        np.testing.assert_allclose(newest, expected, rtol=2e-3, atol=2e-4)
        r, loss = reconstruction(vcc.network, probs, features, noise.double().numpy(), targets)
        np.testing.assert_allclose(out.confidence.numpy(), r, rtol=1e-4, atol=1e-5)
        assert out.loss.item() == pytest.approx(2 * loss, rel=1e-3)
        for p in world.model.parameters():
            p.data.add_(0.2 * torch.normal(0, 1, p.shape))
    assert np.nanmean(newest[:, 1]) > 0.01, "the case has a temporal score"


def plain_loss(world, images, target, noise):
    """λ times the negative ELBO, as a function of all parameters."""
    network = world.vcc.network
    features = world.model.backbone(images)
    probs = world.model.head(features).softmax(1)
    condition = torch.cat([probs, F.layer_norm(features, features.shape[1:])], 1)
    mean, log_var = network.encoder(condition).chunk(2, 1)
    logit = network.decoder(torch.cat([condition, mean + noise * (log_var / 2).exp()], 1)).squeeze(1)
    q = torch.distributions.Normal(mean, (log_var / 2).exp())
    prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    nll = F.binary_cross_entropy((logit + probs.amax(1).logit(1e-6)).sigmoid(), target)
    return 2 * (nll + torch.distributions.kl_divergence(q, prior).sum(1).mean())


def test_joint_gradient_reaches_the_network_and_is_that_of_the_loss(monkeypatch):
    world = World(VCC(joint=True, min_per_class=2)).warm_up().perturb_network()
    noise = torch.randn(SIZE, 16)
    monkeypatch.setattr(torch, "randn_like", lambda tensor: noise)
    seen = []
    target = world.vcc.target
    monkeypatch.setattr(world.vcc, "target", lambda rows: seen.append(target(rows)) or seen[-1])
    step = world.step(50)
    modules = torch.nn.ModuleList([world.model, world.vcc.network])
    modules.zero_grad()
    world.run(step).loss.backward()
    got = {name: p.grad.clone() for name, p in modules.named_parameters()}
    modules.zero_grad()
    world.model.eval()
    plain_loss(world, step.batch.views["weak"], seen[-1], noise).backward()
    expected = {name: p.grad for name, p in modules.named_parameters()}
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-3)
    assert all(expected[name].abs().max() > 1e-4 for name in ("0.head.weight", "0.backbone.0.weight"))


@pytest.mark.parametrize("output", ["scalar", "distribution"])
def test_detached_loss_trains_the_vae_and_nothing_else(output):
    world = World(VCC(min_per_class=2, output=output)).warm_up()
    world.vcc.zero_grad()
    step = world.step(50)
    weak = step.batch.views["weak"]
    world.model.zero_grad()
    step.confidence(weak, WeakOutputs(*world.model(weak))).loss.backward()
    assert all(p.grad is None for p in world.model.parameters())
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in world.vcc.parameters())


def test_on_frozen_features_only_the_probabilities_carry_the_gradient():
    world = World(VCC(joint=True, min_per_class=2)).warm_up().perturb_network()
    world.model.backbone.requires_grad_(False)
    world.model.zero_grad()
    world.run(world.step(50)).loss.backward()
    assert world.model.head.weight.grad.abs().max() > 0
    assert all(p.grad is None for p in world.model.backbone.parameters())


def test_outputs_with_a_gradient_are_used_as_they_are():
    world = World(VCC(joint=True, scores=(), min_per_class=2)).warm_up()
    step, calls = world.step(50), []
    weak = step.batch.views["weak"]
    attached = Outputs(*(part.retain_grad() or part for part in world.model(weak)))
    world.model.register_forward_hook(lambda *_: calls.append(1))
    step.confidence(weak, WeakOutputs(*attached.detach(), with_gradient=attached)).loss.backward()
    assert calls == []
    assert attached.logits.grad is not None

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from tests.helpers.tiny import (
    make_step,
    pseudo_labels,
    random_probs,
    run,
)
from vcc_infuse.algorithms.ops import Projection
from vcc_infuse.algorithms.simmatch import SimMatch
from vcc_infuse.types import Calibrated, WeakOutputs


def prepared(number=10, seed=0, **options):
    """A method that knows its labeled images, after its warm-up of ten steps."""
    method = SimMatch(embedding_dim=4, warmup_steps=10, **options)
    step = make_step(method, number=number, seed=seed)
    method.embedded_labels.copy_(torch.arange(6) % 3)
    return method, step


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def softmax(values):
    powers = [math.exp(v - max(values)) for v in values]
    return [p / sum(powers) for p in powers]


def slow(method, projected, probs):
    """Targets and reweighted similarities, one value at a time; `probs` are already aligned."""
    labels, targets, unfolded = method.embedded_labels.tolist(), [], []
    for h, p in zip(projected.tolist(), probs.tolist(), strict=True):
        q = softmax([dot(h, m) / 0.1 for m in method.labeled_embeddings.tolist()])
        u = [qj * p[label] for qj, label in zip(q, labels, strict=True)]
        unfolded.append([value / sum(u) for value in u])
        near = [sum(qj for qj, label in zip(q, labels, strict=True) if label == c) for c in range(3)]
        targets.append([0.9 * a + 0.1 * b for a, b in zip(p, near, strict=True)])
    return targets, unfolded


def test_targets_against_a_slow_loop():
    method, step = prepared(threshold=0.6)
    method.eval()  # alignment is the identity while its queue is empty
    probs = random_probs(8)
    pseudo = pseudo_labels(method, step, probs)
    targets, _ = slow(method, method.projection(step.weak.features), probs)
    torch.testing.assert_close(pseudo.targets, torch.tensor(targets))
    assert pseudo.weights.tolist() == [float(max(row) >= 0.6) for row in targets]
    assert 0 < pseudo.weights.sum() < 8
    torch.testing.assert_close(pseudo.targets.sum(1), torch.ones(8))


def test_losses_against_a_slow_loop():
    method, step = prepared(threshold=0.4, weight=2.0, instance_weight=3.0)
    weights = torch.linspace(0.5, 1.5, 8)
    step.batch = step.batch._replace(weights=weights)
    step.model.eval()
    method.eval()
    views = step.batch.views
    terms = run(method, step)
    weak, strong = step.model(views["weak"]), step.model(views["strong"])
    targets, unfolded = slow(method, method.projection(weak.features), weak.logits.softmax(1))
    instance = class_loss = 0.0
    logs = strong.logits.log_softmax(1).tolist()
    for b, h in enumerate(method.projection(strong.features).tolist()):
        r = softmax([dot(h, m) / 0.1 for m in method.labeled_embeddings.tolist()])
        instance -= float(weights[b]) * dot(unfolded[b], [math.log(v) for v in r]) / 8
        class_loss -= float(weights[b]) * (max(targets[b]) >= 0.4) * dot(targets[b], logs[b]) / 8
    torch.testing.assert_close(terms["instance"].item(), 3 * instance, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(terms["unlabeled"].item(), 2 * class_loss, rtol=1e-4, atol=1e-5)


def test_embeddings_follow_their_image_and_have_norm_one():
    """Normalizing over the other axis would leave rows with another norm."""
    method, step = prepared()
    ids = torch.tensor([4, 1, 4, 0])
    step.batch = step.batch._replace(ids=ids, y=torch.tensor([2, 1, 0, 0]))
    before = method.labeled_embeddings.clone()
    model = copy.deepcopy(step.model)
    model(step.batch.views["weak"])
    labeled = model(torch.cat([step.batch.x, step.batch.views["strong"]])).features[:4]
    projected = method.projection(labeled)
    run(method, step)
    for row, source in {0: 3, 1: 1, 4: 2}.items():  # of the two rows with id 4, the last counts
        mixed = [0.7 * m + 0.3 * h for m, h in zip(before[row].tolist(), projected[source].tolist(), strict=True)]
        length = math.sqrt(sum(v * v for v in mixed))
        torch.testing.assert_close(method.labeled_embeddings[row], torch.tensor([v / length for v in mixed]))
    assert torch.equal(method.labeled_embeddings[[2, 3, 5]], before[[2, 3, 5]])
    torch.testing.assert_close(method.labeled_embeddings.norm(dim=1), torch.ones(6))
    assert method.embedded_labels[4] == 0


def test_the_warm_up_uses_the_classifier_alone():
    method, step = prepared(number=9)
    method.eval()
    probs = random_probs(8)
    torch.testing.assert_close(pseudo_labels(method, step, probs).targets, probs)
    assert run(method, step)["instance"].item() == 0
    step.number = 10
    assert run(method, step)["instance"].item() > 0
    assert not torch.allclose(pseudo_labels(method, step, probs).targets, probs)


def test_images_not_seen_yet_are_ignored():
    method, step = prepared()
    method.eval()
    method.embedded_labels[3:] = -1
    probs = random_probs(8)
    pseudo, unfolded = method._targets(*_given(step, probs))
    assert unfolded[:, 3:].abs().max() == 0
    near = (method.projection(step.weak.features) @ method.labeled_embeddings[:3].T / 0.1).softmax(1)
    torch.testing.assert_close(pseudo.targets, 0.9 * probs + 0.1 * near)


def _given(step, probs):
    step.weak = WeakOutputs(probs.log(), torch.randn(len(probs), 5))
    return Calibrated(probs, probs.amax(1), outputs=step.weak), step


def test_one_projection_head_of_two_layers():
    """Averaging several heads would be another method (EPASS)."""
    method, _ = prepared()
    assert sum(isinstance(module, Projection) for module in method.modules()) == 1
    assert [tuple(p.shape) for p in method.parameters()] == [(5, 5), (5,), (4, 5), (4,)]


def test_bf16_features_give_float32_targets():
    method, step = prepared()
    step.weak = step.weak or WeakOutputs(*step.model(step.batch.views["weak"]))
    step.weak = step.weak._replace(features=step.weak.features.bfloat16())
    assert pseudo_labels(method, step, random_probs(8)).targets.dtype == torch.float32


def test_similarities_keep_float32_under_autocast():
    method, step = prepared()
    method.eval()
    probs = random_probs(8)
    exact = pseudo_labels(method, step, probs).targets
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(pseudo_labels(method, step, probs).targets, exact)


def test_embeddings_start_with_norm_one():
    method, _ = prepared()
    torch.testing.assert_close(method.labeled_embeddings, F.normalize(method.labeled_embeddings, dim=1))


@pytest.mark.parametrize(("steps", "length"), [(100, 5), (2**20, 1024)])
def test_the_default_warm_up_is_a_twentieth_of_the_run_and_at_most_1024_steps(steps, length):
    method = SimMatch(embedding_dim=4)
    step = make_step(method, steps=steps, number=length - 1)
    method.embedded_labels.copy_(torch.arange(6) % 3)
    assert run(method, step)["instance"].item() == 0
    step.number = length
    assert run(method, step)["instance"].item() > 0

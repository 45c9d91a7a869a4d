import math

import pytest
import torch

from tests.helpers.tiny import (
    make_step,
    pseudo_labels,
    random_probs,
    run,
)
from vcc_infuse.algorithms.comatch import CoMatch
from vcc_infuse.algorithms.ops import Projection


def fresh(seed=0, **options):
    method = CoMatch(embedding_dim=4, **options)
    return method, make_step(method, seed=seed)


def full(seed=0, **options):
    """A method with a full memory."""
    method, step = fresh(seed, **options)
    rows = method.queue.size
    method.queue.push(projection=torch.nn.functional.normalize(torch.randn(rows, 4)), probs=random_probs(rows))
    return method, step


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def softmax(values):
    powers = [math.exp(v - max(values)) for v in values]
    return [p / sum(powers) for p in powers]


def slow_targets(method, projected, probs):
    embeddings, known = method.queue["projection"].tolist(), method.queue["probs"].tolist()
    targets = []
    for h, p in zip(projected.tolist(), probs.tolist(), strict=True):
        a = softmax([dot(h, k) / 0.2 for k in embeddings])
        near = [sum(w * row[c] for w, row in zip(a, known, strict=True)) for c in range(3)]
        targets.append([0.9 * x + 0.1 * y for x, y in zip(p, near, strict=True)])
    return targets


def slow_contrast(targets, first, second, cut):
    losses = []
    for b, target in enumerate(targets):
        row = [1.0 if b == j else dot(target, other) for j, other in enumerate(targets)]
        row = [w if w >= cut else 0.0 for w in row]
        s = softmax([dot(first[b], h) / 0.2 for h in second])
        losses.append(-sum(w / sum(row) * math.log(v + 1e-7) for w, v in zip(row, s, strict=True)))
    return losses


def test_targets_are_smoothed_by_the_memory():
    method, step = full(threshold=0.6)
    method.eval()
    probs = random_probs(8)
    pseudo = pseudo_labels(method, step, probs)
    targets = slow_targets(method, method.projection(step.weak.features), probs)
    torch.testing.assert_close(pseudo.targets, torch.tensor(targets))
    assert pseudo.weights.tolist() == [float(max(row) >= 0.6) for row in targets]
    assert 0 < pseudo.weights.sum() < 8
    torch.testing.assert_close(pseudo.targets.sum(1), torch.ones(8))


def test_no_smoothing_before_the_memory_is_full():
    method, step = fresh()
    method.eval()
    size = method.queue.size
    assert size == 5 * (4 + 8)
    method.queue.push(projection=torch.randn(size - 1, 4), probs=random_probs(size - 1))
    probs = random_probs(8)
    assert torch.equal(pseudo_labels(method, step, probs).targets, method.alignment(probs))
    method.queue.push(projection=torch.randn(1, 4), probs=random_probs(1))
    assert not torch.allclose(pseudo_labels(method, step, probs).targets, probs)


def test_losses_against_a_slow_loop():
    method, step = full(threshold=0.35, weight=2.0, contrast_weight=5.0, contrast_threshold=0.3)
    weights = torch.linspace(0.5, 1.5, 8)
    step.batch = step.batch._replace(weights=weights)
    step.model.eval()
    method.eval()
    terms = run(method, step)
    weak, first, second = (step.model(step.batch.views[name]) for name in ("weak", "strong", "strong_2"))
    targets = slow_targets(method, method.projection(weak.features), weak.logits.softmax(1))
    each = slow_contrast(
        targets, method.projection(first.features).tolist(), method.projection(second.features).tolist(), 0.3
    )
    assert terms["contrast"].item() == pytest.approx(5 * dot(each, weights.tolist()) / 8, rel=1e-4)
    logs = first.logits.log_softmax(1).tolist()
    kept = [max(target) >= 0.35 for target in targets]
    soft = [-k * dot(t, v) for k, t, v in zip(kept, targets, logs, strict=True)]
    assert any(kept)
    assert terms["unlabeled"].item() == pytest.approx(2 * dot(soft, weights.tolist()) / 8, rel=1e-4)


@pytest.mark.parametrize("cut", [0.5, 0.8])
def test_contrast_pulls_confident_equal_targets_together(cut):
    method, _ = fresh(contrast_threshold=cut)
    targets = torch.tensor([[0.99, 0.01, 0], [0.98, 0.02, 0], [0, 0.99, 0.01], [0.6, 0.4, 0]])
    one, two = torch.randn(4, 5), torch.randn(4, 5)
    expected = slow_contrast(targets.tolist(), method.projection(one).tolist(), method.projection(two).tolist(), cut)
    torch.testing.assert_close(method._contrast(targets, one, two), torch.tensor(expected))


def test_memory_keeps_aligned_probabilities_before_smoothing_then_labels():
    method, step = full()
    step.model.eval()
    method.queue.cursor.zero_()
    weak, labeled = step.model(step.batch.views["weak"]), step.model(step.batch.x)
    twin, _ = full()
    aligned = twin.alignment(weak.logits.softmax(1))
    run(method, step)
    torch.testing.assert_close(method.queue["probs"][:8], aligned)
    torch.testing.assert_close(method.queue["projection"][:8], method.projection(weak.features))
    assert torch.equal(method.queue["probs"][8:12], torch.eye(3)[step.batch.y])
    torch.testing.assert_close(method.queue["projection"][8:12], method.projection(labeled.features))
    assert method.alignment.means.pushed.item() == 1


def test_one_projection_head_of_two_layers():
    """Averaging several heads would be another method (EPASS)."""
    method, _ = fresh()
    assert sum(isinstance(module, Projection) for module in method.modules()) == 1
    assert [tuple(p.shape) for p in method.parameters()] == [(5, 5), (5,), (4, 5), (4,)]


def test_similarities_keep_float32_under_autocast():
    method, step = full()
    method.eval()
    probs = random_probs(8)
    exact = pseudo_labels(method, step, probs).targets
    graph = method._contrast(exact, step.weak.features, step.weak.features)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(pseudo_labels(method, step, probs).targets, exact)
        assert torch.equal(method._contrast(exact, step.weak.features, step.weak.features), graph)

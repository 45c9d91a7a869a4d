import pytest
import torch
import torch.nn.functional as F
from tests.helpers.tiny import FEATURES, make_step, pseudo_labels, random_probs, run

from vcc_infuse.algorithms import FixMatch
from vcc_infuse.algorithms.imbalance import DASO
from vcc_infuse.types import WeakOutputs


def slow_similarity(features, prototypes, temperature=0.05):
    cosines = [[F.cosine_similarity(z, c, dim=0) for c in prototypes] for z in features]
    return (torch.tensor(cosines) / temperature).softmax(1)


def ready(number=51, **options):
    """A method with prototypes and counts, at a step that starts no new count."""
    method = DASO(**options)
    step = make_step(method, number=number)
    method.class_queue.push(torch.randn(9, FEATURES), torch.arange(9) % 3)
    method.counts.copy_(torch.tensor([60.0, 30.0, 10.0]))
    return method, step


def set_weak(step, probs):
    step.weak = WeakOutputs(probs.log(), torch.randn(len(probs), FEATURES))
    return step.weak.features


def test_each_example_is_blended_with_its_own_prototypes():
    """Two different batches: the second must not be blended with the similarities of the first."""
    method, step = ready(base=FixMatch(threshold=0.7), dist_temperature=1.5)
    weight = (torch.tensor([60.0, 30.0, 10.0]) / 60) ** (1 / 1.5)
    changed = 0
    for _ in range(3):
        probs = random_probs(8)
        features = set_weak(step, probs)
        pseudo = pseudo_labels(method, step, probs)
        near = slow_similarity(features, method.class_queue.means())
        rows = [(1 - weight[p.argmax()]) * p + weight[p.argmax()] * s for p, s in zip(probs, near, strict=True)]
        blended = torch.stack(rows)
        assert torch.equal(pseudo.targets, blended.argmax(1))
        assert torch.equal(pseudo.weights, (blended.amax(1) >= 0.7).float())
        changed += (pseudo.targets != probs.argmax(1)).sum()
    assert changed > 0, "a label must change"


def test_in_the_warm_up_the_base_is_used_alone_but_labels_are_counted():
    method = DASO(FixMatch(threshold=0.4), warmup_fraction=0.2)
    step, base = make_step(method, number=19), FixMatch(threshold=0.4)
    losses, plain = run(method, step), run(base, make_step(base, number=19))
    torch.testing.assert_close(dict(losses), dict(plain))
    assert torch.equal(method.current_counts.long(), torch.bincount(step.weak.logits.argmax(1), minlength=3))
    assert method.class_queue.pushed.sum() == len(step.batch.y)


@pytest.mark.parametrize(("refresh", "fraction", "period"), [(5, 0.5, 5), (100, 0.1, 10)])
def test_counts_are_those_of_the_last_complete_period(refresh, fraction, period):
    method = DASO(refresh=refresh, warmup_fraction=fraction)
    step, seen = make_step(method), []
    for step.number in range(2 * period + 1):
        probs = random_probs(8)
        set_weak(step, probs)
        seen.append(torch.bincount(pseudo_labels(method, step, probs).targets, minlength=3))
    assert torch.equal(method.counts.long(), sum(seen[period : 2 * period]))
    assert torch.equal(method.current_counts.long(), seen[-1])


def test_the_alignment_loss_matches_strong_to_weak_similarities():
    method, step = ready(align_weight=3.0)
    step.batch = step.batch._replace(weights=torch.rand(8))
    losses = run(method, step)
    joint = torch.cat([step.batch.x, step.batch.views["strong"]])
    features = step.model(joint).features.detach()[len(step.batch.x) :]
    near, target = (slow_similarity(z, method.class_queue.means()) for z in (features, step.weak.features))
    each = -(target * near.log()).sum(1)
    torch.testing.assert_close(
        losses["alignment"].detach(), 3 * (each * step.batch.weights).mean(), rtol=1e-4, atol=1e-5
    )
    losses["alignment"].backward()
    assert all(p.grad is not None for p in step.model.backbone.parameters())
    assert step.model.head.weight.grad is None


def test_prototypes_are_features_of_the_averaged_model():
    method = DASO()
    step = make_step(method)
    for p in step.ema.parameters():
        p.data.add_(0.1)
    run(method, step)
    features = step.ema(step.batch.x).features
    for c in step.batch.y.unique():
        torch.testing.assert_close(method.class_queue.means()[c], features[step.batch.y == c].mean(0))


def test_a_class_without_labeled_images_so_far_gets_no_probability():
    method, _ = ready()
    method.class_queue.pushed[1] = 0
    near = method.prototype_logits(torch.randn(4, FEATURES)).softmax(1)
    assert (near[:, 1] == 0).all()
    assert near.isfinite().all()

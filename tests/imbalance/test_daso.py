import pytest
import torch
import torch.nn.functional as F
from tests.helpers.tiny import FEATURES, buffers, judged, make_step, random_probs, run, same

from vcc_infuse.algorithms import FixMatch
from vcc_infuse.imbalance import DASO
from vcc_infuse.memory import ClassMemory
from vcc_infuse.types import Outputs


def slow_semantics(features, prototypes, temperature=0.05):
    cosines = [[F.cosine_similarity(z, c, dim=0) for c in prototypes] for z in features]
    return (torch.tensor(cosines) / temperature).softmax(1)


def ready(number=51, **options):
    """A method whose prototypes and count are known, at a step where no new count begins."""
    method = DASO(**options)
    step = make_step(method, number=number)
    method.bank.push(torch.randn(9, FEATURES), torch.arange(9) % 3)
    method.counted.copy_(torch.tensor([60.0, 30.0, 10.0]))
    return method, step


def weak(step, probs):
    step.weak = Outputs(probs.log(), torch.randn(len(probs), FEATURES))
    return step.weak.features


def test_each_example_is_blended_with_its_own_prototypes():
    """Two different batches: the second must not be blended with the similarities of the first."""
    method, step = ready(base=FixMatch(threshold=0.7), dist_temperature=1.5)
    share = (torch.tensor([60.0, 30.0, 10.0]) / 60) ** (1 / 1.5)
    changed = 0
    for _ in range(3):
        probs = random_probs(8)
        features = weak(step, probs)
        pseudo = judged(method, step, probs)
        semantic = slow_semantics(features, method.bank.means())
        rows = [(1 - share[p.argmax()]) * p + share[p.argmax()] * s for p, s in zip(probs, semantic, strict=True)]
        blended = torch.stack(rows)
        assert torch.equal(pseudo.targets, blended.argmax(1))
        assert torch.equal(pseudo.weights, (blended.amax(1) >= 0.7).float())
        changed += (pseudo.targets != probs.argmax(1)).sum()
    assert changed > 0, "the case must change a label"


def test_in_the_warm_up_the_base_goes_alone_but_labels_are_counted():
    method = DASO(FixMatch(threshold=0.4), warmup_share=0.2)
    step, base = make_step(method, number=19), FixMatch(threshold=0.4)
    losses, plain = run(method, step), run(base, make_step(base, number=19))
    torch.testing.assert_close(dict(losses), dict(plain))
    assert torch.equal(method.counting.long(), torch.bincount(step.weak.logits.argmax(1), minlength=3))
    assert method.bank.pushed.sum() == len(step.batch.y)


@pytest.mark.parametrize(("refresh", "share", "period"), [(5, 0.5, 5), (100, 0.1, 10)])
def test_counts_are_of_the_last_full_period(refresh, share, period):
    method = DASO(refresh=refresh, warmup_share=share)
    step, seen = make_step(method), []
    for step.number in range(2 * period + 1):
        probs = random_probs(8)
        weak(step, probs)
        seen.append(torch.bincount(judged(method, step, probs).targets, minlength=3))
    assert torch.equal(method.counted.long(), sum(seen[period : 2 * period]))
    assert torch.equal(method.counting.long(), seen[-1])


def test_strong_views_are_drawn_to_the_prototypes_of_weak_ones():
    method, step = ready(align_weight=3.0)
    step.batch = step.batch._replace(weights=torch.rand(8))
    losses = run(method, step)
    joint = torch.cat([step.batch.x, step.batch.views["strong"]])
    features = step.model(joint).features.detach()[len(step.batch.x) :]
    near, target = (slow_semantics(z, method.bank.means()) for z in (features, step.weak.features))
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
        torch.testing.assert_close(method.bank.means()[c], features[step.batch.y == c].mean(0))


def test_a_class_without_labeled_images_yet_draws_nothing():
    method, _ = ready()
    method.bank.pushed[1] = 0
    semantic = method.semantics(torch.randn(4, FEATURES)).softmax(1)
    assert (semantic[:, 1] == 0).all()
    assert semantic.isfinite().all()


def test_memory_count_and_labels_are_saved_and_rest_in_eval_mode():
    method, step = ready()
    run(method, step)
    assert {"bank.rows", "bank.pushed", "counting", "counted"} <= set(method.state_dict())
    before, step.number = buffers(method.eval()), 60
    judged(method, step, random_probs(8))
    run(method, step)
    assert same(before, buffers(method))


def test_class_memory_follows_a_slow_loop():
    torch.manual_seed(0)
    memory, queues = ClassMemory(3, 4, 2), [[], [], []]
    for size in (3, 12, 1, 7):
        rows, labels = torch.randn(size, 2), torch.randint(2, (size,))
        memory.push(rows, labels)
        for row, label in zip(rows, labels, strict=True):
            queues[label] = [*queues[label], row][-4:]
    for c in range(2):
        torch.testing.assert_close(memory.means()[c], torch.stack(queues[c]).mean(0))
    assert memory.known.tolist() == [True, True, False]

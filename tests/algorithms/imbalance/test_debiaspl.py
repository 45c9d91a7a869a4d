import pytest
import torch
import torch.nn.functional as F
from tests.helpers.tiny import make_step, pseudo_labels, run

from vcc_infuse.algorithms import FixMatch
from vcc_infuse.algorithms.imbalance import DebiasPL


def skewed(rows=8):
    """Predictions that favor class 0."""
    return (torch.randn(rows, 3) + torch.tensor([2.0, 0.0, -1.0])).softmax(1)


def test_the_mean_is_kept_per_class():
    """A scalar mean of probabilities would always be 1/K and change nothing."""
    method = DebiasPL(momentum=0.9)
    step = make_step(method, pool=8, steps=10**6)
    expected = [1 / 3] * 3
    for _ in range(5):
        probs = skewed()
        pseudo_labels(method, step, probs)
        for c in range(3):
            expected[c] = 0.9 * expected[c] + 0.1 * sum(row[c].item() for row in probs) / len(probs)
    assert method.mean.tolist() == pytest.approx(expected, rel=1e-5)
    assert method.mean[0] > 1.5 * method.mean[2]


def test_labels_and_mask_come_from_debiased_logits():
    method = DebiasPL(FixMatch(threshold=0.6), strength=0.7)
    step = make_step(method, pool=8, steps=10**6)
    method.mean.copy_(torch.tensor([0.7, 0.2, 0.1]))
    logits = torch.randn(40, 3)
    debiased = (logits - 0.7 * method.mean.log()).softmax(1)
    pseudo = pseudo_labels(method, step, logits.softmax(1), torch.arange(40) % 8)
    assert torch.equal(pseudo.targets, debiased.argmax(1))
    assert torch.equal(pseudo.weights, (debiased.amax(1) >= 0.6).float())
    assert (pseudo.targets != logits.argmax(1)).any(), "a label must change"


def test_strong_views_get_the_margin():
    method = DebiasPL(FixMatch(threshold=0.0, weight=2.0), strength=0.5)
    step = make_step(method, steps=10**6)
    method.mean.copy_(torch.tensor([0.7, 0.2, 0.1]))
    margin, batch = 0.5 * method.mean.log(), step.batch
    losses = run(method, step)
    labels = (step.weak.logits - margin).argmax(1)
    labeled, strong = step.model(torch.cat([batch.x, batch.views["strong"]])).logits.split([4, 8])
    torch.testing.assert_close(losses["unlabeled"], 2 * F.cross_entropy(strong + margin, labels))
    torch.testing.assert_close(losses["labeled"], F.cross_entropy(labeled, batch.y))


def test_a_uniform_mean_changes_nothing():
    method, base = DebiasPL(FixMatch(threshold=0.4)), FixMatch(threshold=0.4)
    corrected, plain = run(method, make_step(method)), run(base, make_step(base))
    torch.testing.assert_close(dict(corrected), dict(plain))


def test_impossible_classes_stay_finite():
    method = DebiasPL(strength=1.0)
    step = make_step(method, pool=8, steps=10**6)
    method.mean.copy_(torch.tensor([1.0, 0.0, 0.0]))
    pseudo = pseudo_labels(method, step, torch.eye(3)[torch.zeros(8, dtype=torch.long)])
    assert pseudo.weights.isfinite().all()
    assert method.margin().isfinite().all()

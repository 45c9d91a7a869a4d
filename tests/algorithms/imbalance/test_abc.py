import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.tiny import make_model, make_step, make_task, run

from vcc_infuse.algorithms import FixMatch
from vcc_infuse.algorithms.imbalance import ABC, DARP
from vcc_infuse.models import Classifier

COUNTS = torch.tensor([100, 50, 10])


def prepared(method, number=0, batch=4, ratio=2):
    step = make_step(method, number=number, batch=batch, ratio=ratio, pool=batch * ratio)
    method.setup(step.model, dataclasses.replace(make_task(), label_counts=COUNTS))
    return step


def test_frequent_classes_are_subsampled_at_their_rates():
    method = ABC(threshold=0.0)
    step = prepared(method, number=60)
    logits = torch.eye(3)[torch.arange(30000) % 3] * 9
    kept = method.balanced_pseudo_label(logits, step).weights.view(-1, 3).mean(0)
    torch.testing.assert_close(kept, 1 - 0.6 * (1 - 10 / COUNTS), rtol=0, atol=0.02)
    torch.testing.assert_close(method.keep_rates, 10 / COUNTS)


@pytest.mark.parametrize("soft", [True, False])
def test_losses_of_the_balanced_head_match_the_definition(soft):
    """With rates of one there is no random subsampling."""
    method = ABC(threshold=0.5, head_weight=2.0, soft=soft)
    step = prepared(method, batch=16)
    method.keep_rates.fill_(1)
    step.batch = step.batch._replace(weights=torch.rand(32))
    losses, head = run(method, step), step.model.balanced
    labeled, strong = step.model(torch.cat([step.batch.x, step.batch.views["strong"]])).features.split([16, 32])
    torch.testing.assert_close(losses["balanced"], 2 * F.cross_entropy(head(labeled), step.batch.y))
    total = 0.0
    for z, logits, w in zip(step.weak.features, head(strong), step.batch.weights, strict=True):
        q = head(z).softmax(0).detach()
        if q.max() >= 0.5:
            total += w * (-(q * logits.log_softmax(0)).sum() if soft else -logits.log_softmax(0)[q.argmax()])
    assert total > 0
    torch.testing.assert_close(losses["balanced_unlabeled"], 2 * total / 32)


def test_labeled_loss_is_balanced_in_expectation():
    method = ABC()
    step = prepared(method, batch=3000)
    losses = run(method, step)
    with torch.no_grad():
        each = F.cross_entropy(step.model.balanced(step.model(step.batch.x).features), step.batch.y, reduction="none")
    expected = (each * (10 / COUNTS)[step.batch.y]).mean()
    assert losses["balanced"].item() == pytest.approx(expected.item(), rel=0.1)
    assert losses["balanced"].item() < 0.9 * each.mean().item()


def test_the_losses_of_the_base_are_unchanged():
    base, method = FixMatch(threshold=0.4), ABC(FixMatch(threshold=0.4))
    step = make_step(method)
    plain = make_step(base)
    plain.model.load_state_dict(step.model.state_dict(), strict=False)
    plain.batch = step.batch
    losses, expected = run(method, step), run(base, plain)
    for name, term in expected.items():
        torch.testing.assert_close(losses[name], term)
    assert set(losses) == {*expected, "balanced", "balanced_unlabeled"}


def test_the_losses_of_the_balanced_head_reach_the_backbone_and_not_the_other_head():
    method = ABC(threshold=0.0)
    step = prepared(method, batch=16)
    losses = run(method, step)
    (losses["balanced"] + losses["balanced_unlabeled"]).backward()
    assert step.model.balanced.weight.grad.abs().sum() > 0
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in step.model.backbone.parameters())
    assert step.model.head.weight.grad is None


@pytest.mark.parametrize("wrap", [lambda method: method, DARP])
def test_the_averaged_balanced_head_predicts(wrap):
    method = wrap(ABC())
    model = make_model()
    method.setup(model, make_task())
    averaged = copy.deepcopy(model).eval()
    classifier = method.classifier(averaged)
    assert isinstance(classifier, Classifier)
    assert not any(module.training for module in classifier.modules())
    x = torch.randn(5, 6)
    outputs = averaged(x)
    torch.testing.assert_close(classifier(x).logits, averaged.balanced(outputs.features))
    assert not torch.allclose(classifier(x).logits, outputs.logits)
    assert classifier.state_dict().keys() == make_model().state_dict().keys()


def test_a_class_without_labels_is_not_subsampled():
    method = ABC()
    method.setup(make_model(), dataclasses.replace(make_task(), label_counts=torch.tensor([8, 0, 2])))
    assert method.keep_rates.tolist() == [0.25, 1, 1]

"""Heads by label folds: who sees which label, and the loss against one head at a time."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import Ridge

from vcc_infuse.calibrators.evidence.out_of_fold import RIDGE, THRESHOLD, FoldHeads
from vcc_infuse.types import identity_gather


def heads(classes=3, width=5, labeled=12, folds=2):
    made = FoldHeads(classes, width, labeled=labeled, folds=folds)
    torch.manual_seed(0)
    made.linear.weight.data.normal_()
    return made


def test_folds_take_turns_within_each_class_and_never_change():
    made = heads(folds=2)
    ids = torch.tensor([4, 0, 4, 1, 3, 6, 9, 2])
    made.assign(ids, ids % 3)
    assert [made.fold[i].item() for i in (0, 3, 6, 9)] == [0, 1, 0, 1]
    assert [made.fold[i].item() for i in (4, 1, 2)] == [0, 1, 0]
    before = made.fold.clone()
    made.assign(torch.arange(12), torch.arange(12) % 3)
    assert torch.equal(made.fold[ids], before[ids])
    assert made.counts.tolist() == [4, 4, 4]


def test_loss_is_that_of_each_head_without_its_fold():
    made, ids = heads(), torch.arange(8)
    y, labeled, weak, strong = ids % 3, torch.randn(8, 5), 3 * torch.randn(6, 5), torch.randn(6, 5)
    loss = made.loss(labeled, y, identity_gather, ids, weak, strong)
    expected = torch.zeros(())
    for fold, weight in enumerate(made.linear.weight.view(2, 3, 5)):
        shown = made.fold[ids] != fold
        expected = expected + 2 * F.cross_entropy(labeled[shown] @ weight.T, y[shown], reduction="sum") / 8
        confidence, label = (weak @ weight.T).softmax(1).max(1)
        trusted = confidence >= THRESHOLD
        assert 0 < trusted.sum() < 6
        expected = expected + F.cross_entropy(strong[trusted] @ weight.T, label[trusted], reduction="sum") / 6
    torch.testing.assert_close(loss, expected)


def test_no_gradient_comes_from_the_labels_of_the_own_fold():
    made, ids = heads(), torch.arange(6)
    features = torch.eye(6, 5)
    made.loss(features, ids % 3, identity_gather, ids, features[:0], features[:0]).backward()
    gradient = made.linear.weight.grad.view(2, 3, 5)
    for row in range(5):  # feature `row` belongs to image `row` alone
        own = made.fold[row]
        assert gradient[own, :, row].abs().max() == 0
        assert gradient[1 - own, :, row].abs().max() > 0


@pytest.mark.parametrize("labeled", [9, 40], ids=["fewer rows than features", "more rows than features"])
def test_heads_start_at_the_ridge_regression_of_their_labels_as_sharp_as_the_classifier(labeled):
    made = FoldHeads(3, 12, labeled=labeled, folds=2)
    torch.manual_seed(0)
    ids = torch.arange(labeled)
    y = ids % 3
    x = torch.randn(labeled, 12) + 3 * torch.eye(3, 12)[y]
    pool = torch.randn(20, 12)
    logits = 5 * torch.randn(20, 3)
    made.assign(ids, y)
    made.start(x, y, pool, logits, known=1.0)
    answers = made(pool).detach()
    for fold in range(2):
        shown = made.fold != fold
        rows = x[shown].double()
        strength = RIDGE * (rows - rows.mean(0)).square().sum(1).mean()
        oracle = Ridge(alpha=strength.item()).fit(rows.numpy(), F.one_hot(y[shown], 3).double().numpy())
        expected = torch.from_numpy(oracle.predict(pool.double().numpy())).float()
        centered = expected - expected.mean(1, keepdim=True)
        found = answers[:, fold] - answers[:, fold].mean(1, keepdim=True)
        size = (logits - logits.mean(1, keepdim=True)).square().mean().sqrt()
        torch.testing.assert_close(found, centered / centered.square().mean().sqrt() * size, atol=1e-3, rtol=1e-3)


def test_heads_stay_where_they_are_if_the_classifier_knows_less_than_they_would():
    made, ids = heads(width=3), torch.arange(12)
    before = made.linear.weight.clone()
    y = ids % 3
    made.assign(ids, y)
    made.start(torch.eye(3)[y], y, torch.eye(3), torch.eye(3), known=0.9)
    assert torch.equal(made.linear.weight, before)
    made.start(torch.eye(3)[y], y, torch.eye(3), torch.eye(3), known=1.0)
    assert not torch.equal(made.linear.weight, before)

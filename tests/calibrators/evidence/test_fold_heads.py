"""Heads by label folds: who sees which label, and the loss against one head at a time."""

import torch
import torch.nn.functional as F

from vcc_infuse.calibrators.evidence.out_of_fold import THRESHOLD, FoldHeads
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

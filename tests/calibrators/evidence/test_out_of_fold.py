"""Honest rows against a loop: each labeled image is judged by the heads that were not shown its label."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vcc_infuse.calibrators import Evidence
from vcc_infuse.calibrators.evidence.neighbors import FeatureMemory
from vcc_infuse.calibrators.evidence.out_of_fold import RECENT, FoldHeads, OutOfFoldRows
from vcc_infuse.calibrators.history import History
from vcc_infuse.models import Classifier
from vcc_infuse.types import Batch, Step, Task

POOL, LABELED, WIDTH, CLASSES, FOLDS = 30, 8, 6, 3, 2
SCORES = ("neighbors", "visits", "witness")
generator = torch.Generator().manual_seed(0)
X, Y = torch.randn(POOL, WIDTH, generator=generator), torch.arange(LABELED) % CLASSES


class Plain(nn.Module):
    """In place of ranks: evidence as it is."""

    def observe(self, probs):
        assert probs.shape == (FOLDS * POOL, 1 + len(SCORES))

    def forward(self, probs):
        return probs


def made():
    torch.manual_seed(1)
    heads, witness = (FoldHeads(CLASSES, WIDTH, labeled=LABELED, folds=FOLDS) for _ in range(2))
    for each in (heads, witness):
        nn.init.normal_(each.linear.weight)
    past = History(POOL + LABELED, FOLDS * CLASSES, window=2)
    memory = FeatureMemory(POOL, labeled=LABELED, width=WIDTH, code_size=WIDTH, neighbors=3)
    memory.write(torch.arange(POOL), X)
    memory.write(POOL + torch.arange(LABELED), X[:LABELED])
    memory.find_neighbors()
    return OutOfFoldRows(SCORES, heads, witness, past), memory


def step(number, shift=0.0, ids=None, pool_ids=None):
    ids = torch.arange(LABELED) if ids is None else ids
    pool_ids = torch.arange(POOL) if pool_ids is None else pool_ids
    batch = Batch(X[ids] + shift, Y[ids], ids, {"weak": X[pool_ids] + shift}, pool_ids, torch.ones(len(pool_ids)))
    return Step(batch, nn.Identity(), nn.Identity(), nn.Identity(), number, 10)


def observe(honest, memory, at):
    honest.loss(at, at.batch.x, at.batch.views["weak"][:0], at.batch.views["weak"][:0])
    honest.observe(at, memory, at.batch.views["weak"], at.batch.x)


def said_by(module, features, fold):
    return (features @ module.linear.weight.view(FOLDS, CLASSES, WIDTH)[fold].T).softmax(-1)


def earlier(honest, features, fold):
    """The mean of the two visits before the last."""
    return (said_by(honest.heads, features, fold) + said_by(honest.heads, features + 0.3, fold)) / 2


def test_evidence_is_that_of_the_head_and_the_witness_without_the_label():
    honest, memory = made()
    honest.ranks = Plain()
    for number, shift in enumerate((0.0, 0.3, -0.2)):
        observe(honest, memory, step(number, shift))
    evidence, labels, right, _ = honest.rows()
    for i in range(LABELED):
        fold, now = int(honest.heads.fold[i]), said_by(honest.heads, X[i] - 0.2, int(honest.heads.fold[i]))
        label = int(now.argmax())
        near = [earlier(honest, X[j], fold) for j in memory.nearest[POOL + i].tolist()]
        others = (torch.stack(near).mean(0), earlier(honest, X[i], fold), said_by(honest.witness, X[i] - 0.2, fold))
        expected = torch.stack([now[label], *(other[label] for other in others)])
        torch.testing.assert_close(evidence[i], expected, atol=1e-3, rtol=0)  # the past is in half precision
        assert labels[i] == label
        assert right[i] == (label == Y[i])


def test_only_recent_batches_count():
    honest, memory = made()
    observe(honest, memory, step(0))
    for number in range(1, RECENT):
        observe(honest, memory, step(number, ids=torch.arange(5)))
    assert len(honest.rows()[0]) == LABELED
    observe(honest, memory, step(RECENT, ids=torch.arange(5)))
    evidence, labels, right, _ = honest.rows()
    assert len(evidence) == len(labels) == len(right) == 5


def test_witness_learns_from_labels_alone():
    honest, _ = made()
    at, weak = step(0), 9 * X
    honest.heads.assign(at.batch.ids, at.batch.y)
    honest.loss(at, at.batch.x, weak, weak).backward()
    gradient = honest.witness.linear.weight.grad.view(FOLDS, CLASSES, WIDTH)
    for fold, weight in enumerate(honest.witness.linear.weight.detach().view(FOLDS, CLASSES, WIDTH)):
        own = weight.clone().requires_grad_()
        shown = honest.heads.fold != fold
        (2 * F.cross_entropy(X[:LABELED][shown] @ own.T, Y[shown], reduction="sum") / LABELED).backward()
        torch.testing.assert_close(gradient[fold], own.grad)
    assert torch.equal(honest.witness.fold, honest.heads.fold)


@pytest.mark.parametrize("scores", [(), ("visits",), ("witness", "neighbors"), SCORES], ids=str)
def test_support_has_a_column_for_each_score(scores):
    evidence = Evidence(scores=scores, every=1)
    model = Classifier(nn.Identity(), nn.Linear(WIDTH, CLASSES))
    counts = torch.tensor([3, 3, 2])
    evidence.setup(model, Task(CLASSES, LABELED, POOL, counts, 10, LABELED, POOL))
    evidence.train()
    for number in range(3):
        at = step(number, 0.1 * number)
        outputs = model(at.batch.views["weak"])
        probs, features = outputs.logits.detach().softmax(1), outputs.features.detach()
        support, labels = evidence.support(at, probs, features), probs.argmax(1)
        evidence(Step(at.batch, model, model, evidence, number, 10), at.batch.views["weak"], outputs)
    assert support.shape == (POOL, 1 + len(scores))
    torch.testing.assert_close(support[:, 0], probs.amax(1))
    rows = torch.arange(POOL)
    if "visits" in scores:
        earlier = (model(X).logits.softmax(1) + model(X + 0.1).logits.softmax(1))[rows, labels] / 2
        torch.testing.assert_close(support[:, 1 + scores.index("visits")], earlier.detach(), atol=1e-3, rtol=0)
    if "witness" in scores:
        heads = evidence.out_of_fold.witness.linear
        assert heads.weight.abs().max() == 0  # nothing was learned yet: all classes are equally likely
        torch.testing.assert_close(support[:, 1 + scores.index("witness")], torch.full((POOL,), 1 / CLASSES))
    assert evidence.eval().predict(outputs).shape == (POOL,)

"""What a scan computes, that it changes no state, and that the number of processes does not matter."""

import copy
import random
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vcc_infuse.algorithms import Algorithm, FixMatch, FlexMatch, PseudoLabel
from vcc_infuse.calibrators import Softmax
from vcc_infuse.selectors import INFUSE, GradMatch
from vcc_infuse.selectors.base import example_columns
from vcc_infuse.types import PseudoLabels

# The defaults of every selector are covered by tests/integration/test_every_*.py.
VARIANTS = {
    "INFUSE": INFUSE,
    "all": partial(INFUSE, params="all"),
    "batch": partial(GradMatch, granularity="batch"),
    "curvature": partial(INFUSE, curvature="gauss_newton", score_with="ema"),
}
variants = pytest.mark.parametrize("make", VARIANTS.values(), ids=VARIANTS.keys())


def columns(chunk):
    return {
        "errors": chunk.errors,
        "features": chunk.outputs.features,
        "targets": chunk.targets,
        **example_columns(chunk),
    }


def everything(pool, optimizer):
    modules = (pool.model, pool.ema, pool.algorithm, pool.calibrator)
    tensors = [v.clone() for m in modules for v in m.state_dict().values()]
    tensors += [v.clone() for s in optimizer.state_dict()["state"].values() for v in s.values()]
    flags = [part.training for m in modules for part in m.modules()]
    gradients = [None if p.grad is None else p.grad.clone() for p in pool.model.parameters()]
    return tensors + gradients, flags, (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())


def same(before, after):
    for a, b in zip(before[0], after[0], strict=True):
        assert (a is None and b is None) or torch.equal(a, b)
    assert before[1] == after[1]
    assert torch.equal(before[2][0], after[2][0])
    assert (before[2][1] == after[2][1]).all()
    assert before[2][2] == after[2][2]


class Counting(Softmax):
    """A calibrator that counts the examples it sees in training mode, and draws from every random generator."""

    def setup(self, model, task):
        self.register_buffer("seen", torch.zeros(task.pool))

    def forward(self, step, images, outputs):
        torch.rand(3), np.random.rand(3), random.random()
        if self.training:
            self.seen[step.batch.pool_ids] += 1
        return super().forward(step, images, outputs)


class Doubling(Softmax):
    """A calibrator for which every third label counts twice."""

    def forward(self, step, images, outputs):
        return super().forward(step, images, outputs)._replace(weights=1.0 + (step.batch.pool_ids % 3 == 0))


def test_gradients_count_as_the_calibrator_weighs_labels(make_pool):
    plain, weighed = (make_pool(FixMatch(threshold=0.3), kind()).scan(columns) for kind in (Softmax, Doubling))
    factor = 1.0 + (torch.arange(len(plain["weight"])) % 3 == 0)
    assert plain["weight"].any()
    torch.testing.assert_close(weighed["weight"], factor * plain["weight"])
    torch.testing.assert_close(weighed["errors"], factor[:, None] * plain["errors"])


@variants
def test_a_selection_changes_no_state_and_is_repeatable(make, make_pool):
    pool = make_pool(FlexMatch(threshold=0.6), Counting())
    pool.model.backbone.stages[1].eval()  # a mode that differs from its parent's
    optimizer = torch.optim.SGD(pool.model.parameters(), lr=0.1, momentum=0.9)
    x = torch.rand(4, 1, 8, 8)
    F.cross_entropy(pool.model(x).logits, torch.arange(4)).backward()
    optimizer.step()
    torch.manual_seed(5)
    before = everything(pool, optimizer)
    first = make(keep=0.3).select(pool, 90)
    same(before, everything(pool, optimizer))
    torch.manual_seed(6)  # the caller's random state must not matter
    again = make(keep=0.3).select(pool, 90)
    assert torch.equal(first.ids, again.ids)
    assert torch.equal(first.weights, again.weights)


def test_modes_and_random_states_are_restored_after_an_exception(make_pool):
    class Broken(FixMatch):
        def pseudo_label(self, calibrated, step):
            raise RuntimeError("broken")

    pool = make_pool(Broken())
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="broken"):
        INFUSE(keep=0.3).select(pool, 10)
    assert pool.model.training
    assert pool.algorithm.training
    assert torch.equal(state, torch.get_rng_state())


def test_scan_sees_each_example_once_as_the_algorithm_would(make_pool, eval_mode, data):
    pool = eval_mode(make_pool())
    found = pool.scan(columns)
    assert all(len(column) == pool.size for column in found.values())
    # Threshold and labels, recomputed from the weak view of one chunk drawn with the same seed.
    recorded = []
    pool.scan(lambda chunk: recorded.append(chunk) or example_columns(chunk))
    assert sorted(torch.cat([chunk.ids for chunk in recorded]).tolist()) == list(range(pool.size))
    for chunk in recorded:
        with torch.no_grad():
            outputs = pool.model(chunk.images)
        used = found["weight"][chunk.ids] > 0
        assert 0 < used.sum() < len(used)
        torch.testing.assert_close(found["features"][chunk.ids][used], outputs.features[used])
        assert (found["errors"][chunk.ids][~used] == 0).all()
        d = outputs.logits.softmax(1) - F.one_hot(found["label"][chunk.ids], 10)
        torch.testing.assert_close(found["errors"][chunk.ids][used], d[used])
    assert torch.equal(found["weight"] > 0, found["confidence"] >= 0.6)


def test_views_differ_between_steps_but_not_within_one(make_pool, eval_mode):
    model_a, model_b = (eval_mode(make_pool(number=n)) for n in (3, 4))
    a, again, b = (pool.scan(columns)["confidence"] for pool in (model_a, model_a, model_b))
    assert torch.equal(a, again)
    assert not torch.equal(a, b)


def test_labeled_views_are_repeatable(make_pool, eval_mode, data):
    pool = eval_mode(make_pool())
    first, second = ([(i, x, y) for i, x, y in pool.labeled_chunks()] for _ in range(2))
    assert all(torch.equal(a[1], b[1]) for a, b in zip(first, second, strict=True))
    outputs, y = pool.labeled_features()
    assert y.tolist() == data.labeled_y.tolist()
    torch.testing.assert_close(outputs.logits, pool.model.head(outputs.features))


def test_several_labeled_views_differ_and_keep_their_labels(make_pool, eval_mode, data):
    pool = eval_mode(make_pool())
    rows, x, y = zip(*pool.labeled_chunks(3), strict=True)
    assert np.concatenate(rows).tolist() == list(range(3 * pool.task.labeled))
    assert torch.cat(y).tolist() == 3 * data.labeled_y.tolist()
    first, second, third = torch.cat(x).chunk(3)
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)
    assert pool.labeled_features(3)[1].tolist() == 3 * data.labeled_y.tolist()


def test_one_view_methods_use_the_weak_view_and_methods_without_pseudo_labels_use_all_examples(make_pool, eval_mode):
    pool = eval_mode(make_pool(PseudoLabel(threshold=0.6)))
    found = pool.scan(lambda c: {"own": (c.outputs.logits.argmax(1) == c.labels), **example_columns(c)})
    assert found["own"].all()

    class Plain(Algorithm):
        views = ("weak", "weak_2")

    found = eval_mode(make_pool(Plain())).scan(columns)
    assert (found["weight"] == 1).all()
    assert (found["targets"].sum(1) == 1).all()


def test_soft_targets_and_weights_reach_the_errors(make_pool, eval_mode):
    class Soft(FixMatch):
        def pseudo_label(self, calibrated, step):
            return PseudoLabels(calibrated.probs**2 / (calibrated.probs**2).sum(1, keepdim=True), calibrated.confidence)

    pool = eval_mode(make_pool(Soft()))
    seen = []
    pool.scan(lambda chunk: seen.append(chunk) or example_columns(chunk))
    with torch.no_grad():
        outputs = pool.model(seen[0].images)
    leaf = outputs.logits.clone().requires_grad_()
    loss = F.cross_entropy(leaf, seen[0].targets, reduction="none") * seen[0].weights
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), leaf)[0], seen[0].errors)


@pytest.mark.parametrize("world", [2, 3])
@variants
def test_several_processes_select_what_one_selects(make, world, make_pool):
    expected = make(keep=0.3).select(make_pool(), 90)

    def partial(rank):
        """What one process sends: its own rows of every column."""
        sent = []

        def record(tensor):
            sent.append(tensor.clone())
            return tensor

        pool = make_pool(rank=rank, world=world, gather=record)
        make(keep=0.3).select(pool, 90)
        return sent

    others = [partial(rank) for rank in range(1, world)]
    calls = iter(range(100))

    def gather(tensor):
        call = next(calls)
        return torch.cat([tensor, *(sent[call] for sent in others)])

    found = make(keep=0.3).select(make_pool(rank=0, world=world, gather=gather), 90)
    assert torch.equal(found.ids, expected.ids)
    assert torch.equal(found.weights, expected.weights)


def test_more_processes_than_chunks(make_pool, eval_mode):
    sent = []
    pool = eval_mode(make_pool(rank=4, world=5, gather=lambda t: sent.append(t) or t))
    pool.scan(columns)
    assert len(sent) == 6  # it takes part in every gather
    assert all((tensor == 0).all() for tensor in sent)


def test_a_scan_stores_only_what_the_reduction_returns(make_pool, eval_mode):
    found = eval_mode(make_pool()).scan(lambda chunk: {"score": chunk.errors.norm(dim=1)})
    assert {name: tuple(column.shape) for name, column in found.items()} == {"score": (300,)}


def test_scoring_with_the_averaged_weights(make_pool):
    pool = make_pool()
    with torch.no_grad():
        pool.ema.head.weight.add_(torch.randn_like(pool.ema.head.weight))
    online, ema = (INFUSE(keep=0.3, score_with=w) for w in ("online", "ema"))
    online.select(pool, 90), ema.select(pool, 90)
    assert not np.allclose(online.selection_.rows.scores, ema.selection_.rows.scores)
    swapped = make_pool(model=copy.deepcopy(pool.ema))
    again = INFUSE(keep=0.3)
    again.select(swapped, 90)
    np.testing.assert_array_equal(again.selection_.rows.scores, ema.selection_.rows.scores)


def test_a_scan_makes_the_strong_view_of_selected_examples_only(make_pool, eval_mode, monkeypatch):
    """They look as if the whole view had been made."""
    pool = eval_mode(make_pool())
    whole = {}
    made = []
    strong_later = type(pool.batches.views).strong_later

    def watched(self, raw):
        make = strong_later(self, raw)

        def rows_made(rows):
            made.append(len(rows))
            whole[len(made)] = make(slice(None))[rows]
            return make(rows)

        return rows_made

    monkeypatch.setattr(type(pool.batches.views), "strong_later", watched)
    chunks = []
    columns = pool.scan(lambda chunk: chunks.append(chunk) or {"weight": chunk.weights})
    assert 0 < sum(made) == int((columns["weight"] > 0).sum()) < pool.size
    for chunk, expected in zip(chunks, whole.values(), strict=True):
        assert torch.equal(chunk.images[chunk.weights > 0], expected)
        assert (chunk.images[chunk.weights == 0] == 0).all()


def test_views_that_nobody_reads_are_not_made(make_pool, eval_mode, monkeypatch):
    pool = eval_mode(make_pool())
    names = []
    call = type(pool.batches.views).__call__
    monkeypatch.setattr(
        type(pool.batches.views), "__call__", lambda self, name, raw: names.append(name) or call(self, name, raw)
    )
    views = pool.views(np.arange(5), ("weak", "strong", "weak_2"))
    assert names == ["weak"]
    assert views["weak_2"].shape == views["weak"].shape == views["strong"].shape
    assert names == ["weak", "weak_2"]

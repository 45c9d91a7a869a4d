"""What the scan sees, that it leaves no trace, and that the number of processes does not matter."""

import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vcc_infuse import algorithms
from vcc_infuse.algorithms import Algorithm, FixMatch
from vcc_infuse.algorithms.flexmatch import FlexMatch
from vcc_infuse.algorithms.pseudo_label import PseudoLabel
from vcc_infuse.calibrators import Softmax
from vcc_infuse.selectors import EL2N, INFUSE, RETRIEVE, GradMatch, Random, RandomOnline
from vcc_infuse.selectors.scoring import example_columns
from vcc_infuse.types import PseudoLabels

ALL = [INFUSE, lambda k: INFUSE(k, params="all"), lambda k: INFUSE(k, curvature="gauss_newton", weights="ema"),
       RETRIEVE, GradMatch, lambda k: GradMatch(k, granularity="batch"), EL2N, Random, RandomOnline]  # fmt: skip


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


class Greedy(Softmax):
    """A calibrator that notes every example it sees while training, and draws from every generator."""

    def setup(self, model, task):
        self.register_buffer("seen", torch.zeros(task.pool))

    def forward(self, step, images, outputs):
        torch.rand(3), np.random.rand(3), random.random()
        if self.training:
            self.seen[step.batch.pool_ids] += 1
        return super().forward(step, images, outputs)


@pytest.mark.parametrize("make", ALL)
def test_selection_leaves_no_trace_and_is_the_same_again(make, make_pool):
    pool = make_pool(FlexMatch(threshold=0.6), Greedy())
    pool.model.backbone.stages[1].eval()  # a flag that differs from its parent's
    optimizer = torch.optim.SGD(pool.model.parameters(), lr=0.1, momentum=0.9)
    x = torch.rand(4, 1, 8, 8)
    F.cross_entropy(pool.model(x).logits, torch.arange(4)).backward()
    optimizer.step()
    torch.manual_seed(5)
    before = everything(pool, optimizer)
    first = make(0.3).select(pool, 90)
    same(before, everything(pool, optimizer))
    torch.manual_seed(6)  # the caller's random state must not matter
    again = make(0.3).select(pool, 90)
    assert torch.equal(first.ids, again.ids)
    assert torch.equal(first.weights, again.weights)


def test_flags_and_generators_return_after_a_fault(make_pool):
    class Broken(FixMatch):
        def pseudo_label(self, calibrated, step):
            raise RuntimeError("broken")

    pool = make_pool(Broken())
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="broken"):
        INFUSE(0.3).select(pool, 10)
    assert pool.model.training
    assert pool.algorithm.training
    assert torch.equal(state, torch.get_rng_state())


def test_scan_sees_each_example_once_as_the_algorithm_would(make_pool, quiet, data):
    pool = quiet(make_pool())
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


def test_draws_differ_between_steps_but_not_within(make_pool, quiet):
    model_a, model_b = (quiet(make_pool(number=n)) for n in (3, 4))
    a, again, b = (pool.scan(columns)["confidence"] for pool in (model_a, model_a, model_b))
    assert torch.equal(a, again)
    assert not torch.equal(a, b)


def test_labeled_views_come_again(make_pool, quiet, data):
    pool = quiet(make_pool())
    first, second = ([(i, x, y) for i, x, y in pool.labeled_chunks()] for _ in range(2))
    assert all(torch.equal(a[1], b[1]) for a, b in zip(first, second, strict=True))
    outputs, y = pool.labeled_features()
    assert y.tolist() == data.labeled_y.tolist()
    torch.testing.assert_close(outputs.logits, pool.model.head(outputs.features))


def test_several_labeled_views_differ_and_keep_their_labels(make_pool, quiet, data):
    pool = quiet(make_pool())
    rows, x, y = zip(*pool.labeled_chunks(3), strict=True)
    assert np.concatenate(rows).tolist() == list(range(3 * pool.task.labeled))
    assert torch.cat(y).tolist() == 3 * data.labeled_y.tolist()
    first, second, third = torch.cat(x).chunk(3)
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)
    assert pool.labeled_features(3)[1].tolist() == 3 * data.labeled_y.tolist()


def test_one_view_methods_learn_from_the_weak_view_and_plain_methods_from_all(make_pool, quiet):
    pool = quiet(make_pool(PseudoLabel(threshold=0.6)))
    found = pool.scan(lambda c: {"own": (c.outputs.logits.argmax(1) == c.labels), **example_columns(c)})
    assert found["own"].all()

    class Plain(Algorithm):
        views = ("weak", "weak_2")

    found = quiet(make_pool(Plain())).scan(columns)
    assert (found["weight"] == 1).all()
    assert (found["targets"].sum(1) == 1).all()


def test_soft_targets_and_weights_reach_the_errors(make_pool, quiet):
    class Soft(FixMatch):
        def pseudo_label(self, calibrated, step):
            return PseudoLabels(calibrated.probs**2 / (calibrated.probs**2).sum(1, keepdim=True), calibrated.confidence)

    pool = quiet(make_pool(Soft()))
    seen = []
    pool.scan(lambda chunk: seen.append(chunk) or example_columns(chunk))
    with torch.no_grad():
        outputs = pool.model(seen[0].images)
    leaf = outputs.logits.clone().requires_grad_()
    loss = F.cross_entropy(leaf, seen[0].targets, reduction="none") * seen[0].weights
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), leaf)[0], seen[0].errors)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("make", ALL[:7])
def test_several_processes_select_what_one_selects(make, world, make_pool):
    alone = make(0.3).select(make_pool(), 90)

    def partial(rank):
        """What one process would send: its own rows of every column, taken before anything is joined."""
        sent = []

        def note(tensor):
            sent.append(tensor.clone())
            return tensor

        pool = make_pool(rank=rank, world=world, gather=note)
        make(0.3).select(pool, 90)
        return sent

    others = [partial(rank) for rank in range(1, world)]
    calls = iter(range(100))

    def gather(tensor):
        call = next(calls)
        return torch.cat([tensor, *(sent[call] for sent in others)])

    found = make(0.3).select(make_pool(rank=0, world=world, gather=gather), 90)
    assert torch.equal(found.ids, alone.ids)
    assert torch.equal(found.weights, alone.weights)


def test_more_processes_than_chunks(make_pool, quiet):
    sent = []
    pool = quiet(make_pool(rank=4, world=5, gather=lambda t: sent.append(t) or t))
    pool.scan(columns)
    assert len(sent) == 6  # it takes part in every exchange
    assert all((tensor == 0).all() for tensor in sent)


def test_scan_keeps_only_what_the_reduction_returns(make_pool, quiet):
    found = quiet(make_pool()).scan(lambda chunk: {"score": chunk.errors.norm(dim=1)})
    assert {name: tuple(column.shape) for name, column in found.items()} == {"score": (300,)}


def test_ema_weights_are_used_on_request(make_pool):
    pool = make_pool()
    with torch.no_grad():
        pool.ema.head.weight.add_(torch.randn_like(pool.ema.head.weight))
    online, ema = (INFUSE(0.3, weights=w) for w in ("online", "ema"))
    online.select(pool, 90), ema.select(pool, 90)
    assert not np.allclose(online.selection_.rows.scores, ema.selection_.rows.scores)
    swapped = make_pool(model=copy.deepcopy(pool.ema))
    again = INFUSE(0.3)
    again.select(swapped, 90)
    np.testing.assert_array_equal(again.selection_.rows.scores, ema.selection_.rows.scores)


BASES = (algorithms.Algorithm, algorithms.PseudoLabeling)
METHODS = [k for k in vars(algorithms).values() if isinstance(k, type) and issubclass(k, Algorithm) and k.views]


@pytest.mark.parametrize("kind", [k for k in METHODS if k not in BASES])
def test_every_algorithm_can_be_scanned_without_a_trace(kind, make_pool):
    pool = make_pool(kind())
    before = [v.clone() for v in pool.algorithm.state_dict().values()]
    core = INFUSE(0.2).select(pool, 60)
    assert len(core.ids.unique()) == 60
    assert all(torch.equal(a, b) for a, b in zip(before, pool.algorithm.state_dict().values(), strict=True))
    assert pool.algorithm.training

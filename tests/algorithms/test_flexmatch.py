import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.tiny import buffers, judged, make_step, missing_gradients, part_of, run, same, two_processes
from vcc_infuse.algorithms.flexmatch import FlexMatch
from vcc_infuse.errors import UserError
from vcc_infuse.types import Calibrated

CLASSES, POOL = 3, 9


def sure(label, confidence=0.97):
    """Probabilities with the given label and confidence."""
    rest = (1 - confidence) / (CLASSES - 1)
    return [confidence if c == label else rest for c in range(CLASSES)]


def recount(method):
    """What the counts should be, the slow way."""
    selected = method.selected.tolist()
    return [selected.count(c) for c in range(CLASSES)] + [selected.count(-1)]


rows = st.tuples(st.integers(0, POOL - 1), st.integers(0, 2), st.sampled_from([0.5, 0.96]))
events = st.lists(st.lists(rows, min_size=1, max_size=12), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(events, st.sampled_from(["convex", "linear", "concave"]), st.booleans())
def test_thresholds_and_counts_follow_a_slow_loop(batches, mapping, warmup):
    method = FlexMatch(mapping=mapping, thresh_warmup=warmup)
    step = make_step(method, pool=POOL)
    chosen = [-1] * POOL
    for rows in batches:
        counts = [chosen.count(c) for c in range(CLASSES)]
        top = max(*counts, chosen.count(-1)) if warmup else max(counts)
        weights = []
        for _, label, confidence in rows:
            beta = counts[label] / top if top else 0.0
            share = {"convex": beta / (2 - beta), "linear": beta, "concave": math.log(1 + beta) / math.log(2)}[mapping]
            weights.append(float(confidence >= 0.95 * share))
        for i, label, confidence in rows:
            chosen[i] = label if confidence >= 0.95 else chosen[i]
        ids = torch.tensor([i for i, _, _ in rows])
        pseudo = judged(method, step, torch.tensor([sure(label, conf) for _, label, conf in rows]), ids)
        assert pseudo.weights.tolist() == weights
        assert pseudo.targets.tolist() == [label for _, label, _ in rows]
        assert method.selected.tolist() == chosen
        assert method.counts.tolist() == recount(method)
        assert ((method.thresholds() >= 0) & (method.thresholds() <= 0.95 + 1e-6)).all()


def test_convex_threshold_by_hand():
    method = FlexMatch()
    step = make_step(method, pool=6)
    assert judged(method, step, torch.tensor([sure(0, 0.4), sure(1, 0.4)])).weights.tolist() == [1, 1]
    ids = torch.tensor([0, 1, 2, 3])
    judged(method, step, torch.tensor([sure(0), sure(0), sure(0), sure(1)]), ids)
    # 3 of class 0, 1 of class 1, 2 never sure: β = 1, 1/3, 0.
    torch.testing.assert_close(method.thresholds(), 0.95 * torch.tensor([1.0, (1 / 3) / (5 / 3), 0.0]))


def test_the_fixed_threshold_decides_what_is_remembered():
    method = FlexMatch()
    step = make_step(method, pool=6)
    pseudo = judged(method, step, torch.tensor([sure(0, 0.9)]))
    assert pseudo.weights.tolist() == [1]  # selected, for the threshold is still zero …
    assert method.selected.tolist() == [-1] * 6  # … yet not confident


def test_confidence_of_the_calibrator_is_judged():
    method = FlexMatch()
    step = make_step(method, pool=8, batch=1, ratio=2)
    method.pseudo_label(Calibrated(torch.tensor([sure(0), sure(1)]), torch.tensor([0.2, 0.99])), step)
    assert method.counts.tolist() == [0, 1, 0, 7]


def test_permuting_the_batch_permutes_the_weights():
    torch.manual_seed(0)
    probs, order = torch.rand(8, 3).softmax(1), torch.randperm(8)
    results = []
    for rows in (torch.arange(8), order):
        method = FlexMatch(thresh_warmup=False)
        step = make_step(method)
        judged(method, step, torch.tensor([sure(0), sure(0), sure(1)]))
        results.append((judged(method, step, probs[rows], rows + 5).weights, buffers(method)))
    assert torch.equal(results[0][0][order], results[1][0])
    assert same(results[0][1], results[1][1])


def test_a_core_set_counts_only_its_own():
    method = FlexMatch()
    step = make_step(method, pool=6)
    judged(method, step, torch.tensor([sure(0), sure(0), sure(1)]))
    method.restrict(torch.tensor([1, 2, 3]))
    assert method.counts.tolist() == [1, 1, 0, 1]
    judged(method, step, torch.tensor([sure(2)]), torch.tensor([3]))
    assert method.counts.tolist() == [1, 1, 1, 0]
    torch.testing.assert_close(method.thresholds(), torch.full((3,), 0.95))


def test_eval_mode_changes_no_buffer():
    method = FlexMatch()
    step = make_step(method)
    method.eval()
    before = buffers(method)
    judged(method, step, torch.tensor([sure(0), sure(1)]))
    assert same(before, buffers(method))


def test_two_processes_share_selected():
    """A version that notes only its own rows ends with different thresholds on each process."""
    ids, labels = [0, 1, 2, 2, 3, 0], [0, 1, 2, 0, 1, 2]
    probs = torch.tensor([sure(label) for label in labels])

    def fresh():
        method = FlexMatch()
        return method, make_step(method)

    alone, step = fresh()
    judged(alone, step, probs, torch.tensor(ids))
    assert alone.selected[:4].tolist() == [2, 1, 0, 1]
    parts = [fresh() for _ in range(2)]

    def work(rank, gather):
        method, step = parts[rank]
        mine = part_of(step, rank, gather)
        judged(method, mine, probs[rank::2], torch.tensor(ids)[rank::2])
        return buffers(method)

    for state in two_processes(work):
        assert same(state, buffers(alone))


def test_a_step_costs_the_batch_and_not_the_pool():
    """Counts are updated, not recounted: corrupt entries outside the batch are never looked at."""
    method = FlexMatch()
    step = make_step(method, pool=20)
    method.selected[10:] = 2  # behind the back of the counts
    judged(method, step, torch.tensor([sure(0)]), torch.tensor([3]))
    assert method.counts.tolist() == [1, 0, 0, 19]


def test_state_round_trip_and_gradients():
    one, other = FlexMatch(), FlexMatch()
    step = make_step(one)
    make_step(other)
    judged(one, step, torch.tensor([sure(0), sure(1)]))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.thresholds(), other.thresholds())
    step = make_step(one)
    assert missing_gradients(run(one, step), step.model, one) == []


@pytest.mark.parametrize("wrong", [{"mapping": "cubic"}, {"threshold": 1.5}, {"weight": -1}])
def test_wrong_options_are_named(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        FlexMatch(**wrong)

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.tiny import make_step, pseudo_labels
from vcc_infuse.algorithms.flexmatch import FlexMatch
from vcc_infuse.types import Calibrated

CLASSES, POOL = 3, 9


def sure(label, confidence=0.97):
    """Probabilities with the given label and confidence."""
    rest = (1 - confidence) / (CLASSES - 1)
    return [confidence if c == label else rest for c in range(CLASSES)]


def recount(method):
    """The expected counts, by a slow loop."""
    selected = method.selected.tolist()
    return [selected.count(c) for c in range(CLASSES)] + [selected.count(-1)]


rows = st.tuples(st.integers(0, POOL - 1), st.integers(0, 2), st.sampled_from([0.5, 0.96]))
events = st.lists(st.lists(rows, min_size=1, max_size=12), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(events, st.sampled_from(["convex", "linear", "concave", "low_limit"]), st.booleans())
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
            share = {"convex": beta / (2 - beta), "linear": beta, "concave": math.log(1 + beta) / math.log(2),
                     "low_limit": 1 / (2 - beta)}  # fmt: skip
            weights.append(float(confidence >= 0.95 * share[mapping]))
        for i, label, confidence in rows:
            chosen[i] = label if confidence >= 0.95 else chosen[i]
        ids = torch.tensor([i for i, _, _ in rows])
        pseudo = pseudo_labels(method, step, torch.tensor([sure(label, conf) for _, label, conf in rows]), ids)
        assert pseudo.weights.tolist() == weights
        assert pseudo.targets.tolist() == [label for _, label, _ in rows]
        assert method.selected.tolist() == chosen
        assert method.counts.tolist() == recount(method)
        assert ((method.class_thresholds() >= 0) & (method.class_thresholds() <= 0.95 + 1e-6)).all()


def test_convex_threshold_by_hand():
    method = FlexMatch()
    step = make_step(method, pool=6)
    assert pseudo_labels(method, step, torch.tensor([sure(0, 0.4), sure(1, 0.4)])).weights.tolist() == [1, 1]
    ids = torch.tensor([0, 1, 2, 3])
    pseudo_labels(method, step, torch.tensor([sure(0), sure(0), sure(0), sure(1)]), ids)
    # 3 of class 0, 1 of class 1, 2 never confident: β = 1, 1/3, 0.
    torch.testing.assert_close(method.class_thresholds(), 0.95 * torch.tensor([1.0, (1 / 3) / (5 / 3), 0.0]))


def test_a_low_limit_rejects_unsure_labels_from_the_start():
    method = FlexMatch(mapping="low_limit")
    step = make_step(method, pool=6)
    assert pseudo_labels(method, step, torch.tensor([sure(0, 0.47), sure(1, 0.48)])).weights.tolist() == [0, 1]
    pseudo_labels(method, step, torch.tensor([sure(0), sure(0), sure(0), sure(1)]), torch.tensor([0, 1, 2, 3]))
    torch.testing.assert_close(method.class_thresholds(), 0.95 * torch.tensor([1.0, 1 / (2 - 1 / 3), 0.5]))


def test_only_labels_above_the_fixed_threshold_are_recorded():
    method = FlexMatch()
    step = make_step(method, pool=6)
    pseudo = pseudo_labels(method, step, torch.tensor([sure(0, 0.9)]))
    assert pseudo.weights.tolist() == [1]  # kept, because the class threshold is still zero …
    assert method.selected.tolist() == [-1] * 6  # … but not recorded as confident


def test_the_confidence_of_the_calibrator_is_used():
    method = FlexMatch()
    step = make_step(method, pool=8, batch=1, ratio=2)
    method.pseudo_label(Calibrated(torch.tensor([sure(0), sure(1)]), torch.tensor([0.2, 0.99])), step)
    assert method.counts.tolist() == [0, 1, 0, 7]


def test_counts_are_restricted_to_the_core_set():
    method = FlexMatch()
    step = make_step(method, pool=6)
    pseudo_labels(method, step, torch.tensor([sure(0), sure(0), sure(1)]))
    method.on_coreset_change(torch.tensor([1, 2, 3]))
    assert method.counts.tolist() == [1, 1, 0, 1]
    pseudo_labels(method, step, torch.tensor([sure(2)]), torch.tensor([3]))
    assert method.counts.tolist() == [1, 1, 1, 0]
    torch.testing.assert_close(method.class_thresholds(), torch.full((3,), 0.95))


def test_a_step_costs_the_batch_and_not_the_pool():
    """Counts are updated, not recounted: corrupt entries outside the batch are never looked at."""
    method = FlexMatch()
    step = make_step(method, pool=20)
    method.selected[10:] = 2  # the counts are not updated
    pseudo_labels(method, step, torch.tensor([sure(0)]), torch.tensor([3]))
    assert method.counts.tolist() == [1, 0, 0, 19]

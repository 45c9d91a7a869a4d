import pytest
import torch
from tests.helpers.tiny import buffers, judged, make_model, make_step, make_task, random_probs, same

from vcc_infuse.errors import UserError
from vcc_infuse.imbalance import DARP
from vcc_infuse.imbalance.darp import pruned, transport
from vcc_infuse.types import Calibrated

POOL = 12


def visited(method, number, **options):
    """A step at which the whole pool has just been seen, and its probabilities."""
    step = make_step(method, pool=POOL, number=number, **options)
    probs = random_probs(POOL)
    return step, probs, judged(method, step, probs)


def test_before_the_start_the_base_goes_alone():
    method = DARP(start=0.5)
    _, probs, pseudo = visited(method, number=40)
    assert torch.equal(pseudo.targets, probs.argmax(1))
    assert torch.equal(method.probs, probs)
    assert not method.refined.any()


def test_labels_are_those_of_the_refined_pool_and_the_mask_is_the_bases():
    method = DARP(start=0.5, shares=[6, 3, 1])
    _, probs, pseudo = visited(method, number=60)
    totals = POOL * torch.tensor([0.6, 0.3, 0.1])
    expected = transport(pruned(probs, totals, 2.0), totals)
    torch.testing.assert_close(method.refined, expected)
    assert torch.equal(pseudo.targets, expected.argmax(1))
    assert (pseudo.targets != probs.argmax(1)).any(), "the case must change a label"
    assert torch.equal(pseudo.weights, (probs.amax(1) >= 0.95).float())
    torch.testing.assert_close(method.refined.sum(0), totals, rtol=0, atol=1e-4)


def test_expected_shares_are_those_of_the_labels():
    method = DARP()
    make_step(method, labeled=7)
    torch.testing.assert_close(method.expected, torch.tensor([3, 2, 2]) / 7)


def test_between_refinements_the_last_one_serves_and_newcomers_keep_their_own():
    method = DARP(start=0.5, every=10)
    step = make_step(method, pool=POOL, number=60)
    judged(method, step, random_probs(POOL - 1))
    kept, step.number = method.refined.clone(), 61
    probs = random_probs(POOL)
    calibrated = Calibrated(probs, probs.amax(1))
    step.batch = step.batch._replace(pool_ids=torch.arange(POOL))
    corrected = method.correct(calibrated, step)
    assert torch.equal(corrected.probs[:-1], kept[:-1])
    assert torch.equal(corrected.probs[-1], probs[-1])
    assert torch.equal(method.probs, probs)  # yet the latest probabilities are last_occurrence


def test_of_an_id_that_comes_twice_the_last_counts():
    method = DARP()
    step = make_step(method, pool=POOL)
    probs = random_probs(3)
    judged(method, step, probs, torch.tensor([4, 2, 4]))
    assert torch.equal(method.probs[4], probs[2])
    assert method.seen.nonzero().flatten().tolist() == [2, 4]


def test_a_core_set_is_refined_for_itself():
    method = DARP(start=0.0)
    visited(method, number=60)
    chosen = torch.tensor([1, 4, 7, 8])
    method.restrict(chosen)
    method._refine()
    assert method.refined.sum(1).nonzero().flatten().tolist() == chosen.tolist()
    torch.testing.assert_close(method.refined.sum(0), 4 * method.expected, rtol=0, atol=1e-4)


def test_eval_mode_reads_but_does_not_refine():
    method = DARP(start=0.5)
    step, _, pseudo = visited(method, number=60)
    before = buffers(method.eval())
    again = judged(method, step, random_probs(POOL))
    assert same(before, buffers(method))
    assert torch.equal(again.targets, pseudo.targets)


def test_shares_of_another_number_of_classes_are_refused():
    with pytest.raises(UserError, match="shares has 2 numbers for 3 classes"):
        DARP(shares=[1, 1]).setup(make_model(), make_task())

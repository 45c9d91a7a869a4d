import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from tests.helpers.tiny import buffers, make_model, make_step, make_task, pseudo_labels, random_probs, same

from vcc_infuse.algorithms.imbalance import DARP
from vcc_infuse.algorithms.imbalance.darp import prune, transport
from vcc_infuse.errors import OptionError
from vcc_infuse.types import Calibrated

POOL = 12


def visited(method, number, **options):
    """A step after which the whole pool has been seen, its probabilities, and the pseudo labels."""
    step = make_step(method, pool=POOL, number=number, **options)
    probs = random_probs(POOL)
    return step, probs, pseudo_labels(method, step, probs)


def test_before_the_start_the_base_is_used_alone():
    method = DARP(start_fraction=0.5)
    _, probs, pseudo = visited(method, number=40)
    assert torch.equal(pseudo.targets, probs.argmax(1))
    assert torch.equal(method.probs, probs)
    assert not method.refined.any()


@pytest.mark.parametrize(("number", "started"), [(39, False), (40, True)])
def test_by_default_it_starts_after_two_fifths_of_the_run(number, started):
    method = DARP(every=1)
    visited(method, number=number)
    assert method.refined.any() == started


def test_labels_come_from_the_refined_pool_and_the_mask_from_the_base():
    method = DARP(start_fraction=0.5, class_frequencies=[6, 3, 1])
    _, probs, pseudo = visited(method, number=60)
    totals = POOL * torch.tensor([0.6, 0.3, 0.1])
    expected = transport(prune(probs, totals, 2.0), totals)
    torch.testing.assert_close(method.refined, expected)
    assert torch.equal(pseudo.targets, expected.argmax(1))
    assert (pseudo.targets != probs.argmax(1)).any(), "a label must change"
    assert torch.equal(pseudo.weights, (probs.amax(1) >= 0.95).float())
    torch.testing.assert_close(method.refined.sum(0), totals, rtol=0, atol=1e-4)


def test_expected_frequencies_are_those_of_the_labels():
    method = DARP()
    make_step(method, labeled=7)
    torch.testing.assert_close(method.expected, torch.tensor([3, 2, 2]) / 7)


def test_between_refinements_the_last_one_is_used_and_new_examples_keep_their_own_probabilities():
    method = DARP(start_fraction=0.5, every=10)
    step = make_step(method, pool=POOL, number=60)
    pseudo_labels(method, step, random_probs(POOL - 1))
    kept, step.number = method.refined.clone(), 61
    probs = random_probs(POOL)
    calibrated = Calibrated(probs, probs.amax(1))
    step.batch = step.batch._replace(pool_ids=torch.arange(POOL))
    corrected = method.correct(calibrated, step)
    assert torch.equal(corrected.probs[:-1], kept[:-1])
    assert torch.equal(corrected.probs[-1], probs[-1])
    assert torch.equal(method.probs, probs)  # the latest probabilities are stored all the same


def test_of_a_repeated_id_the_last_row_counts():
    method = DARP()
    step = make_step(method, pool=POOL)
    probs = random_probs(3)
    pseudo_labels(method, step, probs, torch.tensor([4, 2, 4]))
    assert torch.equal(method.probs[4], probs[2])
    assert method.seen.nonzero().flatten().tolist() == [2, 4]


def test_only_the_core_set_is_refined():
    method = DARP(start_fraction=0.0)
    visited(method, number=60)
    chosen = torch.tensor([1, 4, 7, 8])
    method.on_coreset_change(chosen)
    method._refine()
    assert method.refined.sum(1).nonzero().flatten().tolist() == chosen.tolist()
    torch.testing.assert_close(method.refined.sum(0), 4 * method.expected, rtol=0, atol=1e-4)


def test_eval_mode_reads_but_does_not_refine():
    method = DARP(start_fraction=0.5)
    step, _, pseudo = visited(method, number=60)
    before = buffers(method.eval())
    again = pseudo_labels(method, step, random_probs(POOL))
    assert same(before, buffers(method))
    assert torch.equal(again.targets, pseudo.targets)


def test_wrong_frequencies_are_refused():
    with pytest.raises(OptionError, match=r"class_frequencies must have 3 numbers, one per class, got \[1, 1\]"):
        DARP(class_frequencies=[1, 1]).setup(make_model(), make_task())
    with pytest.raises(OptionError, match=r"class_frequencies must have at least one number above 0, got \[0, 0\]"):
        DARP(class_frequencies=[0, 0])
    with pytest.raises(OptionError, match="class_frequencies must be a finite number of at least 0, got -1"):
        DARP(class_frequencies=[2, -1])


def objective(x, q, w):
    return float((w[:, None] * x * (np.log(x) - np.log(q))).sum())


def generic_optimum(q, w, totals):
    """The same problem, solved by a general-purpose optimizer."""
    n, k = q.shape

    def value(flat):
        return objective(flat.reshape(n, k), q, w)

    def gradient(flat):
        return (w[:, None] * (np.log(flat.reshape(n, k)) - np.log(q) + 1)).ravel()

    rows = {"type": "eq", "fun": lambda flat: flat.reshape(n, k).sum(1) - 1}
    columns = {"type": "eq", "fun": lambda flat: (flat.reshape(n, k).sum(0) - totals)[:-1]}
    found = minimize(
        value, np.full(n * k, 1 / k), jac=gradient, method="SLSQP", bounds=[(1e-12, 1)] * (n * k),
        constraints=[rows, columns], options={"maxiter": 1000, "ftol": 1e-13},
    )  # fmt: skip
    assert found.success, found.message
    return found.fun


@pytest.mark.parametrize(
    ("rows", "classes", "scale", "seed"), [(6, 3, 1, 0), (8, 2, 2, 1), (7, 4, 2, 2), (10, 3, 3, 3)]
)
def test_transport_finds_the_optimum_of_a_generic_solver(rows, classes, scale, seed):
    torch.manual_seed(seed)
    probs = random_probs(rows, classes, scale).double()
    totals = rows * torch.rand(classes).add(0.1).double().softmax(0)
    q = probs.numpy()
    w = 1 / -(q * np.log(q)).sum(1)
    found = transport(probs, totals)
    torch.testing.assert_close(found.sum(1), torch.ones(rows, dtype=torch.float64), rtol=0, atol=1e-9)
    torch.testing.assert_close(found.sum(0), totals, rtol=0, atol=1e-5)
    expected = generic_optimum(q, w, totals.numpy())
    assert objective(found.numpy(), q, w) == pytest.approx(expected, abs=1e-4)
    assert expected > 1e-2, "the totals must require a change"


def test_transport_keeps_probabilities_with_the_right_totals():
    probs = random_probs(20, 4)
    torch.testing.assert_close(transport(probs, probs.sum(0)), probs)


def test_transport_changes_confident_rows_less():
    probs = torch.tensor([[0.99, 0.01], [0.6, 0.4]]).repeat(4, 1)
    moved = (transport(probs, torch.tensor([4.0, 4.0])) - probs)[:2, 1]
    assert 0 < moved[0] < 0.2 * moved[1]


@pytest.mark.parametrize("scale", [2, 20, 100])
def test_transport_reaches_the_totals_of_a_large_long_tailed_pool(scale):
    """Balanced predictions of rising confidence, and class sizes with an imbalance of 100."""
    torch.manual_seed(0)
    totals = 100.0 ** -torch.linspace(0, 1, 10)
    totals *= 2000 / totals.sum()
    found = transport(prune(random_probs(2000, 10, scale), totals, 2.0), totals)
    torch.testing.assert_close(found.sum(1), torch.ones(2000))
    torch.testing.assert_close(found.sum(0), totals, rtol=1e-3, atol=1e-2)


def test_pruning_follows_a_slow_loop():
    torch.manual_seed(0)
    probs, totals, alpha = random_probs(12, 3), torch.tensor([7.0, 3.4, 1.6]), 1.5
    expected = torch.zeros_like(probs)
    for c in range(3):
        best = sorted(range(12), key=lambda n: -probs[n, c])[: int(alpha * totals[c])]
        total = sum(probs[n, c] for n in best)
        for n in best:
            expected[n, c] = probs[n, c] * totals[c] / total
    expected += 1e-6
    expected /= expected.sum(1, keepdim=True)
    torch.testing.assert_close(prune(probs, totals, alpha), expected, rtol=1e-4, atol=1e-5)

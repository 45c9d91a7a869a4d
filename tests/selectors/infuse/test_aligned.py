"""AlignedINFUSE: the projection onto class shares, its gradient against autograd, and what it chooses."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from scipy.special import softmax

from vcc_infuse.errors import OptionError
from vcc_infuse.selectors import AlignedINFUSE
from vcc_infuse.selectors.infuse.aligned import aligned, sum_over_classes
from vcc_infuse.selectors.pool import SAMPLE
from vcc_infuse.utils.seeding import seed_chunk


def rows(count, classes, seed=0):
    return (2 * torch.randn(count, classes, generator=torch.Generator().manual_seed(seed))).softmax(1)


def projected(probs, shares):
    """The same by its dual: one offset per class, found by scipy."""

    def dual(offsets):
        logits = np.log(probs) + offsets
        return np.log(np.exp(logits).sum(1)).mean() - shares @ offsets

    found = minimize(dual, np.zeros(len(shares)), tol=1e-10)
    return softmax(np.log(probs) + found.x, axis=1)


@pytest.mark.parametrize("counts", [[4, 4, 4], [10, 3, 1]])
def test_aligned_is_the_nearest_with_these_shares(counts):
    probs, counts = rows(40, 3), torch.tensor(counts).float()
    found, shares = aligned(probs, counts), counts / counts.sum()
    torch.testing.assert_close(found.mean(0), shares, atol=2e-3, rtol=0)
    torch.testing.assert_close(found.sum(1), torch.ones(40))
    expected = projected(probs.double().numpy(), shares.double().numpy())
    np.testing.assert_allclose(found.numpy(), expected, atol=5e-3)


def test_predictions_with_the_right_shares_stay_and_certain_ones_are_finite():
    probs = torch.eye(3).repeat(5, 1)
    torch.testing.assert_close(aligned(probs, torch.ones(3)), probs)
    never = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert aligned(never, torch.tensor([1.0, 1.0])).isfinite().all()


def of_each_class(pool, logits, goal, labels):
    """By autograd: the gradient of the mean loss of each class's rows, at length 1, in sum."""
    total = 0
    for label in labels.unique():
        own = labels == label
        loss = F.cross_entropy(logits[own], goal[own])
        parts = torch.autograd.grad(loss, pool.model.head.parameters(), retain_graph=True)
        gradient = torch.cat([part.reshape(10, -1) for part in parts], 1)
        total = total + gradient / gradient.norm()
    return total


def test_gradient_is_that_of_each_class_in_pool_and_labels(make_pool, eval_mode):
    pool = eval_mode(make_pool())
    found = AlignedINFUSE(keep=0.3, sample=100).gradient(pool)
    ids = pool.rng(SAMPLE).permutation(pool.size)[:100]
    seed_chunk(pool.seed, pool.number, SAMPLE, 0)
    logits = pool.model(pool.views(ids, ("weak",))["weak"]).logits
    goal = aligned(logits.detach().softmax(1), pool.task.label_counts.float())
    expected = of_each_class(pool, logits, goal, goal.argmax(1))
    for _, x, y in pool.labeled_chunks(1):
        expected = expected + of_each_class(pool, pool.model(x).logits, F.one_hot(y, 10).float(), y)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("classes", [3, 40])
def test_few_and_many_rows_of_a_class_count_the_same(classes):
    """Against the outer products themselves; with 40 classes the inner products of the rows are what is computed."""
    generator = torch.Generator().manual_seed(0)
    errors = torch.randn(120, classes, generator=generator)
    features = torch.randn(120, 30, generator=generator)
    labels = torch.randint(0, classes - 1, (120,), generator=generator)
    expected = 0
    for label in labels.unique():
        own = labels == label
        gradient = torch.einsum("nc,nw->cw", errors[own], F.pad(features[own], (0, 1), value=1.0))
        expected = expected + gradient / gradient.norm()
    torch.testing.assert_close(sum_over_classes(errors, features, labels), expected, atol=1e-4, rtol=1e-4)


def test_a_class_that_is_named_too_often_is_chosen_less(make_pool, eval_mode):
    """The classifier is made to name class 3 too often."""
    pool = eval_mode(make_pool())
    pool.model.head.bias.data[3] += 6
    chosen = AlignedINFUSE(keep=0.3).choose(pool, 60)
    rows = chosen.rows
    before = (rows.labels[rows.selected] == 3).mean()
    after = (rows.labels[np.isin(rows.ids, chosen.coreset.ids)] == 3).mean()
    assert before > 0.2
    assert after < 0.2 * before


def test_a_sample_without_examples_is_refused():
    with pytest.raises(OptionError, match="sample"):
        AlignedINFUSE(sample=0)

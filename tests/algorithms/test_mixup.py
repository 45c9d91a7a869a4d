import copy

import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.tiny import buffers, make_step, same
from vcc_infuse.algorithms.ops import interleaved_forward, mixup, sample_lambda
from vcc_infuse.algorithms.pi_model import PiModel


@given(st.integers(2, 8), st.floats(0.1, 3), st.integers(0, 1000))
@settings(deadline=None, max_examples=30)
def test_mixup_is_one_blend_with_one_permutation(rows, alpha, seed):
    """Mixing unit vectors gives the matrix λ·I + (1−λ)·P itself."""
    torch.manual_seed(seed)
    targets = torch.rand(rows, 3)
    blend, mixed = mixup(torch.eye(rows), targets, alpha)
    torch.testing.assert_close(blend.sum(0), torch.ones(rows))
    torch.testing.assert_close(blend.sum(1), torch.ones(rows))
    assert (blend.diagonal() >= 0.5 - 1e-6).all()
    entries = blend[blend > 1e-6]
    own = blend.diagonal().min()
    assert all(min(abs(s - own), abs(s - (1 - own)), abs(s - 1)) < 1e-5 for s in entries)
    torch.testing.assert_close(mixed, blend @ targets)


def test_lambda_follows_the_folded_beta_distribution():
    torch.manual_seed(0)
    values = [sample_lambda(0.75) for _ in range(2000)]
    beta = scipy.stats.beta(0.75, 0.75)
    assert scipy.stats.kstest(values, lambda v: beta.cdf(v) - beta.cdf(1 - v)).pvalue > 0.01


def test_every_call_draws_new_partners():
    torch.manual_seed(0)
    found = [mixup(torch.eye(50), torch.eye(50), 5.0)[0] for _ in range(2)]
    assert (found[0].sort(1).indices[:, -2:] != found[1].sort(1).indices[:, -2:]).any()


def test_alpha_zero_mixes_nothing():
    inputs, targets = torch.randn(4, 2, 3, 3), torch.rand(4, 3)
    assert all(map(torch.equal, mixup(inputs, targets, 0), (inputs, targets)))


@pytest.fixture
def step():
    return make_step(PiModel())


def test_interleaving_keeps_the_order(step):
    step.model.eval()
    inputs = torch.randn(12, 6)
    torch.testing.assert_close(interleaved_forward(step, inputs, 4), step.model(inputs).logits)


def test_chunks_are_interleaved_and_the_first_updates_the_statistics(step):
    twin, inputs = copy.deepcopy(step.model), torch.randn(12, 6)
    expected = torch.zeros(12, 3)
    rows = [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    expected[rows[0]] = twin(inputs[rows[0]]).logits
    after_first = buffers(twin)
    for chunk in rows[1:]:
        expected[chunk] = twin(inputs[chunk]).logits
    torch.testing.assert_close(interleaved_forward(step, inputs, 4), expected)
    assert same(buffers(step.model), after_first)

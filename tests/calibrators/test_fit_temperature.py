"""The fitted temperature against a minimizer of scipy, netcal, autograd and a grid."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from netcal.scaling import TemperatureScaling as Netcal
from scipy.optimize import minimize_scalar

from vcc_infuse.calibrators.temperature import MAX_TEMPERATURE, MIN_TEMPERATURE, derivatives, fit_temperature


def sample(n=2000, classes=4, factor=3.0, seed=0):
    """Logits `factor` times too large for the labels drawn from them."""
    g = torch.Generator().manual_seed(seed)
    honest = 2 * torch.randn(n, classes, generator=g)
    return factor * honest, torch.multinomial(honest.softmax(1), 1, generator=g).squeeze(1)


def nll(temperature, logits, labels):
    return F.cross_entropy(logits.double() / temperature, labels).item()


@pytest.mark.parametrize("factor", [0.1, 0.5, 1.0, 3.0, 12.0])
def test_fit_agrees_with_scipy(factor):
    logits, labels = sample(factor=factor)
    found = fit_temperature(logits, labels)
    bounds = (np.log(MIN_TEMPERATURE), np.log(MAX_TEMPERATURE))
    scipy = minimize_scalar(lambda a: nll(np.exp(a), logits, labels), bounds=bounds, options={"xatol": 1e-10})
    assert found.temperature == pytest.approx(np.exp(scipy.x), rel=1e-5)
    assert not found.at_bound


def test_fit_agrees_with_netcal():
    logits, labels = sample(n=800)
    probs = logits.double().softmax(1).numpy()
    theirs = Netcal()
    theirs.fit(probs, labels.numpy())
    ours = (logits.double() / fit_temperature(logits, labels).temperature).softmax(1)
    np.testing.assert_allclose(ours.numpy(), theirs.transform(probs), atol=1e-3)


def test_derivatives_agree_with_autograd():
    logits, labels = (t.double() if t.is_floating_point() else t for t in sample(n=50))
    beta = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    loss = F.cross_entropy(beta * logits, labels)
    (slope,) = torch.autograd.grad(loss, beta, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, beta)
    own = logits.gather(1, labels[:, None])[:, 0]
    assert derivatives(0.7, logits, own) == pytest.approx((slope.item(), curvature.item()), rel=1e-10)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(-3, 3), st.integers(2, 6), st.integers(1, 40))
def test_no_other_temperature_is_better(seed, log_scale, classes, n):
    g = torch.Generator().manual_seed(seed)
    logits = 10**log_scale * torch.randn(n, classes, generator=g).double()
    labels = torch.randint(classes, (n,), generator=g)
    found = fit_temperature(logits, labels)
    grid = [nll(t, logits, labels) for t in np.geomspace(MIN_TEMPERATURE, MAX_TEMPERATURE, 40)]
    assert nll(found.temperature, logits, labels) <= min(grid) + 1e-9
    assert MIN_TEMPERATURE <= found.temperature <= MAX_TEMPERATURE


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.3, 3))
def test_scaling_the_logits_scales_the_temperature_and_offsets_have_no_effect(seed, scale):
    logits, labels = sample(n=200, factor=2.0, seed=seed)
    plain = fit_temperature(logits, labels).temperature
    assert fit_temperature(scale * logits, labels).temperature == pytest.approx(scale * plain, rel=1e-4)
    offsets = 5 * torch.arange(200)[:, None] % 7
    assert fit_temperature(logits + offsets, labels).temperature == pytest.approx(plain, rel=1e-3)


def test_bounds_are_flagged():
    logits, labels = 4.0 * F.one_hot(torch.arange(30) % 3, 3), torch.arange(30) % 3
    assert fit_temperature(logits, labels) == (MIN_TEMPERATURE, True)
    assert fit_temperature(logits, (labels + 1) % 3) == (MAX_TEMPERATURE, True)


def test_large_logits_do_not_overflow():
    logits, labels = sample(factor=3.0)
    assert fit_temperature(1e30 * logits, labels).temperature == MAX_TEMPERATURE
    assert np.isfinite(fit_temperature(logits + 1e4, labels).temperature)

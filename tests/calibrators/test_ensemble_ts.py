import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from tests.helpers.tiny import INPUTS, buffers, make_step, make_task, same

from vcc_infuse import FixMatch
from vcc_infuse.calibrators.ensemble_ts import MAX_UNIFORM_WEIGHT, EnsembleTS, simplex_minimum
from vcc_infuse.calibrators.temperature import fit_temperature
from vcc_infuse.types import Outputs


def sample(n=1000, classes=4, factor=3.0, noise=0.2, seed=0):
    """Overconfident logits, some with random labels."""
    g = torch.Generator().manual_seed(seed)
    honest = 2 * torch.randn(n, classes, generator=g)
    labels = torch.multinomial(honest.softmax(1), 1, generator=g).squeeze(1)
    noisy = torch.rand(n, generator=g) < noise
    return factor * honest, torch.where(noisy, torch.randint(classes, (n,), generator=g), labels)


def by_scipy(matrix, vector):
    """The best of several starts of a general optimizer."""
    m, v = matrix.numpy(), vector.numpy()
    results = [
        minimize(
            lambda w: w @ m @ w - 2 * v @ w, start, jac=lambda w: 2 * (m @ w - v), method="SLSQP",
            bounds=[(0, 1)] * 3, constraints={"type": "eq", "fun": lambda w: w.sum() - 1}, options={"ftol": 1e-14},
        )
        for start in (np.full(3, 1 / 3), np.eye(3)[0], np.eye(3)[1], np.eye(3)[2])
    ]  # fmt: skip
    return min(results, key=lambda result: result.fun)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.floats(0.01, 3))
def test_closed_form_agrees_with_scipy(seed, rank, reach):
    """Ranks below 3 make the minimum degenerate; `reach` moves it from inside the triangle to edges and corners."""
    g = torch.Generator().manual_seed(seed)
    root = torch.randn(rank, 3, generator=g).double()
    matrix = root.T @ root
    vector = matrix @ torch.full((3,), 1 / 3).double() + reach * root.T @ torch.randn(rank, generator=g).double()
    weights = simplex_minimum(matrix, vector)
    value = (weights @ matrix @ weights - 2 * vector @ weights).item()
    assert weights.min() >= 0
    assert weights.sum().item() == pytest.approx(1)
    assert value == pytest.approx(by_scipy(matrix, vector).fun, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    "wanted", [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.3, 0.7, 0], [0.6, 0, 0.4], [0, 0.5, 0.5], [0.2, 0.3, 0.5]]
)
def test_every_face_is_found(wanted):
    wanted = torch.tensor(wanted).double()
    outwards = (wanted == 0).double()
    torch.testing.assert_close(simplex_minimum(torch.eye(3).double(), wanted - outwards), wanted)


def test_ties_prefer_the_first_weight():
    weights = simplex_minimum(torch.ones(3, 3).double(), torch.ones(3).double())
    assert weights.tolist() == [1, 0, 0]


def test_weights_minimize_the_brier_score_as_scipy_does():
    logits, labels = sample()
    calibrator = EnsembleTS().fit(logits, labels)
    temperature = fit_temperature(logits, labels).temperature
    z, y = logits.double(), F.one_hot(labels, 4).double()
    parts = [(z / temperature).softmax(1), z.softmax(1), torch.full_like(z, 0.25)]

    def brier(w):
        return (sum(float(a) * part for a, part in zip(w, parts, strict=True)) - y).square().sum(1).mean().item()

    scipy = minimize(
        brier, [1, 0, 0], method="SLSQP", bounds=[(0, 1)] * 3, options={"ftol": 1e-12},
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
    )  # fmt: skip
    assert brier(calibrator.weights.tolist()) <= scipy.fun + 1e-8
    np.testing.assert_allclose(calibrator.weights.numpy(), scipy.x, atol=5e-3)
    mixed = sum(a * part for a, part in zip(calibrator.weights.tolist(), parts, strict=True))
    torch.testing.assert_close(calibrator.probs(logits), mixed, atol=1e-6, rtol=0)
    torch.testing.assert_close(calibrator.predict(Outputs(logits, logits)), mixed.amax(1), atol=1e-6, rtol=0)


def test_brier_score_is_better_than_that_of_its_components():
    logits, labels = sample()
    y = F.one_hot(labels, 4)
    calibrator = EnsembleTS().fit(logits, labels)
    plain, tempered = logits.softmax(1), (logits / calibrator.temperature).softmax(1)
    scores = [(p - y).square().sum(1).mean().item() for p in (calibrator.probs(logits), tempered, plain)]
    assert scores[0] < scores[1] < scores[2]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.2, 8), st.floats(0, 1))
def test_labels_never_change(seed, factor, noise):
    logits, labels = sample(60, factor=factor, noise=noise, seed=seed)
    calibrator = EnsembleTS().eval().fit(logits, labels)
    calibrated = calibrator(None, logits, Outputs(logits, logits))
    assert torch.equal(calibrated.labels, logits.argmax(1))
    torch.testing.assert_close(calibrated.probs.sum(1), torch.ones(60))


def test_a_label_remains_where_every_prediction_is_wrong():
    logits = 8.0 * F.one_hot(torch.arange(300) % 3, 3)
    calibrator = EnsembleTS().eval().fit(logits, (torch.arange(300) + 1) % 3)
    assert calibrator.at_bound
    assert calibrator.weights[2].item() == pytest.approx(MAX_UNIFORM_WEIGHT)
    assert torch.equal(calibrator(None, logits, Outputs(logits, logits)).labels, logits.argmax(1))


def test_own_argmax_as_label_has_no_effect():
    logits, _ = sample()
    calibrator = EnsembleTS().fit(logits, logits.argmax(1))
    torch.testing.assert_close(calibrator.probs(logits), logits.double().softmax(1))


def test_training_fits_and_the_state_round_trips():
    calibrator, other = EnsembleTS(labels="weak_strong", every=2), EnsembleTS(labels="weak_strong", every=2)
    other.setup(torch.nn.Identity(), make_task(batch=8))
    step = make_step(FixMatch(), calibrator=calibrator, batch=8, number=1)
    step.ema.head.weight.data.mul_(20)
    views = {"weak": torch.randn(16, INPUTS), "strong": torch.randn(16, INPUTS)}
    step.batch = step.batch._replace(views=views)
    with torch.autocast("cpu", torch.bfloat16):
        step.confidence(views["weak"], step.model(views["weak"]))
    expected = EnsembleTS(labels="weak_strong").fit(calibrator.memory["logits"][:8], calibrator.memory["labels"][:8])
    assert calibrator.temperature > 1
    torch.testing.assert_close(calibrator.weights, expected.weights)
    other.load_state_dict(calibrator.state_dict())
    assert same(buffers(calibrator), buffers(other))
    outputs = step.model(views["weak"])
    assert torch.equal(calibrator.predict(outputs), other.predict(outputs))

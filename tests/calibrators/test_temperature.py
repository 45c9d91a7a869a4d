import copy
import warnings
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from netcal.scaling import TemperatureScaling as Netcal
from scipy.optimize import minimize_scalar
from tests.helpers.tiny import INPUTS, buffers, make_step, make_task, part_of, same, two_processes

from vcc_infuse import FixMatch
from vcc_infuse.calibrators.newton import HIGHEST, LOWEST, descend, fit_temperature, likelihood
from vcc_infuse.calibrators.temperature import TemperatureScaling
from vcc_infuse.errors import UserError
from vcc_infuse.types import Outputs


def sample(n=2000, classes=4, factor=3.0, seed=0):
    """Logits `factor` times too large for the labels drawn from them."""
    g = torch.Generator().manual_seed(seed)
    honest = 2 * torch.randn(n, classes, generator=g)
    return factor * honest, torch.multinomial(honest.softmax(1), 1, generator=g).squeeze(1)


def nll(temperature, logits, labels):
    return F.cross_entropy(logits.double() / temperature, labels).item()


@pytest.mark.parametrize("factor", [0.1, 0.5, 1.0, 3.0, 12.0])
def test_newton_agrees_with_scipy(factor):
    logits, labels = sample(factor=factor)
    found = fit_temperature(logits, labels)
    scipy = minimize_scalar(
        lambda a: nll(np.exp(a), logits, labels), bounds=(np.log(LOWEST), np.log(HIGHEST)), options={"xatol": 1e-10}
    )
    assert found.temperature == pytest.approx(np.exp(scipy.x), rel=1e-5)
    assert not found.at_bound


def test_newton_agrees_with_netcal():
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
    assert likelihood(0.7, logits, labels) == pytest.approx((loss.item(), slope.item(), curvature.item()), rel=1e-10)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(-3, 3), st.integers(2, 6), st.integers(1, 40))
def test_the_likelihood_never_gets_worse_on_the_way(seed, log_scale, classes, n):
    g = torch.Generator().manual_seed(seed)
    logits = 10**log_scale * torch.randn(n, classes, generator=g).double()
    labels = torch.randint(classes, (n,), generator=g)
    values = [value for _, value in descend(logits, labels, 1 / HIGHEST, 1 / LOWEST)]
    assert all(later <= earlier for earlier, later in pairwise(values))
    found = fit_temperature(logits, labels)
    grid = [nll(t, logits, labels) for t in np.geomspace(LOWEST, HIGHEST, 40)]
    assert nll(found.temperature, logits, labels) <= min(grid) + 1e-9
    assert LOWEST <= found.temperature <= HIGHEST


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.3, 3))
def test_scaled_logits_have_a_scaled_temperature_and_offsets_do_not_matter(seed, scale):
    logits, labels = sample(n=200, factor=2.0, seed=seed)
    plain = fit_temperature(logits, labels).temperature
    assert fit_temperature(scale * logits, labels).temperature == pytest.approx(scale * plain, rel=1e-4)
    offsets = 5 * torch.arange(200)[:, None] % 7
    assert fit_temperature(logits + offsets, labels).temperature == pytest.approx(plain, rel=1e-3)


def test_bounds_are_flagged():
    logits, labels = 4.0 * F.one_hot(torch.arange(30) % 3, 3), torch.arange(30) % 3
    assert fit_temperature(logits, labels) == (LOWEST, True)
    assert fit_temperature(logits, (labels + 1) % 3) == (HIGHEST, True)


def test_large_logits_do_not_overflow():
    logits, labels = sample(factor=3.0)
    assert fit_temperature(1e30 * logits, labels).temperature == HIGHEST
    assert np.isfinite(fit_temperature(logits + 1e4, labels).temperature)


def test_own_argmax_as_label_is_degenerate_and_is_not_believed():
    """Judged by itself a network is always right: the likelihood then asks for T → 0."""
    logits, truth = sample(factor=3.0)
    assert fit_temperature(logits, logits.argmax(1)) == (LOWEST, True)
    calibrator = TemperatureScaling().fit(logits, logits.argmax(1))
    assert calibrator.temperature == 1
    assert calibrator.at_bound
    assert TemperatureScaling().fit(logits, truth).temperature.item() == pytest.approx(3, rel=0.15)


@pytest.mark.parametrize("labels", ["labeled_strong", "weak_strong"])
def test_familiar_images_never_raise_the_confidence(labels):
    logits, truth = sample(factor=0.5)
    assert TemperatureScaling().fit(logits, truth).temperature < 0.7
    assert TemperatureScaling(labels).fit(logits, truth).temperature == 1


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(LOWEST, HIGHEST), st.sampled_from([torch.float32, torch.bfloat16]))
def test_no_label_changes(seed, temperature, dtype):
    torch.manual_seed(seed)
    calibrator, logits = TemperatureScaling().eval(), (20 * torch.randn(50, 5)).to(dtype)
    calibrator.temperature.fill_(temperature)
    logits[0] = 1.0
    logits[1, 2:4] = torch.tensor([30.0, 30.000002])
    calibrated = calibrator(SimpleNamespace(), logits, Outputs(logits, logits))
    assert torch.equal(calibrated.labels, logits.argmax(1))
    assert calibrated.confidence.max() <= 1
    assert calibrated.probs.dtype == torch.float32
    torch.testing.assert_close(calibrated.probs.sum(1), torch.ones(50))


def bring(step, **fields):
    """Replace fields of the batch, which may also bring labeled images that were held out."""
    old = step.batch._asdict() if isinstance(step.batch, tuple) else vars(step.batch)
    step.batch = SimpleNamespace(**{**old, **fields})


def steps(calibrator, source, count, autocast=False):
    """Show a calibrator `count` steps of random images, whose labels come from `source`."""
    step = make_step(FixMatch(), calibrator=calibrator, steps=20, batch=8, ratio=2)
    for number in range(count):
        torch.manual_seed(number)
        step.number = number
        views = {**step.batch.views, source: torch.randn(8, INPUTS)}
        bring(step, views=views, held_out_y=torch.randint(3, (8,)))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            with torch.no_grad():
                step.weak = step.model(step.batch.views["weak"])
            step.confidence(step.batch.views["weak"], step.weak)
    return step


@pytest.mark.parametrize("source", ["held_out", "labeled_strong", "weak_strong"])
def test_each_source_fits_what_the_averaged_network_says_of_its_images(source):
    calibrator = TemperatureScaling(source, every=4, queue=16)
    name = "strong" if source == "weak_strong" else source
    step = make_step(FixMatch(), calibrator=calibrator, steps=20, batch=8)
    step.ema.head.weight.data.mul_(20)
    logits, labels = [], []
    for number in range(4):
        torch.manual_seed(number)
        step.number, images, held = number, torch.randn(16 if name == "strong" else 8, INPUTS), torch.randint(3, (8,))
        bring(step, views={"weak": torch.randn(16, INPUTS), name: images}, held_out_y=held)
        weak = step.model(step.batch.views["weak"]).detach()
        step.confidence(step.batch.views["weak"], weak)
        known = {"held_out": held, "labeled_strong": step.batch.y, "weak_strong": weak.logits[:8].argmax(1)}
        labels.append(known[source])
        logits.append(step.ema(images[:8]).logits)
    lowest = LOWEST if source == "held_out" else 1.0
    expected = fit_temperature(torch.cat(logits[2:]), torch.cat(labels[2:]), lowest).temperature
    assert expected not in (1.0, LOWEST)
    assert calibrator.temperature.item() == pytest.approx(expected, rel=1e-5)


def test_a_fit_is_made_every_so_often_and_after_the_last_step():
    calibrator, seen = TemperatureScaling(every=6, queue=16), []
    calibrator.fit = lambda logits, labels: seen.append(len(labels))
    steps(calibrator, "held_out", count=20)
    assert seen == [16, 16, 16, 16]
    assert calibrator.memory.pushed == 4 * 16  # only what a fit will look at


def test_the_period_follows_the_length_of_the_run():
    calibrator = TemperatureScaling()
    for length, period in ((2**20, 1024), (2000, 10), (50_000, 49)):
        calibrator.setup(torch.nn.Identity(), make_task(steps=length))
        assert calibrator.period == period


def test_without_labels_nothing_happens_but_a_warning():
    step = make_step(FixMatch(), calibrator=TemperatureScaling(every=1))
    before = buffers(step.calibrate)
    with pytest.warns(UserWarning, match="held_out"):
        step.confidence(step.batch.views["weak"], step.model(step.batch.views["weak"]))
    assert same(before, buffers(step.calibrate))


def test_eval_mode_learns_nothing():
    step = steps(TemperatureScaling(every=2), "held_out", count=4)
    before = buffers(step.calibrate)
    step.calibrate.eval()
    step.number = 5
    step.confidence(step.batch.views["weak"], step.weak)
    assert same(before, buffers(step.calibrate))


def test_state_round_trip_gives_the_same_next_fit():
    first = steps(TemperatureScaling(every=3, queue=32), "held_out", count=4).calibrate
    second = TemperatureScaling(every=3, queue=32)
    second.setup(torch.nn.Identity(), make_task(batch=8))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    images = torch.randn(8, INPUTS)
    for calibrator in (first, second):
        step = make_step(FixMatch(), number=5, batch=8)
        bring(step, views={"held_out": images}, held_out_y=torch.arange(8) % 3)
        calibrator.train()(step, images, step.model(images))
    assert same(buffers(first), buffers(second))
    assert first.temperature != 1


def test_two_processes_hold_what_one_holds():
    whole = steps(TemperatureScaling("labeled_strong", every=1), "labeled_strong", count=1)

    def work(rank, gather):
        calibrator = TemperatureScaling("labeled_strong", every=1)
        calibrator.setup(torch.nn.Identity(), make_task(batch=8))
        step = part_of(whole, rank, gather)
        calibrator(step, step.batch.views["weak"], step.weak)
        return buffers(calibrator)

    for one in two_processes(work):
        for name, value in buffers(whole.calibrate).items():
            torch.testing.assert_close(one[name], value)


def test_bf16_is_fitted_in_double_precision():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibrator = steps(TemperatureScaling(every=2), "held_out", count=4, autocast=True).calibrate
    logits, labels = calibrator.memory["logits"][:32], calibrator.memory["labels"][:32]
    assert calibrator.temperature.item() in (1.0, pytest.approx(fit_temperature(logits, labels).temperature))


def test_held_out_asks_the_trainer_for_images_and_the_others_do_not():
    assert (TemperatureScaling(share=0.3).held_out, TemperatureScaling().labeled_views) == (0.3, ())
    strong = TemperatureScaling("labeled_strong")
    assert (strong.held_out, strong.labeled_views) == (0, ("strong",))


@pytest.mark.parametrize("wrong", [{"labels": "argmax"}, {"share": 0.0}, {"every": 0}, {"queue": 0}])
def test_mistakes_are_named(wrong):
    (name,) = wrong
    with pytest.raises(UserError, match=name):
        TemperatureScaling(**wrong)

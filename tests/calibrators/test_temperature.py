import copy
import math
import warnings
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.tiny import INPUTS, buffers, make_step, make_task, part_of, same, two_processes

from vcc_infuse import FixMatch
from vcc_infuse.calibrators.temperature import MAX_TEMPERATURE, MIN_TEMPERATURE, TemperatureScaling, fit_temperature
from vcc_infuse.errors import UserError
from vcc_infuse.types import Outputs, WeakOutputs


def sample(n=2000, classes=4, factor=3.0, seed=0):
    """Logits `factor` times too large for the labels drawn from them."""
    g = torch.Generator().manual_seed(seed)
    honest = 2 * torch.randn(n, classes, generator=g)
    return factor * honest, torch.multinomial(honest.softmax(1), 1, generator=g).squeeze(1)


def test_own_argmax_as_label_is_degenerate_and_has_no_effect():
    """Measured against itself a network is always right, so the likelihood asks for T → 0."""
    logits, truth = sample(factor=3.0)
    assert fit_temperature(logits, logits.argmax(1)) == (MIN_TEMPERATURE, True)
    calibrator = TemperatureScaling().fit(logits, logits.argmax(1))
    assert calibrator.temperature == 1
    assert calibrator.at_bound
    assert TemperatureScaling().fit(logits, truth).temperature.item() == pytest.approx(3, rel=0.15)


@pytest.mark.parametrize("labels", ["labeled_strong", "weak_strong"])
def test_images_from_training_never_raise_the_confidence(labels):
    logits, truth = sample(factor=0.5)
    assert TemperatureScaling().fit(logits, truth).temperature < 0.7
    assert TemperatureScaling(labels=labels).fit(logits, truth).temperature == 1


def test_predict_is_the_softmax_at_the_temperature():
    calibrator, logits = TemperatureScaling(), torch.tensor([[6.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    calibrator.temperature.fill_(2)
    expected = torch.tensor([math.exp(3) / (math.exp(3) + 2), 1 / (1 + math.exp(-0.5) + math.exp(-1))]).double()
    torch.testing.assert_close(calibrator.predict(Outputs(logits, logits)), expected, atol=1e-6, rtol=0)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6), st.floats(MIN_TEMPERATURE, MAX_TEMPERATURE), st.sampled_from([torch.float32, torch.bfloat16])
)
def test_labels_never_change(seed, temperature, dtype):
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


def set_batch(step, **fields):
    """Replace fields of the batch."""
    step.batch = step.batch._replace(**fields)


def run_steps(calibrator, source, count, autocast=False):
    """Train a calibrator for `count` steps on random images, whose labels come from `source`."""
    step = make_step(FixMatch(), calibrator=calibrator, steps=20, batch=8, ratio=2)
    for number in range(count):
        torch.manual_seed(number)
        step.number = number
        views = {**step.batch.views, source: torch.randn(8, INPUTS)}
        set_batch(step, views=views, held_out_y=torch.randint(3, (8,)))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            with torch.no_grad():
                step.weak = WeakOutputs(*step.model(step.batch.views["weak"]))
            step.confidence(step.batch.views["weak"], step.weak)
    return step


@pytest.mark.parametrize("source", ["held_out", "labeled_strong", "weak_strong"])
def test_each_source_fits_the_ema_outputs_for_its_images(source):
    calibrator = TemperatureScaling(labels=source, every=4, queue_size=16)
    name = "strong" if source == "weak_strong" else source
    step = make_step(FixMatch(), calibrator=calibrator, steps=20, batch=8)
    step.ema.head.weight.data.mul_(20)
    logits, labels = [], []
    for number in range(4):
        torch.manual_seed(number)
        step.number, images, held = number, torch.randn(16 if name == "strong" else 8, INPUTS), torch.randint(3, (8,))
        set_batch(step, views={"weak": torch.randn(16, INPUTS), name: images}, held_out_y=held)
        weak = step.model(step.batch.views["weak"]).detach()
        step.confidence(step.batch.views["weak"], weak)
        known = {"held_out": held, "labeled_strong": step.batch.y, "weak_strong": weak.logits[:8].argmax(1)}
        labels.append(known[source])
        logits.append(step.ema(images[:8]).logits)
    lowest = MIN_TEMPERATURE if source == "held_out" else 1.0
    expected = fit_temperature(torch.cat(logits[2:]), torch.cat(labels[2:]), low=lowest).temperature
    assert expected not in (1.0, MIN_TEMPERATURE)
    assert calibrator.temperature.item() == pytest.approx(expected, rel=1e-5)


def test_fits_happen_every_period_and_after_the_last_step():
    calibrator, seen = TemperatureScaling(every=6, queue_size=16), []
    calibrator.fit = lambda logits, labels: seen.append(len(labels))
    run_steps(calibrator, "held_out", count=20)
    assert seen == [16, 16, 16, 16]
    assert calibrator.memory.pushed == 4 * 16  # only what a fit will use


def test_default_period_follows_the_length_of_the_run():
    calibrator = TemperatureScaling()
    for length, period in ((2**20, 1024), (2000, 10), (50_000, 49)):
        calibrator.setup(torch.nn.Identity(), make_task(steps=length))
        assert calibrator.period == period


def test_without_labels_there_is_only_a_warning():
    step = make_step(FixMatch(), calibrator=TemperatureScaling(every=1))
    before = buffers(step.calibrate)
    with pytest.warns(UserWarning, match="held_out"):
        step.confidence(step.batch.views["weak"], step.model(step.batch.views["weak"]))
    assert same(before, buffers(step.calibrate))


def test_eval_mode_learns_nothing():
    step = run_steps(TemperatureScaling(every=2), "held_out", count=4)
    before = buffers(step.calibrate)
    step.calibrate.eval()
    step.number = 5
    step.confidence(step.batch.views["weak"], step.weak)
    assert same(before, buffers(step.calibrate))


def test_state_round_trip_gives_the_same_next_fit():
    first = run_steps(TemperatureScaling(every=3, queue_size=32), "held_out", count=4).calibrate
    second = TemperatureScaling(every=3, queue_size=32)
    second.setup(torch.nn.Identity(), make_task(batch=8))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    images = torch.randn(8, INPUTS)
    for calibrator in (first, second):
        step = make_step(FixMatch(), number=5, batch=8)
        set_batch(step, views={"held_out": images}, held_out_y=torch.arange(8) % 3)
        calibrator.train()(step, images, step.model(images))
    assert same(buffers(first), buffers(second))
    assert first.temperature != 1


def test_two_processes_have_the_state_of_one():
    whole = run_steps(TemperatureScaling(labels="labeled_strong", every=1), "labeled_strong", count=1)

    def work(rank, gather):
        calibrator = TemperatureScaling(labels="labeled_strong", every=1)
        calibrator.setup(torch.nn.Identity(), make_task(batch=8))
        step = part_of(whole, rank, gather)
        calibrator(step, step.batch.views["weak"], step.weak)
        return buffers(calibrator)

    for one in two_processes(work):
        for name, value in buffers(whole.calibrate).items():
            torch.testing.assert_close(one[name], value)


def test_bf16_outputs_are_fitted_in_double_precision():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibrator = run_steps(TemperatureScaling(every=2), "held_out", count=4, autocast=True).calibrate
    logits, labels = calibrator.memory["logits"][:32], calibrator.memory["labels"][:32]
    assert calibrator.temperature.item() in (1.0, pytest.approx(fit_temperature(logits, labels).temperature))


def test_each_source_requests_its_images():
    assert (TemperatureScaling(holdout_fraction=0.3).held_out, TemperatureScaling().labeled_views) == (0.3, ())
    strong = TemperatureScaling(labels="labeled_strong")
    assert (strong.held_out, strong.labeled_views) == (0, ("strong",))


@pytest.mark.parametrize("wrong", [{"labels": "argmax"}, {"holdout_fraction": 0.0}, {"every": 0}, {"queue_size": 0}])
def test_errors_name_the_option(wrong):
    (name,) = wrong
    with pytest.raises(UserError, match=name):
        TemperatureScaling(**wrong)

import dataclasses

import pytest
import torch
from tests.calibrators.vcc.world import World, make_task
from tests.helpers.tiny import buffers, same

from vcc_infuse import FixMatch, SmallConv, Trainer, load_ssl
from vcc_infuse.calibrators import Calibrator, HardViewTemperature, RobustVCC, Softmax
from vcc_infuse.errors import OptionError
from vcc_infuse.utils.serialization import from_config, to_config


def step_of(calibrator):
    world = World(RobustVCC())
    step = dataclasses.replace(world.step(50), calibrate=calibrator.train())
    calibrator.setup(world.model, make_task())
    return step


def test_selection_is_that_of_the_softmax():
    step = step_of(HardViewTemperature())
    outputs = step.forward_weak(step.batch.views["weak"])
    step.calibrate.temperature.strong.inverse.fill_(0.1)
    got = step.confidence(step.batch.views["weak"], outputs)
    expected = Softmax()(step, step.batch.views["weak"], outputs)
    assert torch.equal(got.probs, expected.probs)
    assert torch.equal(got.confidence, expected.confidence)
    assert got.loss is None


@torch.no_grad()
def test_predict_is_the_softmax_at_the_learned_temperature():
    step = step_of(HardViewTemperature(memorization_gate=False))
    calibrator = step.calibrate
    calibrator.temperature.strong.inverse.fill_(1 / 2)
    calibrator.temperature.mixed.inverse.fill_(1 / 8)
    logits = step.forward_eval(step.batch.views["weak"])
    expected = (logits.logits / 4).double().softmax(1).amax(1)
    torch.testing.assert_close(calibrator.predict(logits), expected, atol=1e-6, rtol=0)
    assert (expected - logits.logits.softmax(1).amax(1)).abs().mean() > 0.05


@pytest.mark.parametrize("options", [{}, {"holdout_fraction": 0.5}, {"memorization_gate": False}], ids=str)
def test_it_learns_the_temperature_of_robust_vcc(options):
    """On the same outputs and with the same draws."""
    inverses = []
    for calibrator in (HardViewTemperature(sample_fraction=0.5, **options), RobustVCC(target_fraction=0.5, **options)):
        step = step_of(calibrator)
        views = {**step.batch.views, "held_out": step.batch.x}
        step.batch = step.batch._replace(views=views, held_out_y=step.batch.y.flip(0))
        for step.number in range(5):
            torch.manual_seed(step.number)
            step.confidence(views["weak"], step.forward_weak(views["weak"]))
        inverses.append(calibrator.temperature.inverse.item())
    assert inverses[0] == inverses[1] != 1


def test_views_and_held_out_labels_are_asked_for():
    assert (HardViewTemperature().labeled_views, HardViewTemperature().held_out) == (("strong",), 0.0)
    held_out = HardViewTemperature(holdout_fraction=0.2)
    assert (held_out.labeled_views, held_out.held_out) == ((), 0.2)


def test_eval_mode_and_batches_without_strong_labeled_views_change_nothing():
    step = step_of(HardViewTemperature())
    weak, before = step.batch.views["weak"], buffers(step.calibrate)
    step.calibrate.eval()
    step.confidence(weak, step.forward_weak(weak))
    step.calibrate.train()
    del step.batch.views["labeled_strong"]
    step.confidence(weak, step.forward_weak(weak))
    assert same(before, buffers(step.calibrate))


def test_a_run_feeds_it():
    options = {"steps": 6, "batch_size": 8, "unlabeled_ratio": 2, "device": "cpu", "precision": "fp32"}
    trainer = Trainer(SmallConv(4), FixMatch(), HardViewTemperature(sample_fraction=0.5), progress=False, **options)
    trainer.fit(load_ssl("digits", labels=40))
    assert trainer.state_.calibrator.temperature.strong.memory.filled == 6 * 4


def test_rebuilt_from_its_config_and_wrong_options_are_named():
    config = to_config(HardViewTemperature(sample_fraction=0.5))
    assert to_config(from_config(config, Calibrator)) == config
    with pytest.raises(OptionError, match="sample_fraction must be"):
        HardViewTemperature(sample_fraction=0.0)
    with pytest.raises(OptionError, match="holdout_fraction must be"):
        HardViewTemperature(holdout_fraction=1.0)

"""The one-file FixMatch + VCC gives the library's numbers on the library's batches."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from vcc_infuse import VCC, FixMatch, SmallConv, Trainer
from vcc_infuse.utils.seeding import seed_step

FILE = Path(__file__).parents[2] / "examples" / "fixmatch_vcc_one_file.py"
STEPS, THRESHOLD = 40, 0.85  # two passes through the pool, and a threshold that so short a run reaches
NEAR = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def one_file():
    spec = importlib.util.spec_from_file_location("fixmatch_vcc_one_file", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def copy_weights(target, source):
    """By position: the two networks have the same layers under different names."""
    source = source.state_dict().values()
    for ours, theirs in zip(target.state_dict().values(), source, strict=True):
        ours.copy_(theirs)


def library_trainer(digits):
    options = {"batch_size": 16, "unlabeled_ratio": 5, "precision": "fp32", "device": "cpu", "progress": False}
    trainer = Trainer(SmallConv(), FixMatch(threshold=THRESHOLD), VCC(), steps=STEPS, seed=3, **options)
    trainer.prepare(digits)
    return trainer


def record(state):
    """Lists that fill with the losses and the calibrated confidences of the library's steps."""
    losses, confidences = [], []
    plain = state.algorithm.losses

    def recorded(step):
        for terms in plain(step):
            losses.append({name: term.detach().clone() for name, term in terms.items()})
            yield terms

    state.algorithm.losses = recorded
    state.calibrator.register_forward_hook(lambda module, inputs, output: confidences.append(output.confidence))
    return losses, confidences


def train_both(one_file, digits):
    """The same steps with both; random draws agree because both start from the seed of the step."""
    trainer = library_trainer(digits)
    state = trainer.state_
    ours = one_file.FixMatchVCC(one_file.Net(), len(digits.split.pool), STEPS, THRESHOLD)
    for target, source in ((ours.model, state.model), (ours.ema, state.model), (ours.vae, state.calibrator.network)):
        copy_weights(target, source)
    losses, confidences = record(state)
    our_losses, our_confidences = [], []
    for number in range(STEPS):
        trainer.train_step(number)
        seed_step(3, number, 0)
        batch = trainer.batches_.at(number)
        views = batch.views["weak"], batch.views["strong"]
        terms, confidence = ours.train_step(number, batch.x, batch.y, *views, batch.pool_ids)
        our_losses.append({name: term.detach() for name, term in terms.items()})
        our_confidences.append(confidence)
    return SimpleNamespace(
        trainer=trainer, ours=ours, losses=losses, our_losses=our_losses,
        confidences=torch.stack(confidences), our_confidences=torch.stack(our_confidences),
    )  # fmt: skip


@pytest.fixture(scope="module")
def both(one_file, digits):
    return train_both(one_file, digits)


def test_every_loss_agrees(both):
    assert len(both.losses) == STEPS
    for theirs, ours in zip(both.losses, both.our_losses, strict=True):
        assert_close(ours, theirs, **NEAR)


def test_the_confidences_agree(both):
    assert_close(both.our_confidences, both.confidences, **NEAR)
    selected = (both.confidences >= THRESHOLD).float().mean(1)
    assert 0 < selected[-1] < 1  # the comparison covers both outcomes


def test_the_final_weights_agree(both):
    state = both.trainer.state_
    pairs = (both.ours.model, state.model), (both.ours.ema, state.ema.module), (both.ours.vae, state.calibrator.network)
    for ours, theirs in pairs:
        for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
            assert_close(a, b, **NEAR)


def test_the_predictions_agree(both, digits):
    predictor = both.trainer.predictor()
    theirs = predictor.predict(digits.dataset.test.x)
    images = both.trainer.state_.views("plain", torch.from_numpy(digits.dataset.test.x))
    labels, softmax, calibrated = both.ours.predict(images)
    assert torch.equal(labels, torch.as_tensor(theirs.labels))
    assert_close(softmax, torch.as_tensor(theirs.confidence), check_dtype=False, **NEAR)
    assert_close(calibrated, torch.as_tensor(theirs.calibrated), check_dtype=False, **NEAR)

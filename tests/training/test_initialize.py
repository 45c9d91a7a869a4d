"""Heads that start at a linear probe on the features of a network."""

import numpy as np
import pytest
import torch
from tests.helpers.images import striped

from vcc_infuse import MLP, FixMatch, Identity, SSLData, Timm, Trainer
from vcc_infuse.models.linear_probe import fit_probe, standardized_probe
from vcc_infuse.training.state import plain_features
from vcc_infuse.utils.io import read_jsonl

RUN = dict(
    steps=2, eval_every=2, batch_size=4, unlabeled_ratio=2, device="cpu", precision="fp32", progress=False, report=False
)


def prepared(data, model=None, **options):
    trainer = Trainer(model or Timm("test_resnet", weights="none"), FixMatch(), **{**RUN, **options})
    trainer.prepare(data)
    return trainer


@pytest.fixture(scope="module")
def data():
    return striped()


def features_of(trainer, data):
    """Features of all training images, from the images themselves."""
    model = trainer.state_.model
    training, images = model.training, torch.from_numpy(data.dataset.train.x)
    with torch.no_grad():
        features = model.eval().backbone(trainer.state_.views("plain", images))
    model.train(training)
    return features


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_the_head_is_the_probe_on_standardized_features_of_the_labeled_images(data, scale):
    state = (trainer := prepared(data, head_init="probe", head_scale=scale)).state_
    features = features_of(trainer, data)[torch.from_numpy(data.split.labeled)]
    probe = standardized_probe(features, torch.from_numpy(data.labeled_y), 3, seed=0)
    expected = scale * (features @ probe.weight.T + probe.bias)
    torch.testing.assert_close(state.model.head(features), expected, rtol=1e-3, atol=1e-2)
    assert state.model.training
    # The average, which is evaluated and saved, starts there too.
    assert torch.equal(state.ema.module.head.weight, state.model.head.weight)


def test_the_backbone_is_the_same_with_and_without_a_probe(data):
    plain, probed = prepared(data).state_.model, prepared(data, head_init="probe").state_.model
    left, right = plain.backbone.state_dict(), probed.backbone.state_dict()
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert not torch.equal(plain.head.weight, probed.head.weight)


def test_the_summary_has_the_error_of_the_probe_itself(data):
    """Whatever the scale of the logits; a run that starts at random has none."""
    trainer = prepared(data, head_init="probe", head_scale=5.0)
    with torch.no_grad():
        images = trainer.state_.views("plain", torch.from_numpy(data.dataset.test.x))
        wrong = trainer.state_.model.eval()(images).logits.argmax(1).numpy() != data.dataset.test.y
    summary = Trainer(Timm("test_resnet", weights="none"), FixMatch(), **RUN, head_init="probe").fit(data)
    assert summary["error_probe"] == pytest.approx(wrong.mean())
    assert "error_probe" not in Trainer(Timm("test_resnet", weights="none"), FixMatch(), **RUN).fit(data)


def test_without_a_test_set_there_is_no_error(data):
    alone = SSLData.from_arrays(data.dataset.train.x, np.where(np.arange(48) < 12, data.dataset.train.y, -1))
    assert prepared(alone, head_init="probe").state_.probe_error is None


def test_vectors_are_standardized_by_their_views_already():
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = (rng.normal(size=(40, 6)) + y[:, None]).astype(np.float32) * np.logspace(-2, 2, 6, dtype=np.float32)
    data = SSLData.from_arrays(x, np.where(np.arange(40) < 20, y, -1))
    trainer = prepared(data, Identity(), head_init="probe")
    features = features_of(trainer, data)[torch.from_numpy(data.split.labeled)]
    probe = fit_probe(features, torch.from_numpy(data.labeled_y), 2)
    torch.testing.assert_close(trainer.state_.model.head.weight.data, probe.weight, rtol=1e-3, atol=1e-4)


def test_plain_features_are_those_of_the_rows_in_order_and_leave_the_mode(data):
    trainer = prepared(data, freeze_bn=True)
    rows, modes = np.array([5, 2, 40]), [m.training for m in trainer.state_.model.modules()]
    found = plain_features(trainer.state_, trainer.state_.model, rows)
    torch.testing.assert_close(found, features_of(trainer, data)[torch.from_numpy(rows)], rtol=1e-4, atol=1e-4)
    assert [m.training for m in trainer.state_.model.modules()] == modes


def test_features_are_computed_in_bounded_pieces(data, monkeypatch):
    trainer, sizes = prepared(data), []
    monkeypatch.setattr("vcc_infuse.training.state.CHUNK", 10)
    trainer.state_.model.backbone.register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
    plain_features(trainer.state_, trainer.state_.model, np.arange(48))
    assert sizes == [10, 10, 10, 10, 8]


def test_a_resumed_run_does_not_start_at_the_probe_again(data, tmp_path):
    """The checkpoint's head wins over the probe's."""
    options = {**RUN, "steps": 4, "head_init": "probe", "out": str(tmp_path / "run")}
    trainer = Trainer(Timm("test_resnet", weights="none"), FixMatch(), **options)
    trainer.fit(data)
    weight = trainer.state_.model.head.weight.detach().clone()
    (tmp_path / "run" / "summary.json").unlink()
    again = Trainer(Timm("test_resnet", weights="none"), FixMatch(), **options)
    summary = again.fit(data, resume=True)
    assert torch.equal(again.state_.model.head.weight, weight)
    assert summary["error"] == read_jsonl(tmp_path / "run" / "metrics.jsonl").values[-1]["error"]
    assert summary["error_probe"] == trainer.state_.probe_error


def test_layers_that_are_still_random_get_no_probe_start_but_are_compared_with_one():
    """A probe on random hidden features would say nothing; the reference is that on the vectors themselves."""
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    x = (rng.normal(size=(3, 12))[y] * 2 + rng.normal(size=(90, 12))).astype(np.float32)
    shown = np.where(np.arange(90) < 30, y, -1)
    data = SSLData.from_arrays(x, shown, x, y)
    options = dict(steps=1, eval_every=1, batch_size=4, progress=False, head_init="probe", seed=0)
    linear, deep = Trainer(Identity(), FixMatch(), **options), Trainer(MLP((8,)), FixMatch(), **options)
    plain = Trainer(MLP((8,)), FixMatch(), **{**options, "head_init": "random"})
    for trainer in (linear, deep, plain):
        trainer.prepare(data)
    assert deep.state_.probe_error == linear.state_.probe_error
    assert torch.equal(deep.state_.model.head.weight, plain.state_.model.head.weight)
    assert not torch.equal(deep.state_.model.head.weight, torch.zeros_like(deep.state_.model.head.weight))

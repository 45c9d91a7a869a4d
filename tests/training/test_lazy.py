"""Whole runs with lazy strong views: those of eager runs where normalization allows it, and resumable bit for bit."""

import copy
import os
import signal

import numpy as np
import pytest
import torch
from tests.helpers.blobs import blobs
from tests.helpers.every import CALIBRATORS, RUN, differences, flat, lively, name
from tests.helpers.images import striped

from vcc_infuse import (
    MLP,
    CoMatch,
    Dash,
    DebiasPL,
    FixMatch,
    FlexMatch,
    FreeMatch,
    Identity,
    RandomOnline,
    SmallConv,
    SSLClassifier,
    SSLData,
    Supervised,
    Trainer,
)
from vcc_infuse.augment.views import ImageViews, SlotRows, VectorViews
from vcc_infuse.errors import OptionError
from vcc_infuse.training.config import TrainConfig
from vcc_infuse.training.interrupt import Interrupted

ROWS = RUN["batch_size"] * RUN["unlabeled_ratio"]


def vectors(axes=2):
    """Vectors of four classes, or rows of one plain, two weak and three strong views of them."""
    x, y = (part.numpy() for part in blobs(160, 12))
    x = (3 * x).astype(np.float32)
    if axes == 3:
        x = np.stack([x + 0.05 * slot * np.roll(x, slot, 1) for slot in range(6)], 1)
    labels = np.where(np.arange(120) < 16, y[:120], -1)
    return SSLData.from_arrays(x[:120], labels, x[120:], y[120:], **({"slots": (2, 3)} if axes == 3 else {}))


DATA = {
    "bank": (lambda: vectors(3), Identity),
    "vectors": (vectors, lambda: MLP((8,))),
    "images": (lambda: striped(side=8), lambda: SmallConv(4)),
}


def trained(kind, method, calibrator=None, selector=None, **options):
    data, model = DATA[kind]
    trainer = Trainer(model(), *copy.deepcopy((method, calibrator, selector)), **{**RUN, "lr": 0.1, **options})
    trainer.fit(data())
    return trainer


def assert_same_run(kind, *parts, **options):
    """Everything a run leaves behind, but the time; float32 rounds sums of fewer rows otherwise."""
    eager, lazy = (trained(kind, *parts, lazy=lazy, freeze_bn=True, **options) for lazy in (False, True))
    left, right = (flat({**run.state_.state_dict(), "last": run.last_metrics_}) for run in (eager, lazy))
    assert left.keys() == right.keys()
    for key, value in left.items():
        if isinstance(value, torch.Tensor | float | int):
            one, other = (torch.as_tensor(v, dtype=torch.float64) for v in (value, right[key]))
            assert torch.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True), key
    return lazy


@pytest.mark.parametrize(("kind", "threshold"), [("bank", 0.4), ("images", 0.7)])
@pytest.mark.parametrize(
    "method",
    [
        lambda least: FixMatch(threshold=least),
        lambda least: FreeMatch(min_threshold=least),
        lambda least: DebiasPL(FixMatch(threshold=least), momentum=0.5),
    ],
    ids=["FixMatch", "FreeMatch", "DebiasPL"],
)
@pytest.mark.parametrize("selector", [None, RandomOnline(every=2, keep=0.5)], ids=["pool", "core set"])
def test_a_lazy_run_is_the_eager_run(kind, threshold, method, selector):
    """The same views, because what is random about a row is drawn before it is known which rows count."""
    lazy = assert_same_run(kind, method(threshold), None, selector, steps=24 if selector else 12)
    assert 0 < lazy.last_metrics_["pseudo_label_coverage"] < 1


def test_a_warm_up_without_unlabeled_images():
    assert_same_run("images", Dash(warmup_steps=3, warmup_fraction=0.5))


@pytest.mark.parametrize("calibrator", CALIBRATORS, ids=name)
def test_with_every_calibrator(calibrator):
    assert_same_run("bank", FlexMatch(threshold=0.4), lively(calibrator), steps=8)


def test_in_micro_batches():
    assert_same_run("images", FlexMatch(threshold=0.4), micro_batch=5)


def test_only_rows_that_count_are_augmented(monkeypatch):
    made, make = [], ImageViews._made

    def count(views, raw, draws, recipe):
        made.append(len(raw) if recipe == views.recipes.strong else 0)
        return make(views, raw, draws, recipe)

    monkeypatch.setattr(ImageViews, "_made", count)
    run = trained("images", FixMatch(threshold=0.36), lazy=True)
    assert sum(made) == pytest.approx(ROWS * RUN["steps"] * run.last_metrics_["pseudo_label_coverage"])
    assert 0 < sum(made) < ROWS * RUN["steps"]


def test_only_slots_that_count_are_read(monkeypatch):
    read, at = [], SlotRows.at
    monkeypatch.setattr(SlotRows, "at", lambda rows, slots: read.append(slots) or at(rows, slots))
    run = trained("bank", FixMatch(threshold=0.4), lazy=True)
    strong = torch.cat([slots[slots >= 3] for slots in read])
    assert len(strong) == pytest.approx(ROWS * RUN["steps"] * run.last_metrics_["pseudo_label_coverage"])
    assert 0 < len(strong) < ROWS * RUN["steps"]
    assert len(torch.cat(read)) == len(strong) + (ROWS + RUN["batch_size"]) * RUN["steps"]


def test_noise_is_drawn_for_rows_that_count(monkeypatch):
    made, strong = [], VectorViews.strong
    monkeypatch.setattr(VectorViews, "strong", lambda views, raw: made.append(len(raw)) or strong(views, raw))
    run = trained("vectors", FixMatch(threshold=0.5), lazy=True)
    assert sum(made) == pytest.approx(ROWS * RUN["steps"] * run.last_metrics_["pseudo_label_coverage"])
    assert 0 < sum(made) < ROWS * RUN["steps"]


@pytest.mark.parametrize("kind", ["bank", "vectors", "images"])
def test_a_run_without_any_confident_label(kind):
    run = trained(kind, FixMatch(threshold=1.0), lazy=True, lr=1e-4)
    assert run.last_metrics_["pseudo_label_coverage"] == 0
    assert run.last_metrics_["loss_unlabeled"] == 0


def test_in_half_precision():
    lazy, eager = (
        trained("images", FixMatch(threshold=0.36), lazy=lazy, freeze_bn=True, precision="bf16") for lazy in (1, 0)
    )
    assert lazy.last_metrics_["loss_unlabeled"] == pytest.approx(eager.last_metrics_["loss_unlabeled"], rel=0.02)


class Cut(Trainer):
    """Gets a signal in its third step."""

    def train_step(self, number):
        super().train_step(number)
        if number == 2:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("kind", ["bank", "vectors", "images"])
def test_a_resumed_run_ends_bit_identical(kind, tmp_path):
    data, model = DATA[kind]
    options = {**RUN, "lazy": True, "report": False}
    whole = trained(kind, FlexMatch(threshold=0.4), lively(CALIBRATORS[0]), lr=0.03, lazy=True)
    method = (FlexMatch(threshold=0.4), lively(CALIBRATORS[0]))
    with pytest.raises(Interrupted):
        Cut(model(), *method, lr=0.03, out=str(tmp_path), **options).fit(data())
    resumed = Trainer(model(), *method, lr=0.03, out=str(tmp_path), **options)
    resumed.fit(data(), resume=True)
    assert differences(whole.state_.state_dict(), resumed.state_.state_dict()) == []


@pytest.mark.parametrize(("method", "called"), [(CoMatch(), "CoMatch"), (Supervised(), "Supervised")])
def test_methods_that_need_all_or_no_strong_views_are_refused(method, called):
    with pytest.raises(OptionError, match=f"^lazy must be false for {called}, .* or choose a method such as FixMatch$"):
        Trainer(MLP(), method, lazy=True)
    Trainer(MLP(), method)


def test_joint_statistics_are_refused():
    with pytest.raises(OptionError, match=r"^lazy must be false with joint_bn"):
        TrainConfig(lazy=True, joint_bn=True)


def test_the_estimator_takes_the_option():
    x, y = (part.numpy() for part in blobs(60, 12))
    y[20:] = -1
    fitted = SSLClassifier(MLP((8,)), steps=3, batch_size=4, unlabeled_ratio=2, lazy=True).fit(x, y)
    assert fitted.predictor_.predict(x.astype(np.float32)).labels.shape == (60,)
    with pytest.raises(OptionError, match="lazy must be false for CoMatch"):
        SSLClassifier(MLP((8,)), CoMatch(), steps=3, lazy=True).fit(x, y)

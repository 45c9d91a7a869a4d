"""A loss that is not finite, and what a run warns of."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from vcc_infuse import MLP, FixMatch, SSLData, Trainer, UserError
from vcc_infuse.data.dataset import Examples
from vcc_infuse.training.config import TrainConfig
from vcc_infuse.training.nonfinite import LossWatch, find_cause
from vcc_infuse.training.summary import about_metrics, only_class, overlap
from vcc_infuse.types import Batch, Losses

QUICK = dict(steps=12, eval_every=4, batch_size=4, unlabeled_ratio=2, progress=False, report=False, device="cpu")


def data(seed=0, rows=60):
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % 3
    x = (rng.normal(size=(rows, 6)) + 3 * y[:, None]).astype(np.float32)
    return SSLData.from_arrays(x, np.where(np.arange(rows) < 12, y, -1), x[:30] + 0.5, y[:30])


class Spoiled(FixMatch):
    """NaN in some steps, as a method with a bug would have."""

    bad = ()

    def losses(self, step):
        for terms in super().losses(step):
            if step.number in self.bad:
                terms["labeled"] = terms["labeled"] * float("nan")
            yield terms


def spoiled(*steps):
    method = Spoiled()
    method.bad = steps
    return method


def fit(out, method=None, **options):
    trainer = Trainer(MLP(hidden=(8,)), method or FixMatch(), out=str(out), **{**QUICK, **options})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trainer, trainer.fit(data())


def weights(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.state_.model.parameters()])


def test_a_high_learning_rate_is_named_and_the_good_checkpoint_stays(tmp_path):
    with pytest.raises(UserError, match=r"in step \d+ \(labeled .*learning rate is too high; try lr 100000 instead"):
        fit(tmp_path / "run", lr=1e6)
    with pytest.raises(UserError, match=r"not finite in step 6 \(labeled nan.*keeps its checkpoint of step 4"):
        fit(tmp_path / "late", spoiled(6))
    assert [p.name for p in (tmp_path / "late" / "checkpoints").glob("*.pt")] == ["step-000000004.pt"]
    assert len((tmp_path / "late" / "metrics.jsonl").read_text().splitlines()) == 1


def test_before_the_first_update_the_learning_rate_is_not_blamed(tmp_path):
    with pytest.raises(UserError, match="no update was made yet, so look at the term labeled"):
        fit(tmp_path / "run", spoiled(0))


def test_the_cause_is_the_input_the_decay_or_the_precision():
    x = torch.ones(2, 3)
    batch = Batch(x, torch.zeros(2), torch.zeros(2), {"weak": x}, torch.zeros(2), torch.ones(2))
    poisoned = batch._replace(views={"weak": torch.tensor([[1.0, float("nan"), 1.0], [1.0, 1.0, 1.0]])})
    config, terms = TrainConfig(lr=0.1), {"labeled": float("inf")}
    assert "1 weak inputs of its batch hold NaN" in find_cause(5, poisoned, terms, "no", config)
    assert "lower weight_decay" in find_cause(5, batch, terms, "no", config.updated(weight_decay=100.0))
    assert "precision fp32" in find_cause(5, batch, terms, "fp16", config)
    assert "try lr 0.01 instead of 0.1" in find_cause(5, batch, terms, "bf16", config)


def test_skip_leaves_out_the_update_of_a_batch(tmp_path):
    trainer, summary = fit(tmp_path / "run", spoiled(3, 7), on_nan="skip")
    assert "2 batches were left out" in summary["warnings"][0]
    assert weights(trainer).isfinite().all()

    trainer.prepare(data())
    for number in range(3):
        trainer.train_step(number)
    before = {k: v.clone() for k, v in trainer.state_.model.state_dict().items()}
    trainer.train_step(3)
    assert all(torch.equal(before[k], v) for k, v in trainer.state_.model.state_dict().items())
    trainer.train_step(4)
    assert any(not torch.equal(before[k], v) for k, v in trainer.state_.model.state_dict().items())


def test_skip_gives_up_where_no_batch_is_finite(tmp_path):
    with pytest.raises(UserError, match="leaving out 20 batches did not help"):
        fit(tmp_path / "run", spoiled(*range(100)), on_nan="skip", steps=60)


def test_skip_and_stop_train_the_same_where_nothing_happens(tmp_path):
    one, _ = fit(tmp_path / "a")
    other, _ = fit(tmp_path / "b", on_nan="skip")
    assert torch.equal(weights(one), weights(other))


class Once(Spoiled):
    """NaN in step 6 at the full learning rate only."""

    trainer = None

    def losses(self, step):
        self.bad = (6,) if self.trainer.state_.counters.lr_scale == 1 else ()
        yield from super().losses(step)


def once(out, **options):
    method = Once()
    Once.trainer = trainer = Trainer(MLP(hidden=(8,)), method, out=str(out), **{**QUICK, **options})
    return trainer


@pytest.fixture
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    Once.trainer = None


@pytest.mark.usefixtures("quiet")
def test_rollback_continues_from_the_checkpoint_with_half_the_rate_and_resumes_the_same(tmp_path):
    trainer = once(tmp_path / "run", on_nan="rollback")
    summary = trainer.fit(data())
    assert "went back to step 4, and lr is × 0.5" in summary["warnings"][0]
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [4, 8, 12]

    stopped = once(tmp_path / "again", on_nan="rollback")
    step = stopped.train_step

    def interrupt(number):
        if stopped.state_.counters.lr_scale < 1 and number == 6:
            raise KeyboardInterrupt
        step(number)

    stopped.train_step = interrupt
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(data())
    resumed = once(tmp_path / "again", on_nan="rollback")
    assert resumed.fit(data(), resume=True)["warnings"] == summary["warnings"]
    assert torch.equal(weights(resumed), weights(trainer))


def test_rollback_needs_a_folder_and_gives_up(tmp_path):
    with pytest.raises(UserError, match="on_nan needs a run folder"):
        TrainConfig(on_nan="rollback")
    with pytest.raises(UserError, match=r"also with lr × 0.03125"):
        fit(tmp_path / "run", spoiled(2), on_nan="rollback")


def test_the_watch_keeps_the_first_bad_step():
    watch = LossWatch(torch.device("cpu"))
    for number, value in enumerate([1.0, 2e6, float("nan")]):
        watch.see(number, Losses(labeled=torch.tensor(value), other=torch.tensor(0.5)))
    assert watch.found() == 1
    assert watch.values() == {"labeled": 2e6, "other": 0.5}
    watch.reset()
    watch.see(7, Losses(labeled=torch.tensor(9e5)))
    assert watch.found() is None


def test_test_images_among_the_training_images_are_counted():
    x = np.random.default_rng(0).integers(0, 255, (20, 4, 4, 1), dtype=np.uint8)
    test = Examples(np.concatenate([x[3:5], 255 - x[:3]]), np.zeros(5, np.int64), list("abcde"))
    assert overlap(Examples(x, np.zeros(20, np.int64)), np.arange(20), test) == (2, "a")
    assert overlap(Examples(x, np.zeros(20, np.int64)), np.array([0, 1, 4]), test) == (1, "b")


def test_a_test_set_that_was_trained_on_is_said_on_the_screen_and_in_the_summary(tmp_path):
    own = data()
    same = replace(own, dataset=replace(own.dataset, test=Examples(own.dataset.train.x[:30], np.arange(30) % 3)))
    trainer = Trainer(MLP(hidden=(8,)), FixMatch(), **QUICK)
    with pytest.warns(UserWarning, match="30 of 30 test images are also training images"):
        summary = trainer.fit(same)
    assert any("also training images" in text for text in summary["warnings"])


def test_no_coverage_and_a_single_class_are_worth_a_warning():
    found = list(
        about_metrics({"pseudo_label_coverage": 0.0, "error_per_class": [1.0, 0.0, 1.0]}, 100, ("a", "b", "c"))
    )
    assert len(found) == 2
    assert "threshold" in found[0]
    assert "'b' for every image" in found[1]
    assert (
        list(about_metrics({"pseudo_label_coverage": 0.1, "error_per_class": [1.0, 0.0, 0.9]}, 100, ("a", "b", "c")))
        == []
    )
    assert list(about_metrics({"pseudo_label_coverage": 0.0}, 10, ("a", "b"))) == []
    assert only_class({"pseudo_label_share_per_class": [0.0, 1.0]}, ("a", "b")) == "b"
    assert only_class({"error_per_class": [0.0, 0.0]}, ("a", "b")) is None


def test_an_empty_pool_is_one_line():
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    own = SSLData.from_arrays(x, np.arange(8) % 2)
    empty = replace(own, split=replace(own.split, pool=np.empty(0, np.int64)))
    with pytest.raises(UserError, match="no unlabeled image is left for FixMatch.*show fewer labels"):
        Trainer(MLP(), FixMatch(), **QUICK).fit(empty)

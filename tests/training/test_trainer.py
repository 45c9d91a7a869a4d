import json
import math
import sys

import numpy as np
import pytest
import torch
from tests.helpers.tiny import same

from vcc_infuse import (
    INFUSE,
    MLP,
    VCC,
    EarlyStop,
    FixMatch,
    FlexMatch,
    FullShort,
    FullySupervised,
    PseudoLabel,
    Random,
    RandomOnline,
    RobustINFUSE,
    SmallConv,
    SSLData,
    Supervised,
    Trainer,
    UserError,
)
from vcc_infuse.calibrators import Calibrator
from vcc_infuse.models.classifier import EMA
from vcc_infuse.training import trainer as trainer_module
from vcc_infuse.training.interrupt import Interrupted
from vcc_infuse.training.summary import peak_memory
from vcc_infuse.utils.serialization import load_state

SMALL = dict(steps=12, eval_every=4, batch_size=8, unlabeled_ratio=2, progress=False)


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def lines(folder):
    found = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in found]


def test_run_folder_is_complete(tmp_path, digits):
    summary = Trainer(SmallConv(4), FixMatch(), out=str(tmp_path / "run"), tracker="tensorboard", **SMALL).fit(digits)
    run = tmp_path / "run"
    names = {p.name for p in run.iterdir()}
    assert {"config.yaml", "metrics.jsonl", "summary.json", "model.safetensors", "model.json", "checkpoints"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)
    written = json.loads((run / "summary.json").read_text())
    promised = """error error_best ece mce ace nll ece_calibrated mce_calibrated ace_calibrated pseudo_label_coverage
        pseudo_label_precision per_class abstain advice steps seconds_train seconds_select images_per_second peak_rss_mb
        coreset_size seed versions""".split()
    assert set(promised) <= set(written)
    assert written["steps"] == 12
    assert written["error"] == summary["error"]
    assert written["ece"] == written["ece_calibrated"]
    assert [line["step"] for line in lines(run)] == [4, 8, 12]
    assert len(lines(run)[0]["reliability"]["count"]) == 15


def test_training_on_a_separable_problem_succeeds():
    rng = np.random.RandomState(0)
    centers = rng.randn(3, 10) * 4
    y = rng.randint(0, 3, 600)
    x = (centers[y] + rng.randn(600, 10)).astype(np.float32)
    hidden = y.copy()
    hidden[30:] = -1
    data = SSLData.from_arrays(x, hidden, x[300:], y[300:])
    summary = Trainer(MLP((32,)), FixMatch(), **{**SMALL, "steps": 100}).fit(data)
    assert summary["error"] < 0.05


def test_same_seed_same_weights_and_another_seed_others(tmp_path, digits):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        Trainer(SmallConv(4), FixMatch(), out=str(tmp_path / name), seed=seed, **SMALL).fit(digits)
    a, b, c = (weights(tmp_path / name) for name in "abc")
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert any(not torch.equal(a[k], c[k]) for k in a)


class Stopper:
    """Mixed into a method: sends SIGTERM in the middle of a run."""

    at = 7

    def losses(self, step):
        if step.number == self.at:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGTERM)
        yield from super().losses(step)


@pytest.mark.parametrize("method", [FixMatch, PseudoLabel, Supervised])
def test_a_resumed_run_ends_bit_identical(tmp_path, digits, method):
    stopping = type("Stopping", (Stopper, method), {})
    with pytest.raises(Interrupted, match="after step 8 of 12.*--resume"):
        Trainer(SmallConv(4), stopping(), out=str(tmp_path / "cut"), **SMALL).fit(digits)
    Trainer(SmallConv(4), method(), out=str(tmp_path / "cut"), **SMALL).fit(
        digits, resume=True, force=True
    )  # without the class that stops
    Trainer(SmallConv(4), method(), out=str(tmp_path / "whole"), **SMALL).fit(digits)
    cut, whole = weights(tmp_path / "cut"), weights(tmp_path / "whole")
    assert all(torch.equal(cut[k], whole[k]) for k in whole)
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")


def test_resume_between_evaluations_and_after_a_lost_checkpoint(tmp_path, digits):
    """Stopped between evaluations, then the newest checkpoint is damaged: the one before it must do."""
    stopping = type("Stopping", (Stopper, FixMatch), {"at": 9})
    with pytest.raises(Interrupted):
        Trainer(SmallConv(4), stopping(), out=str(tmp_path / "cut"), **SMALL).fit(digits)
    (tmp_path / "cut" / "checkpoints" / "step-000000010.pt").write_bytes(b"rubbish")
    with pytest.warns(UserWarning, match="damaged"):
        Trainer(SmallConv(4), FixMatch(), out=str(tmp_path / "cut"), **SMALL).fit(digits, resume=True, force=True)
    Trainer(SmallConv(4), FixMatch(), out=str(tmp_path / "whole"), **SMALL).fit(digits)
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")


def test_killed_between_the_last_evaluation_and_the_summary(tmp_path, digits):
    run = tmp_path / "run"
    first = Trainer(SmallConv(4), FixMatch(threshold=0.2), out=str(run), **SMALL).fit(digits)
    before = lines(run)
    (run / "summary.json").unlink()
    second = Trainer(SmallConv(4), FixMatch(threshold=0.2), out=str(run), **SMALL).fit(digits, resume=True)
    assert lines(run) == before
    for name in ("error", "ece", "pseudo_label_coverage", "pseudo_label_precision", "error_best"):
        assert first[name] == second[name]


def test_finished_results_are_never_overwritten(tmp_path, digits):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").write_text("x")
    with pytest.raises(UserError, match="already holds files"):
        Trainer(SmallConv(4), FixMatch(), out=str(tmp_path / "run"), **SMALL).fit(digits)
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["precious"]


def test_evaluation_uses_the_averaged_weights(digits):
    trainer = Trainer(SmallConv(4), FixMatch(), **SMALL)
    summary = trainer.fit(digits)
    ema: EMA = trainer.state_.ema
    test = digits.dataset.test
    with torch.no_grad():
        logits = ema.module(trainer.state_.views("plain", torch.from_numpy(test.x))).logits
    assert summary["error"] == pytest.approx((logits.argmax(1) != torch.from_numpy(test.y)).double().mean().item())
    assert any(
        not torch.equal(a, b) for a, b in zip(ema.module.parameters(), trainer.state_.model.parameters(), strict=True)
    )


def test_fully_supervised_sees_every_label(digits):
    summary = Trainer(SmallConv(4), FullySupervised(), **SMALL).fit(digits)
    assert summary["labels"] == len(digits.dataset.train)


def test_hidden_labels_never_change_the_result(digits):
    """Truth is for measuring only: shuffling the pool's hidden labels must leave the weights as they are."""
    from dataclasses import replace

    y = digits.dataset.train.y.copy()
    rest = np.setdiff1d(np.arange(len(y)), digits.split.labeled)
    y[rest] = np.random.RandomState(0).permutation(y[rest])
    other = replace(digits, dataset=replace(digits.dataset, train=replace(digits.dataset.train, y=y)))
    runs = []
    for data in (digits, other):
        trainer = Trainer(SmallConv(4), FixMatch(threshold=0.2), **SMALL)
        runs.append((trainer.fit(data), trainer.state_.model.state_dict()))
    (first, a), (second, b) = runs
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert first["pseudo_label_precision"] != second["pseudo_label_precision"]


def test_batchnorm_joint_forward_is_an_option(digits):
    errors = [Trainer(SmallConv(4), FixMatch(), joint_bn=joint, **SMALL).fit(digits)["nll"] for joint in (False, True)]
    assert errors[0] != errors[1]
    assert all(math.isfinite(e) for e in errors)


def test_bf16_runs(digits):
    summary = Trainer(SmallConv(4), FixMatch(), precision="bf16", **SMALL).fit(digits)
    assert summary["precision"] == "bf16"
    assert math.isfinite(summary["nll"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"steps": 2.5}, "steps must be an integer of at least 1, got 2.5"),
        ({"eval_every": 0}, "eval_every must be an integer of at least 1, got 0"),
        ({"batch_size": -1}, "batch_size must be an integer of at least 1, got -1"),
        ({"unlabeled_ratio": 0}, "unlabeled_ratio must be an integer of at least 1, got 0"),
        ({"lr": float("nan")}, "lr must be a finite number of at least 0, got nan"),
        ({"ema_decay": 1.0}, r"ema_decay must be a number in \[0, 1\), got 1.0"),
        ({"seed": -1}, "seed must be an integer from 0 to 4294967295, got -1"),
        ({"schedule": "linear"}, "schedule must be one of cosine, constant, got 'linear'"),
        ({"precision": "fp64"}, "precision must be one of auto, fp32, bf16, fp16, got 'fp64'"),
        ({"tracker": "mlflow"}, "tracker must be one of none, tensorboard, wandb, got 'mlflow'"),
        ({"tracker": "tensorboard"}, "tracker needs a run folder, got 'tensorboard'; set out"),
        ({"epochs": 3}, "epochs is not an option of TrainConfig"),
        ({"batchsize": 3}, "batchsize is not an option of TrainConfig; did you mean batch_size"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        Trainer(SmallConv(4), FixMatch(), **{**SMALL, **options})


def test_a_calibrator_without_confidence_is_refused():
    with pytest.raises(UserError, match="Supervised selects nothing by confidence"):
        Trainer(SmallConv(4), Supervised(), Calibrator(), **SMALL)


def test_a_diverging_run_says_so(digits):
    with pytest.raises(UserError, match="learning rate is too high; try lr 1e\\+29 instead of 1e\\+30"):
        Trainer(SmallConv(4), FixMatch(), lr=1e30, **SMALL).fit(digits)


def test_a_users_own_module_serves_as_backbone(digits):
    own = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU())
    assert Trainer(own, FixMatch(), **SMALL).fit(digits)["error"] < 1


def test_keeping_everything_is_plain_training(digits):
    runs = []
    for selector in (None, INFUSE(keep=1.0)):
        trainer = Trainer(SmallConv(4), FlexMatch(), None, selector, **SMALL)
        trainer.fit(digits)
        runs.append(trainer.state_.model.state_dict())
    assert all(torch.equal(runs[0][k], runs[1][k]) for k in runs[0])


def test_a_selector_shortens_the_run_and_bounds_the_pool(tmp_path, digits):
    seen = set()

    class Spy(FixMatch):
        def losses(self, step):
            seen.update(step.batch.pool_ids.tolist())
            yield from super().losses(step)

    out = tmp_path / "run"
    options = {**SMALL, "steps": 100, "batch_size": 16, "unlabeled_ratio": 7}
    summary = Trainer(SmallConv(4), Spy(threshold=0.1), None, Random(keep=0.2), out=str(out), **options).fit(digits)
    assert summary["steps"] == 20
    assert summary["coreset_size"] == round(0.2 * len(digits.split.pool))
    assert len(seen) == summary["coreset_size"]
    chosen = np.load(out / "coresets" / "step-000000000.npz", allow_pickle=False)["ids"]
    assert seen == set(chosen.tolist())


@pytest.mark.parametrize(
    "selector", [RobustINFUSE(keep=0.5, every=4, score_momentum=0.5), RandomOnline(keep=0.5, every=4)]
)
def test_a_run_with_selector_and_vcc_resumes_in_mid_interval(tmp_path, digits, selector):
    options = {**SMALL, "steps": 24}
    stopping = type("Stopping", (Stopper, FlexMatch), {"at": 6})
    with pytest.raises(Interrupted):
        Trainer(SmallConv(4), stopping(), VCC(), selector, out=str(tmp_path / "cut"), **options).fit(digits)
    for name, resume in (("cut", True), ("whole", False)):
        Trainer(SmallConv(4), FlexMatch(), VCC(), selector, out=str(tmp_path / name), **options).fit(
            digits, resume=resume, force=resume
        )
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    chosen = [read_selections(tmp_path / name) for name in ("cut", "whole")]
    assert chosen[0] == chosen[1]
    assert [line["step"] for line in chosen[0]] == [0, 4, 8]


def read_selections(folder):
    found = [json.loads(text) for text in (folder / "selections.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in found]


def test_the_last_learning_rate(digits):
    for selector, length in ((FullShort(keep=0.5), 12), (EarlyStop(keep=0.5), 24)):
        trainer = Trainer(SmallConv(4), FixMatch(), None, selector, **{**SMALL, "steps": 24})
        trainer.fit(digits)
        rate = trainer.state_.optimizer.param_groups[0]["lr"]
        assert rate == pytest.approx(0.03 * math.cos(7 * math.pi * 11 / (16 * length)))


def test_a_selector_without_a_pool_is_refused():
    with pytest.raises(UserError, match="Supervised uses no unlabeled images"):
        Trainer(SmallConv(4), Supervised(), None, INFUSE(), **SMALL)


def test_a_checkpoint_of_another_version_is_refused_in_one_line(digits):
    trainer = Trainer(SmallConv(4), FixMatch(), VCC(), **SMALL)
    trainer.fit(digits)
    state = trainer.state_.state_dict()
    trainer.state_.load_state_dict(state)
    state["calibrator"].pop("queue.pushed")
    with pytest.raises(UserError, match="--resume: the checkpoint's calibrator is from another version; start again"):
        trainer.state_.load_state_dict(state)


def test_another_fault_while_resuming_keeps_its_name():
    """A device that is full is no other version."""

    class Full:
        def load_state_dict(self, state):
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        load_state(Full(), {}, "another version")


@pytest.mark.parametrize("device", ["gpu", "cuda:0", "mps"])
def test_a_device_that_is_not_there_is_refused(digits, device):
    if device != "gpu" and torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator")
    with pytest.raises(UserError, match=f"device must be .* got '{device}'"):
        Trainer(SmallConv(4), FixMatch(), device=device, **SMALL).fit(digits)


def test_the_resource_module_is_not_needed(monkeypatch):
    """It does not exist on Windows."""
    monkeypatch.setitem(sys.modules, "resource", None)
    assert peak_memory() is None
    monkeypatch.undo()
    assert peak_memory() > 10


@pytest.mark.parametrize("selector", [None, RandomOnline(keep=0.5), INFUSE(keep=1.0)])
def test_an_influence_direction_is_stored_only_for_a_selector_that_has_one(tmp_path, digits, selector, monkeypatch):
    asked = []
    original = INFUSE.direction
    monkeypatch.setattr(INFUSE, "direction", lambda self, pool: asked.append(1) or original(self, pool))
    Trainer(SmallConv(4), FixMatch(), None, selector, out=str(tmp_path / "run"), **SMALL).fit(digits)
    wanted = isinstance(selector, INFUSE)
    assert ("direction" in weights(tmp_path / "run")) == wanted
    assert bool(asked) == wanted


def test_no_process_leaves_before_the_first_has_written(monkeypatch):
    """One that torch aborts as it ends would take the others with it, and their unwritten results."""
    trainer = Trainer(SmallConv(4), FixMatch(), steps=1, eval_every=1, batch_size=2, unlabeled_ratio=1, progress=False)
    trainer.prepare(SSLData.from_arrays(np.zeros((8, 8, 8, 1), np.uint8), [0, 1] * 2 + [-1] * 4))
    done = []
    monkeypatch.setattr(trainer_module, "wait_for_everyone", lambda accelerator: done.append("waited"))
    monkeypatch.setattr(trainer.state_.accelerator, "end_training", lambda: done.append("left"))
    trainer.close()
    assert done == ["waited", "left"]

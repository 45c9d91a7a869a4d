"""A finished run gets more steps, and a run starts from the weights of another."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from tests.helpers.images import striped

from vcc_infuse import MLP, FixMatch, Predictor, SmallConv, SSLData, Timm, Trainer, UserError
from vcc_infuse.bank.bank import BankConfig
from vcc_infuse.bank.embed import embed_data, head
from vcc_infuse.cli.main import main

DATA = "train --data digits --labels 40 --model SmallConv --model.width 4"
QUICK = "--eval_every 3 --batch_size 8 --unlabeled_ratio 2 --progress false --report false --device cpu"


def train(words):
    assert main(f"{DATA} {QUICK} {words}".split()) == 0


def weights(folder):
    return load_file(folder / "model.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of 6 steps and one of 12 at a constant learning rate."""
    folder = tmp_path_factory.mktemp("runs")
    for steps in (6, 12):
        train(f"--schedule constant --steps {steps} --out {folder}/{steps}")
    return folder


def copied(folder, target):
    shutil.copytree(folder, target)
    return target


def test_an_extended_run_is_the_longer_run(runs, tmp_path, capsys):
    """Bit for bit, where neither the schedule nor the method depends on the number of steps."""
    run = copied(runs / "6", tmp_path / "run")
    assert main(f"train --resume {run} --steps 12".split()) == 0
    assert f"run folder: {run}" in capsys.readouterr().out
    assert same(weights(run), weights(runs / "12"))
    assert (run / "config.yaml").read_text() == (runs / "12" / "config.yaml").read_text()
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == [3, 6, 9, 12]
    assert json.loads((run / "summary.json").read_text())["steps"] == 12


def test_an_interrupted_extension_continues(runs, tmp_path, monkeypatch):
    run, step = copied(runs / "6", tmp_path / "run"), Trainer.train_step

    def stop(self, number):
        if number == 10:
            raise KeyboardInterrupt
        step(self, number)

    monkeypatch.setattr(Trainer, "train_step", stop)
    assert main(f"train --resume {run} --steps 12".split()) == 130
    monkeypatch.setattr(Trainer, "train_step", step)
    assert not (run / "summary.json").exists()
    assert main(f"train --resume {run}".split()) == 0
    assert same(weights(run), weights(runs / "12"))


def test_the_cosine_continues_at_its_place_in_the_longer_run(digits, tmp_path):
    options = dict(batch_size=8, unlabeled_ratio=2, progress=False, device="cpu", report=False, out=str(tmp_path))
    Trainer(SmallConv(4), steps=4, **options).fit(digits)
    longer = Trainer(SmallConv(4), steps=8, **options)
    assert longer.fit(digits, resume=True)["steps"] == 8
    rate = longer.state_.optimizer.param_groups[0]["lr"]
    assert rate == pytest.approx(0.03 * math.cos(7 * math.pi * 7 / (16 * 8)))
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["steps"] == 8


@pytest.mark.parametrize("words", ["--selector INFUSE --selector.keep 0.5", "--calibrator TemperatureScaling"])
def test_other_parts_are_extended_too(words, tmp_path):
    train(f"{words} --steps 6 --out {tmp_path}/run")
    assert main(f"train --resume {tmp_path}/run --steps 20".split()) == 0
    expected = 10 if "keep" in words else 20
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "this run is finished; its metrics are in"),
        ("", "--steps N extends it to N steps"),
        ("--steps 6", "--steps 6 must be more than the 6 of"),
        ("--steps many", "--steps must be an integer, got 'many'"),
        ("--steps 12 --lr 1", "so --lr cannot change"),
    ],
)
def test_mistakes_of_an_extension(words, message, runs, capsys):
    before = (runs / "6" / "summary.json").read_text()
    assert main(f"train --resume {runs}/6 {words}".split()) == 2
    assert message in capsys.readouterr().err
    assert (runs / "6" / "summary.json").read_text() == before


def test_what_cannot_be_extended(runs, tmp_path, capsys):
    run = copied(runs / "6", tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    assert main(f"train --resume {run} --steps 12".split()) == 2
    assert f"there is no checkpoint to extend; start from it with --init {run}" in capsys.readouterr().err
    train(f"--algorithm LinearProbe --out {tmp_path}/probe")
    assert main(f"train --resume {tmp_path}/probe --steps 12".split()) == 2
    assert "its method has no steps to extend" in capsys.readouterr().err


OPTIONS = dict(steps=2, batch_size=6, unlabeled_ratio=2, progress=False, device="cpu", report=False)


def inverted(data):
    """Other images of the same classes."""
    d = data.dataset
    x, y = 255 - d.train.x, np.where(np.isin(np.arange(len(d.train)), data.split.labeled), d.train.y, -1)
    return SSLData.from_arrays(x, y, 255 - d.test.x, d.test.y)


def prepared(model, data, **options):
    trainer = Trainer(model, FixMatch(), **OPTIONS, **options)
    trainer.prepare(data)
    return trainer.state_


def test_a_run_starts_at_another(tmp_path, capsys):
    data = striped()
    Trainer(SmallConv(4), out=str(tmp_path / "run"), **OPTIONS).fit(data)
    saved = Predictor.load(tmp_path / "run")
    state = prepared(SmallConv(4), inverted(data), init=str(tmp_path / "run"), head_init="probe")
    assert same(state.model.state_dict(), saved.model.state_dict())
    assert same(state.ema.module.state_dict(), saved.model.state_dict())
    torch.testing.assert_close(state.views.mean, saved.views.mean)
    assert "anew" not in capsys.readouterr().err


def test_with_other_classes_the_head_starts_anew(tmp_path, capsys):
    data = striped()
    Trainer(SmallConv(4), out=str(tmp_path / "run"), **OPTIONS).fit(data)
    saved = Predictor.load(tmp_path / "run")
    d = data.dataset
    two = SSLData.from_arrays(d.train.x, d.train.y % 2, classes=["left", "right"])
    state = prepared(SmallConv(4), two, init=str(tmp_path / "run"))
    assert same(state.model.backbone.state_dict(), saved.model.backbone.state_dict())
    assert state.model.head.out_features == 2
    assert capsys.readouterr().err.count("its classes are not those of the data, so the head starts from scratch") == 1


def test_a_bank_starts_at_another_run_on_its_network(tmp_path):
    encoder, cache = Timm("test_resnet", weights="none"), str(tmp_path / "cache")
    data = embed_data(striped(), encoder, BankConfig(head="mlp"), cache=cache, progress=False)
    trainer = Trainer(head(BankConfig(head="mlp")), out=str(tmp_path / "run"), **OPTIONS)
    trainer.fit(data)
    state = prepared(MLP((256,)), data, init=str(tmp_path / "run"))
    assert same(state.model.state_dict(), trainer.state_.ema.module.state_dict())
    other = embed_data(striped(), Timm("test_vit", weights="none"), cache=cache,
                       progress=False)  # fmt: skip
    with pytest.raises(UserError, match="its features come from another network"):
        prepared(head(), other, init=str(tmp_path / "run"))


def test_resuming_does_not_need_the_run_it_started_from(runs, tmp_path, monkeypatch):
    start, step = copied(runs / "6", tmp_path / "start"), Trainer.train_step
    words = f"--init {start} --seed 1 --steps 6"
    train(f"{words} --out {tmp_path}/whole")

    def stop(self, number):
        if number == 4:
            raise KeyboardInterrupt
        step(self, number)

    monkeypatch.setattr(Trainer, "train_step", stop)
    assert main(f"{DATA} {QUICK} {words} --out {tmp_path}/part".split()) == 130
    monkeypatch.setattr(Trainer, "train_step", step)
    shutil.rmtree(start)
    assert main(f"train --resume {tmp_path}/part".split()) == 0
    assert same(weights(tmp_path / "part"), weights(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--init RUN --model.width 5", "its SmallConv does not fit this run's SmallConv; give the model options of"),
        ("--init RUN --model WideResNet --model.depth 10", "its SmallConv does not fit this run's WideResNet"),
        ("--init no/such/run", "no/such/run has no model.json; give the folder of a finished run"),
        ("--init", "--init needs a value"),
    ],
)
def test_mistakes_of_a_start(words, message, runs, tmp_path, capsys):
    words = words.replace("RUN", str(runs / "6"))
    assert main(f"{DATA} {QUICK} --steps 2 --out {tmp_path}/run {words}".split()) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.strip().count("\n") == 0
    assert not (tmp_path / "run").exists()

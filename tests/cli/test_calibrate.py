import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vcc_infuse import Predictor
from vcc_infuse.calibrators.ensemble_ts import EnsembleTS
from vcc_infuse.calibrators.temperature import TemperatureScaling
from vcc_infuse.cli import calibrate
from vcc_infuse.cli.finished_run import labels_as_test
from vcc_infuse.cli.main import main
from vcc_infuse.data.ssl_data import load
from vcc_infuse.errors import UserError

QUICK = "--steps 6 --eval_every 3 --batch_size 8 --unlabeled_ratio 2 --progress false --model SmallConv --model.width 4"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run, made over-confident by a head four times too large."""
    out = tmp_path_factory.mktemp("runs") / "digits"
    assert main(f"train --data digits --labels 40 --algorithm FixMatch {QUICK} --out {out}".split()) == 0
    predictor = Predictor.load(out)
    predictor.model.head.weight.data.mul_(4)
    predictor.save(out)
    return out


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("method", ["TemperatureScaling", "EnsembleTS"])
def test_a_calibrated_copy_has_the_labels_of_the_run_and_better_confidence(run, tmp_path, capsys, method):
    before, out = files(run), tmp_path / "copy"
    calibrate.run([str(run), "--data", "digits", "--method", method, "-o", str(out)])
    assert files(run) == before, "the run itself must stay as it was"
    figures = json.loads((out / "calibration.json").read_text())
    assert figures["nll_fitted"] < figures["nll_softmax"]
    assert figures["ece_fitted"] < figures["ece_softmax"]
    assert f"{figures['ece_fitted']:.4f}" in capsys.readouterr().out
    test = load("digits").test
    old, new = (Predictor.load(folder).predict(test.x) for folder in (run, out))
    assert torch.equal(old.labels, new.labels)
    assert torch.equal(old.probs, new.probs)
    assert new.calibrated.mean() < old.calibrated.mean()
    assert type(Predictor.load(out).calibrator).__name__ == method


def test_a_copy_can_be_evaluated_and_repeats_nothing_false(run, tmp_path):
    out = tmp_path / "copy"
    calibrate.run([str(run), "--data", "digits", "-o", str(out)])
    assert main(["evaluate", str(out), "-o", str(tmp_path / "figures.json")]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["ece_calibrated"] < figures["ece"]
    assert not (out / "summary.json").exists(), "its figures belong to the other calibrator"


def test_the_figures_are_those_of_examples_that_were_not_fitted():
    g = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(41, 3, generator=g)
    y = torch.multinomial((logits / 3).softmax(1), 1, generator=g).squeeze(1)
    one, other = calibrate.halves(y)
    assert sorted([*one.tolist(), *other.tolist()]) == list(range(41))
    assert (torch.bincount(y[one]) - torch.bincount(y[other])).abs().max() <= 1
    probs = calibrate.cross_fit(TemperatureScaling, logits, y)
    for fitted, measured in ((one, other), (other, one)):
        temperature = TemperatureScaling().fit(logits[fitted], y[fitted]).temperature.double()
        torch.testing.assert_close(probs[measured], (logits[measured].double() / temperature).softmax(1))
    figures = calibrate.compare(TemperatureScaling, logits, y, logits.softmax(1).amax(1), True, 15)
    assert figures["nll_softmax"] == pytest.approx(F.cross_entropy(logits, y).item(), rel=1e-5)
    assert figures["nll_fitted"] == pytest.approx(F.nll_loss(probs.log(), y).item())
    best = TemperatureScaling().fit(logits, y).probs(logits)
    assert figures["nll_fitted"] > F.nll_loss(best.log(), y).item(), "no figure may profit from its own label"


def test_nothing_is_written_unless_asked(run, capsys):
    before = files(run)
    calibrate.run([str(run), "--data", "digits"])
    assert files(run) == before
    assert "nothing written" in capsys.readouterr().out


def test_in_place_replaces_the_calibrator_only(run, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name, content in files(run).items():
        (folder / name).write_bytes(content)
    calibrate.run([str(folder), "--data", "digits", "--in-place", "--method", "EnsembleTS"])
    old, new = Predictor.load(run), Predictor.load(folder)
    assert new.summary == {**old.summary, "abstain": []}  # its cuts were those of another confidence
    assert isinstance(new.calibrator, EnsembleTS)
    for name, tensor in old.model.state_dict().items():
        assert torch.equal(tensor, new.model.state_dict()[name])
    calibrate.run([str(folder), "--data", "digits", "--in-place"])
    assert "ece_own" in json.loads((folder / "calibration.json").read_text())


def test_a_warning_if_all_predictions_are_right(run, tmp_path, capsys):
    predictor = Predictor.load(run)
    predictor.calibrator = TemperatureScaling().fit(torch.eye(3), torch.arange(3))
    calibrate.store(predictor, {}, run, None)
    assert "no temperature fits" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("{run}", "--data"),
        ("{run} --data digits --split train", "trained on"),
        ("{run} --data nowhere", "nowhere"),
        ("{run} --data digits -o {run}", "is the run itself"),
        ("{run} --data digits -o x --in-place", "exclude each other"),
        ("{run} --data digits --method VCC", "VCC"),
    ],
)
def test_mistakes_cost_one_line(run, words, said):
    with pytest.raises(UserError, match=said) as caught:
        calibrate.run(words.format(run=run).split())
    assert "\n" not in str(caught.value)


def test_too_few_images_are_refused():
    with pytest.raises(UserError, match="at least 4"):
        calibrate.cross_fit(TemperatureScaling, torch.randn(3, 2), torch.zeros(3).long())


def test_the_train_part_leaves_out_unlabeled_images():
    dataset = load("digits")
    dataset.train.y[:100] = -1
    part = labels_as_test(dataset).test
    assert len(part) == len(dataset.train) - 100
    assert np.array_equal(part.x, dataset.train.x[100:])

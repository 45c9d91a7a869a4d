"""The live view shows what metrics.jsonl holds: each metric and each diagram once, also after an interruption."""

import io
import json
import os
import signal
import sys
import time

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.helpers.processes import together
from vcc_infuse import FixMatch, SmallConv, Softmax, Trainer, UserError
from vcc_infuse.cli.main import main
from vcc_infuse.tracking import reliability_image
from vcc_infuse.training.interrupt import Interrupted

SMALL = dict(steps=12, eval_every=4, batch_size=8, unlabeled_ratio=2, progress=False)
WORDS = (
    "train --data digits --labels 40 --steps 4 --eval_every 2 --batch_size 8 --unlabeled_ratio 2"
    " --model SmallConv --model.width 4"
    " --progress false"
)


class Doubtful(Softmax):
    """Halves every confidence, so that the two diagrams must differ."""

    def predict(self, outputs):
        return super().predict(outputs) / 2


class Stopping(FixMatch):
    """Asks to stop between the second evaluation and the third."""

    def losses(self, step):
        if step.number == 9:
            os.kill(os.getpid(), signal.SIGTERM)
        yield from super().losses(step)


def train(run, data, method=None, resume=False, **options):
    trainer = Trainer(SmallConv(4), method or FixMatch(), Doubtful(), out=str(run), **{**SMALL, **options})
    return trainer.fit(data, resume=resume, force=resume)  # the interrupting method is another class


def lines(run):
    return [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]


def numbers(line):
    return {name: value for name, value in line.items() if isinstance(value, int | float)}


def events(run):
    found = EventAccumulator(str(run), size_guidance={"scalars": 0, "images": 0})
    found.Reload()
    return found


def steps(found):
    """Steps of every scalar and of the image, as they stand in the events."""
    series = [[e.step for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]]
    return [*series, [e.step for e in found.Images("reliability")]]


def next_second():
    """Event files sort by the second in their name."""
    time.sleep(1.01 - time.time() % 1)


def bar_heights(panel, bins):
    """Heights of the blue bars between the frame's bounds, as fractions of the frame, read from pixels alone."""
    pixels = panel.astype(int)
    dark = pixels.sum(2) < 200
    columns = np.flatnonzero(dark.mean(0) > 0.5)
    rows = np.flatnonzero(dark.mean(1) > 0.5)
    left, right, top, bottom = columns[0], columns[-1], rows[0], rows[-1]
    blue = np.abs(pixels - [0x4C, 0x78, 0xA8]).sum(2) < 30
    heights = []
    for i in range(bins):
        column = blue[top:bottom, left + round((i + 0.25) / bins * (right - left))]
        heights.append((len(column) - column.argmax()) / len(column) if column.any() else 0.0)
    return np.array(heights)


def accuracies(diagram):
    return np.array([a or 0.0 for a in diagram["accuracy"]])


@pytest.fixture(scope="module")
def tracked(tmp_path_factory, digits):
    run = tmp_path_factory.mktemp("track") / "run"
    train(run, digits, tracker="tensorboard")
    return run


def test_scalars_are_those_of_the_metrics(tracked):
    found, written = events(tracked), lines(tracked)
    assert set(found.Tags()["scalars"]) == set().union(*(numbers(line) for line in written))
    for tag in found.Tags()["scalars"]:
        shown = {e.step: e.value for e in found.Scalars(tag)}
        recorded = {line["step"]: line[tag] for line in written if line.get(tag) is not None}
        assert shown == pytest.approx(recorded, rel=1e-6)
    assert [line["step"] for line in written] == [4, 8, 12]


def test_an_image_at_each_evaluation_shows_the_bars_of_both_diagrams(tracked):
    images = events(tracked).Images("reliability")
    assert [e.step for e in images] == [4, 8, 12]
    for event, line in zip(images, lines(tracked), strict=True):
        image = Image.open(io.BytesIO(event.encoded_image_string))
        assert image.mode == "RGB"
        before, after = np.array_split(np.asarray(image), 2, axis=1)
        drawn = [bar_heights(panel, 15) for panel in (before, after)]
        assert drawn[0] == pytest.approx(accuracies(line["reliability"]), abs=0.02)
        assert drawn[1] == pytest.approx(accuracies(line["reliability_calibrated"]), abs=0.02)
        assert np.abs(drawn[0] - drawn[1]).max() > 0.05


def open_figures():
    """Those that any test of this process has left in pyplot."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    return [] if pyplot is None else pyplot.get_fignums()


def test_drawing_leaves_matplotlib_alone():
    import matplotlib

    diagram = {"count": [0, 3], "accuracy": [None, 0.5], "confidence": [None, 0.9]}
    metrics = {"reliability": diagram, "reliability_calibrated": diagram, "ece": 0.4, "ece_calibrated": 0.4}
    before = dict(matplotlib.rcParams)
    figures = open_figures()
    image = reliability_image(metrics)
    assert image.dtype == np.uint8
    assert image.shape[2] == 3
    assert dict(matplotlib.rcParams) == before
    assert open_figures() == figures


def test_after_an_interruption_each_step_comes_once(tmp_path, digits):
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(run, digits, Stopping(), tracker="tensorboard")
    next_second()
    train(run, digits, resume=True, tracker="tensorboard")
    assert len(list(run.glob("events.out.tfevents.*"))) == 2
    assert all(series == [4, 8, 12] for series in steps(events(run)))


def test_what_came_after_the_last_checkpoint_is_not_shown_twice(tmp_path, digits):
    """As after a crash: step 12 was shown, but only the checkpoint of step 8 is whole."""
    run = tmp_path / "run"
    train(run, digits, tracker="tensorboard")
    (run / "summary.json").unlink()
    (run / "checkpoints" / "step-000000012.pt").write_bytes(b"rubbish")
    next_second()
    with pytest.warns(UserWarning, match="damaged"):
        train(run, digits, resume=True, tracker="tensorboard")
    assert all(series == [4, 8, 12] for series in steps(events(run)))


def test_tracking_does_not_change_the_weights(tracked, tmp_path, digits):
    train(tmp_path / "run", digits)
    a, b = (load_file(run / "model.safetensors") for run in (tracked, tmp_path / "run"))
    assert all(torch.equal(a[k], b[k]) for k in b)
    assert not list((tmp_path / "run").glob("events.*"))


def test_a_run_from_the_configuration_of_a_tracked_run_is_tracked(tracked, tmp_path):
    assert yaml.safe_load((tracked / "config.yaml").read_text())["tracker"] == "tensorboard"
    assert main([*WORDS.split(), "--tracker", "tensorboard", "--out", str(tmp_path / "first")]) == 0
    assert main(["train", "--config", str(tmp_path / "first/config.yaml"), "--out", str(tmp_path / "run")]) == 0
    assert [e.step for e in events(tmp_path / "run").Images("reliability")] == [2, 4]


@pytest.mark.parametrize(
    ("tracker", "missing", "extra"),
    [
        ("tensorboard", "torch.utils.tensorboard", "track"),
        ("tensorboard", "matplotlib.figure", "track"),
        ("wandb", "wandb.sdk", "wandb"),
    ],
)
def test_a_missing_package_is_one_line(tracker, missing, extra, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, missing, None)
    message = rf"tracker needs a package .* got '{tracker}'; .* pip install 'vcc-infuse\[{extra}\]'"
    with pytest.raises(UserError, match=message) as fault:
        Trainer(SmallConv(4), out=str(tmp_path / "run"), **SMALL, tracker=tracker)
    assert "\n" not in str(fault.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tracker": "tensorboard"}, "tracker needs a run folder, got 'tensorboard'"),
        ({"tracker": "mlflow"}, "tracker must be one of none, tensorboard, wandb, got 'mlflow'"),
    ],
)
def test_an_impossible_tracker_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        Trainer(SmallConv(4), **{**SMALL, **options})


def test_an_unknown_tracker_on_the_command_line(capsys):
    assert main([*WORDS.split(), "--tracker", "mlflow"]) == 2
    assert "--tracker must be one of none, tensorboard, wandb, got 'mlflow'" in capsys.readouterr().err


def test_only_the_first_process_tracks(tmp_path):
    words = [*WORDS.split(), "--device", "cpu", "--tracker", "tensorboard", "--out", str(tmp_path / "run")]
    together(2, lambda: main(words), tmp_path / "log.txt")
    assert len(list((tmp_path / "run").rglob("events.out.tfevents.*"))) == 1
    assert all(series == [2, 4] for series in steps(events(tmp_path / "run")))

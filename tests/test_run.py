"""One way to make a run: `train` and `resume` do what the command line does, and an interruption costs nothing."""

import hashlib
import itertools
import json
import shutil

import numpy as np
import pytest
from PIL import Image
from torch import nn

import vcc_infuse
from vcc_infuse import INFUSE, Callback, FixMatch, OptionError, Predictor, SmallConv, UserError, resume, train
from vcc_infuse.bank.bank import Bank
from vcc_infuse.cli.main import main
from vcc_infuse.run import prepare
from vcc_infuse.run_config import RunConfig
from vcc_infuse.training.interrupt import Interrupted
from vcc_infuse.training.trainer import Trainer

QUIET = {"device": "cpu", "progress": False, "report": False}
# A network with random weights, which are drawn from the seed of the run. Of several sizes time would choose one, and
# two runs on a busy machine could differ.
UNTRAINED = {"name": "test_resnet", "weights": "none"}
NETWORK = {"class_path": "Timm", "init_args": {**UNTRAINED, "input_size": 160}}
FROZEN = {
    **QUIET,
    **{"preset": "frozen", "steps": 4, "eval_every": 2, "batch_size": 4, "labels": 8, "seed": 3},
    "cross_fit": False,
    "model": NETWORK,
}
WORDS = """--preset frozen --steps 4 --eval_every 2 --batch_size 4 --labels 8 --seed 3 --device cpu --progress false
    --report false --model Timm --model.name test_resnet --model.weights none --model.input_size 160
    --cross_fit false""".split()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two classes of images of different sizes."""
    root = tmp_path_factory.mktemp("drawn") / "photos"
    rng = np.random.default_rng(0)
    for part, count in (("train", 10), ("test", 4)):
        for name, channel in (("red", 0), ("blue", 2)):
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 120, (40 + 3 * number, 50, 3), dtype=np.uint8)
                pixels[..., channel] += 120
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


def weights(folder):
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_photos_of_mixed_sizes_train_as_on_the_command_line(tmp_path, photos):
    result = train(photos, out=str(tmp_path / "python"), cache=str(tmp_path / "cache"), **FROZEN)
    words = ["train", "--data", str(photos), *WORDS, "--cache", str(tmp_path / "cache")]
    assert main([*words, "--out", str(tmp_path / "words")]) == 0
    assert weights(tmp_path / "python") == weights(tmp_path / "words")
    configs = [(tmp_path / name / "config.yaml").read_text() for name in ("python", "words")]
    assert configs[0] == configs[1]
    assert result.folder == tmp_path / "python"
    assert result.summary == json.loads((result.folder / "summary.json").read_text())
    assert result.predictor.predict(photos / "test" / "red").labels.shape == (4,)
    # The configuration repeats the run, and another seed makes another one.
    again = RunConfig.from_yaml(configs[0])
    assert again.data.size == 160
    for seed in (3, 4):
        words = ["train", "--config", str(result.folder / "config.yaml"), "--seed", str(seed)]
        assert main([*words, "--out", str(tmp_path / f"seed{seed}")]) == 0
    assert weights(tmp_path / "seed3") == weights(result.folder)
    assert weights(tmp_path / "seed4") != weights(result.folder)


def test_a_run_interrupted_while_it_embeds_predicts_and_is_finished_by_resume(tmp_path, photos, monkeypatch, capsys):
    """The data were given as a relative path, and the run is continued from elsewhere."""
    monkeypatch.chdir(photos.parent)
    whole = train("photos", out=str(tmp_path / "whole"), cache=str(tmp_path / "one"), **FROZEN)
    left = []

    def stop(bank, rows, **options):
        left.append(bank.missing())
        raise KeyboardInterrupt

    folder = tmp_path / "broken"
    with monkeypatch.context() as patch:
        patch.setattr(Bank, "embed_all", stop)
        with pytest.raises(Interrupted, match=r"before the first step; .*--resume .*broken"):
            train("photos", out=str(folder), cache=str(tmp_path / "two"), **{**FROZEN, "progress": True})
    assert left == [20 * 6], "all views but the plain ones"
    assert f"{folder} has a first model: a linear probe on the plain views, 0 % error" in capsys.readouterr().out
    assert not (folder / "summary.json").exists()
    predictor = Predictor.load(folder)
    for label, name in enumerate(predictor.classes):
        assert (predictor.predict(photos / "test" / name).labels == label).all()
    monkeypatch.chdir(tmp_path)
    continued = resume("broken", progress=False)
    assert weights(folder) == weights(tmp_path / "whole")
    assert continued.summary["error"] == whole.summary["error"]
    assert continued.folder == folder.relative_to(tmp_path)


def test_a_run_continues_where_its_data_have_moved(tmp_path, photos, monkeypatch):
    shutil.copytree(photos, tmp_path / "here")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_should_stop", lambda self, request, number: number == 1)
        with pytest.raises(Interrupted):
            train(tmp_path / "here", out=str(tmp_path / "run"), cache=str(tmp_path / "cache"), **FROZEN)
    (tmp_path / "here").rename(tmp_path / "there")
    with pytest.raises(UserError, match="data must be a known source or the path"):
        resume(tmp_path / "run")
    assert resume(tmp_path / "run", data=str(tmp_path / "there")).summary["steps"] == 4
    (tmp_path / "there" / "train" / "red" / "0.png").unlink()
    with pytest.raises(UserError, match="has changed: data: 0 training images are new, 1 are gone"):
        resume(tmp_path / "run", data=str(tmp_path / "there"), steps=6)


def test_a_mistake_while_embedding_leaves_no_folder(tmp_path, photos, monkeypatch):
    def fail(bank, **options):
        raise UserError("the disk is full; make room")

    monkeypatch.setattr(Bank, "embed_plain", fail)
    with pytest.raises(UserError, match="the disk is full"):
        train(photos, out=str(tmp_path / "run"), cache=str(tmp_path / "cache"), **FROZEN)
    assert not (tmp_path / "run").exists()


def test_a_run_interrupted_between_two_steps_continues(tmp_path, monkeypatch):
    options = {**QUIET, "labels": 40, "steps": 6, "eval_every": 2, "batch_size": 4, "model": SmallConv}
    train("digits", out=str(tmp_path / "whole"), **options)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_should_stop", lambda self, request, number: number == 2)
        with pytest.raises(Interrupted, match="after step 3 of 6"):
            train("digits", out=str(tmp_path / "broken"), **options)
    with pytest.raises(UserError, match="--lr cannot change"):
        resume(tmp_path / "broken", lr=1.0)
    assert resume(tmp_path / "broken").summary["steps"] == 6
    assert weights(tmp_path / "broken") == weights(tmp_path / "whole")
    with pytest.raises(UserError, match="this run is finished"):
        resume(tmp_path / "broken")
    with pytest.raises(UserError, match="there is no config.yaml"):
        resume(tmp_path / "nowhere")
    assert resume(tmp_path / "broken", steps=8).summary["steps"] == 8


class Listed(Callback):
    """Writes down what happens."""

    def __init__(self):
        self.events = []

    def on_start(self, trainer, start):
        self.events.append(f"start {start}")

    def on_step(self, trainer, done):
        self.events.append(f"step {done}")

    def on_selection(self, trainer, selection, metrics):
        self.events.append(f"selection {metrics['step']}")

    def on_evaluation(self, trainer, metrics):
        self.events.append(f"evaluation {metrics['step']}")

    def on_finish(self, trainer, summary):
        self.events.append(f"finish {summary['steps']}")

    def on_end(self, trainer):
        self.events.append("end")


def test_callbacks_hear_of_everything_in_order():
    listed = Listed()
    selector = INFUSE(keep=0.5, every=2)
    options = {**QUIET, "labels": 40, "steps": 8, "eval_every": 3, "batch_size": 4, "preset": "scratch"}
    train("digits", selector=selector, callbacks=[listed], **options)
    expected = (
        "start 0, selection 0, step 1, step 2, selection 2, step 3, evaluation 3, step 4, evaluation 4, finish 4, end"
    )
    assert ", ".join(listed.events) == expected
    failed = Listed()
    with pytest.raises(UserError):
        train("digits", callbacks=[failed], **{**options, "lr": 1e20})
    assert failed.events[0] == "start 0"
    assert failed.events[-1] == "end"
    assert not any(event.startswith("finish") for event in failed.events)


def test_preparing_writes_nothing_and_makes_one_trainer(tmp_path):
    config = RunConfig.from_options({**QUIET, "data": "digits", "labels": 40, "out": str(tmp_path / "run")})
    run = prepare(config)
    assert run.config.preset == "scratch"
    assert "8×8" in run.reason
    assert run.bank is None
    assert isinstance(run.trainer.model, SmallConv)
    assert isinstance(run.trainer.algorithm, FixMatch)
    assert not (tmp_path / "run").exists()


def test_embedded_data_and_vectors_get_a_head():
    rng = np.random.default_rng(0)
    y = np.arange(30) % 3
    vectors = rng.normal(size=(30, 4)).astype(np.float32) + y[:, None]
    data = vcc_infuse.SSLData.from_arrays(vectors, np.where(np.arange(30) < 9, y, -1))
    run = prepare(RunConfig(data=data))
    assert (run.config.preset, type(run.trainer.model).__name__) == ("frozen", "Identity")
    views = np.stack([vectors] * 3, 1)
    embedded = vcc_infuse.SSLData.from_arrays(views, np.where(np.arange(30) < 9, y, -1), slots=(1, 1))
    run = prepare(RunConfig(data=embedded))
    assert run.config.preset == "frozen"
    assert type(run.trainer.model).__name__ == "Identity"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stesp": 3}, r"stesp is not an option of a run; did you mean steps\?"),
        ({"algorithm": "INFUSE"}, "algorithm must be a subclass of Algorithm, got 'INFUSE'"),
        ({"preset": "fast"}, "preset must be one of .*frozen.*, got 'fast'"),
        ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
        ({"algorithm": "Supervised", "selector": "INFUSE"}, "Supervised uses no unlabeled images"),
        ({"preset": "frozen", "model": nn.Linear(4, 4)}, "frozen needs a pretrained network such as Timm, not Linear"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_folder(tmp_path, options, message):
    with pytest.raises(UserError, match=message) as caught:
        train("digits", labels=40, out=str(tmp_path / "run"), **{**QUIET, **options})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_options_of_loading_are_refused_beside_loaded_data(digits):
    with pytest.raises(OptionError, match="^size must be left out, got 8; the data are loaded$"):
        train(digits, size=8, **QUIET)


def test_a_folder_with_files_is_refused_before_the_data_are_loaded(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OptionError, match="out must be a new or empty folder"):
        train("no/such/data", out=str(tmp_path), **QUIET)


def test_the_network_is_an_object_a_class_or_a_name(digits):
    options = {**QUIET, "steps": 2, "batch_size": 4, "preset": "scratch"}
    runs = [train(digits, model=model, **options) for model in (SmallConv(), SmallConv, "SmallConv")]
    states = [run.predictor.model.state_dict() for run in runs]
    assert all((states[0][name] == state[name]).all() for state in states[1:] for name in state)
    assert runs[0].folder is None
    assert isinstance(runs[0].predictor, vcc_infuse.Predictor)


def sizes_of(config):
    run = prepare(RunConfig.from_options({**QUIET, "labels": 4, "steps": 1, **config}))
    return run.data.dataset.shape[:2], run.config.data.size, run.bank.encoder.input_size


@pytest.mark.parametrize(
    ("drawn", "given", "size", "expected"),
    [
        (None, None, None, ((160, 160), 160, 160)),  # photos of different sizes, at the native size of test_resnet
        (None, 224, None, ((224, 224), 224, 224)),
        (None, 224, 96, ((96, 96), 96, 224)),
        ((200, 180), 32, None, ((32, 32), 32, 32)),  # of one size, larger than the network's
        ((200, 180), 32, 64, ((64, 64), 64, 32)),
        ((50, 40), 64, None, ((40, 50), None, 64)),  # smaller
        ((50, 40), None, None, ((40, 50), None, 160)),
    ],
)
def test_images_are_decoded_at_the_size_of_the_network(tmp_path, photos, drawn, given, size, expected):
    folder = photos
    if drawn is not None:
        folder = tmp_path / "photos"
        for part, name in itertools.product(("train", "test"), ("red", "blue")):
            (folder / part / name).mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", drawn, (number, len(name), len(part))).save(folder / part / name / f"{number}.png")
    network = {"class_path": "Timm", "init_args": {**NETWORK["init_args"], "input_size": given}}
    options = {"data": str(folder), "preset": "frozen", "model": network, "size": size, "cache": str(tmp_path / "c")}
    assert sizes_of(options) == expected


@pytest.mark.parametrize(("side", "given", "used"), [(32, None, 96), (32, 48, 48), (96, None, None), (120, None, None)])
def test_fine_tuning_enlarges_small_images_unless_told_otherwise(side, given, used):
    x = np.zeros((6, side, side, 3), dtype=np.uint8)
    data = vcc_infuse.SSLData.from_arrays(x, [0, 1, -1, -1, -1, -1])
    size = {} if given is None else {"input_size": given}
    network = {"class_path": "Timm", "init_args": {**UNTRAINED, **size}}
    run = prepare(RunConfig.from_options({**QUIET, "data": data, "preset": "finetune", "model": network}))
    assert run.trainer.model.input_size == used
    own = prepare(RunConfig.from_options({**QUIET, "data": data, "preset": "finetune", "model": SmallConv()}))
    assert isinstance(own.trainer.model, SmallConv)

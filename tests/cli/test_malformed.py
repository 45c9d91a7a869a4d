"""Files of the wrong content, own classes that raise, and names that are not UTF-8."""

import json
import os
import re
import shutil
import signal
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.helpers.processes import fork, wait

from vcc_infuse.cli.main import main
from vcc_infuse.runs.checkpoint import digest
from vcc_infuse.utils.manifest import publish

TRAIN = "train --data digits --labels 20 --preset scratch --model MLP --batch_size 2 --unlabeled_ratio 1".split()
QUICK = [*TRAIN, "--steps", "2", "--progress", "false"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert main([*QUICK, "--eval_every", "1", "--report", "false", "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def run(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(finished, tmp_path / "run"))


def one_line(words, capsys, hint):
    capsys.readouterr()
    assert main(words) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vcc-infuse: ")]
    assert len(lines) == 1, lines
    assert hint in lines[0] or re.search(hint, lines[0]), lines[0]


CONFIGS = {
    "schedule: linear": "--schedule must be one of cosine, constant, got 'linear' (in options.yaml)",
    "compile: maybe": "--compile must be true or false, got 'maybe' (in options.yaml)",
    "ema: abc": "--ema is not an option; did you mean --ema_decay",
    "selector: none": "--selector none is unknown",
    "algorithm: null": "--algorithm must be a class, got None; choose one, such as FixMatch (in options.yaml)",
    "algorithm: {class_path: null}": "--algorithm must be the name of a class, got None (in options.yaml)",
    "1: 2": "--1 is not an option",
    "lr: null": "--lr must be a number, got None (in options.yaml)",
    "data: null": "--data must be a string, got None (in options.yaml)",
    "device: null": "--device must be a string, got None (in options.yaml)",
    "cache: 3": "--cache must be a string, got 3 (in options.yaml)",
    "label_file: {}": "--label_file must be a string, got {} (in options.yaml)",
    "report: {}": "--report must be true or false, got {} (in options.yaml)",
    "a.b: 3": "--a is not an option",
    "preset: [1]": "--preset must be",
    "resume: x": "--resume belongs on the command line; remove it from options.yaml",
    "config: x": "--config belongs on the command line",
    'cache: "a\\0b"': "--cache must not hold a null character",
    "a: &a {b: *a}": "must hold options, one `name: value` per line, and not too many",
    "a: " + "{a: " * 3000 + "1" + "}" * 3000: "cannot be read: RecursionError",
}


@pytest.mark.parametrize("text", CONFIGS, ids=lambda text: text[:30])
def test_a_file_is_checked_like_the_command_line(text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("options.yaml").write_text(text)
    words = [] if text.startswith(("preset", "data")) else QUICK  # what the command line says replaces the file
    one_line(["train", *words[1:], "--config", "options.yaml"], capsys, CONFIGS[text])
    assert os.listdir() == ["options.yaml"]


WORDS = {
    "--model.dropout=-1": "--model.dropout must be a number in [0, 1], got -1.0",
    "--lr=1e308": "--lr must be at most 1e+30, got 1e+308",
    "--lr=null": "--lr must be a number, got 'null'",
    "--lr=0 --head_lr=1": "--head_lr needs an lr above 0",
    "--batch_size=100000000": "--batch_size times unlabeled_ratio must be at most 1,048,576",
    "--bins=1000000000": "--bins must be at most 100000, got 1000000000",
    "--on_nan=hope": "--on_nan must be one of stop, skip, rollback, got 'hope'",
    "--model.hidden=[1000000000000]": "there is not enough memory",
    "--algorithm=.X": "--algorithm '.X' is not the import path of a class",
    "--labels=1430 --include_labeled=false --lr=0.1": "--labels must be at most",
}


@pytest.mark.parametrize("more", WORDS)
def test_a_value_that_cannot_work_is_one_line(more, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    one_line([*QUICK, "--out", "new", *more.split()], capsys, WORDS[more])


def test_a_plugin_takes_the_short_name_of_its_base(tmp_path):
    words = ["--algorithm", "DARP", "--algorithm.base", "FlexMatch", "--report", "false"]
    assert main([*QUICK, *words, "--out", str(tmp_path / "run")]) == 0


CARDS = {
    "no shape": lambda card: card.pop("shape"),
    "shape of text": lambda card: card.update(shape="8x8"),
    "negative shape": lambda card: card.update(shape=[-8, 8, 1]),
    "classes a number": lambda card: card.update(classes=3),
    "one class": lambda card: card.update(classes=["a"]),
    "no backbone": lambda card: card.update(backbone=None),
    "class path a list": lambda card: card["backbone"].update(class_path=[1]),
    "unknown argument": lambda card: card["backbone"]["init_args"].update(nope=1),
    "hidden of text": lambda card: card["backbone"]["init_args"].update(hidden=["x"]),
    "task without steps": lambda card: card["task"].pop("steps"),
    "mean of text": lambda card: card.update(mean=["x"]),
    "ranges a number": lambda card: card.update(ranges=[3]),
}


@pytest.mark.parametrize("spoil", CARDS)
def test_a_malformed_model_json_is_one_line(spoil, run, capsys):
    card = json.loads((run / "model.json").read_text())
    CARDS[spoil](card)
    publish(run, {"model.json": json.dumps(card).encode()})  # its checksum fits: the content itself must be refused
    one_line(["evaluate", "run"], capsys, "")


def test_deep_json_and_foreign_json_are_one_line(run, capsys):
    for text in ('{"a":' * 5000 + "1" + "}" * 5000, "[1, 2]", "\ufeff{}", ""):
        for name, command in (("model.json", "evaluate"), ("summary.json", "report")):
            keep = (run / name).read_bytes()
            (run / name).write_text(text)
            one_line([command, "run"], capsys, f"run/{name} is damaged")
            (run / name).write_bytes(keep)


def huge_npy(path):
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (5000000000000,), }"
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("truth", "predicted", "confidence", "calibrated"):
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


def test_malformed_predictions_are_one_line(run, capsys, tmp_path):
    """Their checksum fits, so that it is the content that is refused."""
    columns = dict(np.load(run / "predictions.npz"))
    other = tmp_path / "other.npz"
    huge_npy(other)
    malformed = [(other.read_bytes(), "MemoryError|allocate"), (b"\x93NUMPY\x01\x00", "ValueError|EOF|zip|pickle")]
    for change, reason in (
        ({"truth": columns["truth"] + 10**9}, "truth does not hold class numbers below 10"),
        ({"truth": columns["truth"][:3]}, "differ in length"),
        ({"truth": columns["truth"] * 0.5}, "truth does not hold class numbers"),
    ):
        np.savez(other, **{**columns, **change})
        malformed.append((other.read_bytes(), reason))
    np.savez(other, truth=columns["truth"])
    malformed.append((other.read_bytes(), "predicted"))
    for content, reason in malformed:
        publish(run, {"predictions.npz": content})
        one_line(["report", "run"], capsys, f"run/predictions.npz is damaged: .*({reason})")


LINKED = {"report": "gallery.npz", "predict": "summary.json", "evaluate": "config.yaml"}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("command", LINKED)
def test_a_link_that_nothing_vouches_for_is_not_followed(run, capsys, tmp_path, command, known):
    """Else somebody's folder could put a file of yours into a page; `known`: the manifest has another checksum."""
    name = LINKED[command]
    (tmp_path / "secret").write_bytes((run / name).read_bytes())
    (run / name).unlink()
    (run / name).symlink_to(tmp_path / "secret")
    words = {"predict": ["predict", "run", str(tmp_path)]}.get(command, [command, "run"])
    if command == "report":
        assert main(words) == 0  # what it leads to is what was written
    if known:
        (tmp_path / "secret").write_bytes(b"something else")
    else:
        publish(run, {}, dropped=[name])
    one_line(words, capsys, f"run/{name} is a link to what manifest.json does not know; put the file itself")


def test_metrics_that_no_chart_can_show_are_blamed_on_the_run(run, capsys):
    summary = json.loads((run / "summary.json").read_text())
    for key, value in (("reliability", [1]), ("classes", 3), ("versions", 7)):
        publish(run, {"summary.json": json.dumps({**summary, key: value}).encode()})
        one_line(["report", "run"], capsys, "run is damaged")


def test_damaged_lines_are_counted_on_the_page_and_when_a_run_goes_on(run):
    lines = (run / "metrics.jsonl").read_bytes().split(b"\n")
    damaged = b"\n".join([lines[0].replace(b"{", b"\xff", 1), *lines[1:], b'{"step": "x"}'])
    publish(run, {"metrics.jsonl": damaged}, ["metrics.jsonl"])  # as if it had been written so
    said = "2 lines are damaged and left out (line 1, 4)"
    with pytest.warns(UserWarning, match=re.escape(said)):
        assert main(["report", "run"]) == 0
    assert f"metrics.jsonl: {said}" in (run / "report.html").read_text()
    with pytest.warns(UserWarning, match=re.escape(said)):
        assert main(["train", "--resume", "run", "--steps", "3", "--progress", "false"]) == 0
    warned = json.loads((run / "summary.json").read_text())["warnings"]
    assert any(said in text for text in warned)
    assert any("metrics.jsonl lost 1 evaluations (step 1)" in text for text in warned)
    assert main(["report", "run"]) == 0
    assert "lost 1 evaluations" in (run / "report.html").read_text()


@pytest.mark.parametrize("state", [{"step": "x"}, {"step": 1}, {}, [1, 2], {"step": -1}, {"step": 1, "model": 3}])
def test_a_foreign_checkpoint_with_a_right_checksum_is_one_line(state, run, capsys):
    for path in (run / "checkpoints").glob("*.pt"):
        torch.save(state, path)
        record = json.loads(path.with_suffix(".json").read_text())
        path.with_suffix(".json").write_text(json.dumps({**record, "sha256": digest(path)}))
    (run / "summary.json").unlink()
    one_line(["train", "--resume", "run"], capsys, "run/checkpoints is damaged")


@pytest.mark.parametrize("target", ["/", ".", ""])
def test_output_that_is_a_folder_is_one_line(target, run, capsys):
    if target:
        one_line(["report", "run", "-o", target], capsys, "is a folder; give the name of a file")
    one_line(["evaluate", "run", "-o", target or "/"], capsys, "is a folder; give the name of a file")


OWN = """
from vcc_infuse.models import Backbone, MLP
class Raises(MLP):
    def __init__(self, a: int = 1):
        raise RuntimeError("no luck\\nat all")
class Later(MLP):
    def forward(self, x):
        return x.no_such_thing
class Sets(MLP):
    def setup(self, shape):
        {}["missing"]
class Narrow(MLP):
    def forward(self, x):
        return super().forward(x)[:, :5]
"""


@pytest.mark.parametrize(("name", "line"), [("Raises", 5), ("Later", 8), ("Sets", 11)])
def test_an_own_class_that_raises_is_named_with_its_line(name, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("own_net.py").write_text(OWN)
    sys.modules.pop("own_net", None)
    one_line([*QUICK, "--model", f"own_net.{name}", "--out", "run"], capsys, f"own_net.py, line {line}: ")


def test_an_own_network_of_another_width_than_it_says_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("narrow_net.py").write_text(OWN)
    words = [*QUICK, "--import", "narrow_net.py", "--model", "narrow_net.Narrow", "--out", "run"]
    one_line(words, capsys, "Narrow.features is 128, but the network returns 5 features; set it to 5")


def test_an_own_file_that_cannot_be_imported_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("half_file.py").write_text("class X(\n")
    one_line([*QUICK, "--model", "half_file.X"], capsys, "--model half_file.X cannot be imported: SyntaxError")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names themselves")
def test_a_class_folder_whose_name_is_not_utf8_trains_predicts_and_resumes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in (b"\xff", b"plain"):
        os.makedirs(b"data/" + name)
        for i in range(6):
            Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(
                os.fsdecode(b"data/%s/%d.png" % (name, i))
            )
    os.makedirs(b"data/plain/sub\xfe", exist_ok=True)
    words = "train --data data --labels 4 --preset scratch --steps 2 --batch_size 2 --unlabeled_ratio 1".split()
    assert main([*words, "--progress", "false", "--cache", "cache", "--out", "run"]) == 0
    assert "\udcff" in json.loads(Path("run/model.json").read_text())["classes"]
    assert json.loads(Path("run/summary.json").read_text())["classes"] == ["plain", "\udcff"]
    assert main(["evaluate", "run", "-o", "e.json"]) == 0
    assert main(["predict", "run", "data", "-o", "out.csv"]) == 0
    assert main(["report", "run"]) == 0
    assert main(["train", "--resume", "run", "--steps", "3", "--progress", "false"]) == 0


def test_ctrl_c_before_training_is_one_line_and_status_130(tmp_path, monkeypatch):
    def begin():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores the signal
        monkeypatch.setattr(
            "vcc_infuse.run.load_ssl", lambda **_: os.kill(os.getpid(), signal.SIGINT) or time.sleep(60)
        )
        return main(QUICK)

    assert wait(fork(begin, tmp_path / "said")) == 128 + signal.SIGINT
    assert (tmp_path / "said").read_text() == "vcc-infuse: interrupted; --resume RUN continues a run that has begun\n"

"""Weights & Biases, offline: its files hold what metrics.jsonl holds, each step once."""

import json
import struct
import time

import pytest
from PIL import Image

from tests.test_tracking import Stopping, lines, numbers, train
from vcc_infuse import UserError
from vcc_infuse.training.interrupt import Interrupted


@pytest.fixture
def offline(monkeypatch):
    """Weights & Biases without the network: offline, no error reports, and an address without a server."""
    pytest.importorskip("wandb.sdk", reason="needs pip install 'vcc-infuse[wandb]'")
    quiet = {"MODE": "offline", "ERROR_REPORTING": "false", "BASE_URL": "http://127.0.0.1:9", "SILENT": "true"}
    for name, value in quiet.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)


def records(path):
    """The records of a .wandb file: LevelDB's log format, blocks of 32 KiB with chunks of (crc, length, kind)."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        if at + 7 + length > len(data):
            return  # still being written
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # full, last
            yield Record.FromString(whole)
            whole = b""


def complete(path):
    """All records, once the last is there: wandb's own process writes the file and ends a little later than ours."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = list(records(path))
        if found and found[-1].WhichOneof("record_type") == "exit":
            return found
        time.sleep(0.05)
    raise AssertionError(f"{path} was never finished")


def history(run):
    """Rows of all wandb files of a run, oldest file first, and the ids they belong to."""
    rows, ids = [], set()
    for path in sorted(run.glob("wandb/offline-run-*/*.wandb"), key=lambda p: p.stat().st_mtime):
        for record in complete(path):
            if record.WhichOneof("record_type") == "run":
                ids.add(record.run.run_id)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append({".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items})
    return rows, ids


def test_wandb_offline_holds_the_metrics_and_goes_on_under_its_id(tmp_path, digits, offline):
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(run, digits, Stopping(), tracker="wandb")
    train(run, digits, resume=True, tracker="wandb")
    rows, ids = history(run)
    assert ids == {(run / "wandb-id.txt").read_text()}
    assert [row["_step"] for row in rows] == [4, 8, 12]
    for row, line in zip(rows, lines(run), strict=True):
        shown = {name: row[name] for name in numbers(line)}
        assert shown == pytest.approx(numbers(line))
        assert row["reliability.count"] == 1
    pictures = sorted(run.glob("wandb/offline-run-*/files/media/images/*.png"), key=lambda p: p.stat().st_mtime)
    assert [Image.open(path).mode for path in pictures] == ["RGB"] * 3
    assert [path.name.split("_")[1] for path in pictures] == ["4", "8", "12"]


def test_wandb_shows_no_step_twice_after_a_crash(tmp_path, digits, offline):
    run = tmp_path / "run"
    train(run, digits, tracker="wandb")
    (run / "summary.json").unlink()
    (run / "checkpoints" / "step-000000012.pt").write_bytes(b"rubbish")
    with pytest.warns(UserWarning, match="damaged"):
        train(run, digits, resume=True, tracker="wandb")
    assert [row["_step"] for row in history(run)[0]] == [4, 8, 12]


def test_wandb_that_cannot_start_is_one_line(tmp_path, digits, offline, monkeypatch):
    import wandb

    init = wandb.init

    def refuse(**options):
        raise wandb.errors.UsageError("No API key\nconfigured.")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(UserError, match=r"cannot start \(No API key configured.\); run `wandb login`.*--resume"):
        train(tmp_path / "run", digits, tracker="wandb")
    monkeypatch.setattr(wandb, "init", init)
    train(tmp_path / "run", digits, resume=True, tracker="wandb")
    assert [row["_step"] for row in history(tmp_path / "run")[0]] == [4, 8, 12]

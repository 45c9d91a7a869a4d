"""A run folder: its logs, its lock, and results that are never overwritten."""

import json
import os
import signal

import pytest

from vcc_infuse import UserError
from vcc_infuse.runs.folder import RunFolder, versions
from vcc_infuse.utils.io import append_jsonl


def steps(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_resuming_drops_what_came_after_the_checkpoint(tmp_path):
    """The core set of step 20 was selected before that step was trained, so a run resumed at 20 selects it again."""
    run = RunFolder(tmp_path / "run")
    run.create("data: digits\n")
    for step in (10, 20, 30):
        append_jsonl(run.metrics, {"step": step, "error": float("nan")})
        append_jsonl(run.selections, {"step": step})
    run.rewind(20)
    assert steps(run.metrics) == [10, 20]
    assert steps(run.selections) == [10]
    assert json.loads(run.metrics.read_text().splitlines()[0]) == {"step": 10, "error": None}


def test_resuming_mends_a_line_that_a_crash_cut_short(tmp_path):
    run = RunFolder(tmp_path)
    append_jsonl(run.metrics, {"step": 10})
    with open(run.metrics, "a") as handle:
        handle.write('{"step": 2')
    run.rewind(10)
    append_jsonl(run.metrics, {"step": 20})
    assert steps(run.metrics) == [10, 20]


def test_rewinding_creates_no_file(tmp_path):
    RunFolder(tmp_path).rewind(5)
    assert list(tmp_path.iterdir()) == []


def test_results_are_not_overwritten(tmp_path):
    RunFolder(tmp_path).check_free()
    RunFolder(tmp_path / "new").check_free()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="out must be a new or empty folder, got .* it already holds files"):
        RunFolder(tmp_path).check_free()
    with pytest.raises(UserError, match="out must be a new or empty folder, got .* it is a file"):
        RunFolder(tmp_path / "file").check_free()
    with pytest.raises(
        UserError, match="out must be in a writable folder, got .* it cannot be created: Not a directory"
    ):
        RunFolder(tmp_path / "file" / "run").create("")


def test_versions_name_what_is_installed():
    import torch

    assert torch.__version__.split("+")[0] == versions()["torch"].split("+")[0]
    assert set(versions()) >= {"python", "platform", "vcc-infuse", "numpy"}


def in_a_child(action):
    """Fork, run `action` and stay alive; returns the process id once it is done."""
    ready, done = os.pipe()
    pid = os.fork()
    if pid == 0:
        action()
        os.write(done, b"x")
        signal.pause()
    os.read(ready, 1)
    return pid


def test_a_second_owner_is_refused_until_the_first_is_dead(tmp_path):
    held = RunFolder(tmp_path / "run").locked()
    owner = in_a_child(held.__enter__)
    try:
        with pytest.raises(UserError, match=rf"run is in use by process {owner} on .* since") as caught:
            RunFolder(tmp_path / "run").locked().__enter__()
        assert "\n" not in str(caught.value)
    finally:
        os.kill(owner, signal.SIGKILL)
        os.waitpid(owner, 0)
    assert (tmp_path / "run" / ".lock").exists()
    with RunFolder(tmp_path / "run").locked():
        pass
    assert not (tmp_path / "run" / ".lock").exists()


def test_a_folder_in_which_nothing_happened_goes_again(tmp_path):
    with RunFolder(tmp_path / "run").locked():
        assert (tmp_path / "run").is_dir()
    assert not (tmp_path / "run").exists()
    (tmp_path / "kept").mkdir()
    with RunFolder(tmp_path / "kept").locked():
        pass
    assert (tmp_path / "kept").is_dir()


def test_hidden_leftovers_do_not_block_a_folder(tmp_path):
    (tmp_path / ".model.json.new").write_text("half")
    RunFolder(tmp_path).check_free()

"""One process per run folder; a dead one does not count."""

import os
import signal

import pytest

from vcc_infuse import UserError
from vcc_infuse.runs.folder import RunFolder


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

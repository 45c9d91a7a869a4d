"""What every command does about an error: one line that begins with the command, and an exit status."""

import errno

import pytest

from vcc_infuse import UserError
from vcc_infuse.cli.main import run_guarded
from vcc_infuse.errors import OptionError
from vcc_infuse.training.distributed import ProcessLost
from vcc_infuse.training.interrupt import Interrupted


def outcome(fault, capsys, *words):
    """The exit status and the line of a command that raises `fault`."""

    def run(_):
        raise fault

    status = run_guarded(run, list(words), "python -m paper")
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    ("fault", "status", "line"),
    [
        (UserError("no such\ntable"), 2, "no such table"),
        (OptionError("keep", 7, "must be at most 1"), 2, "--keep must be at most 1, got 7"),
        (OSError(errno.ENOSPC, "No space left", "here"), 2, "No space left: here; free some space, then run the"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (Interrupted("saved", 15), 143, "saved"),
        (MemoryError(), 2, "there is not enough memory"),
        (RuntimeError("CUDA out of memory"), 2, "there is not enough memory"),
    ],
)
def test_one_line_and_a_status(fault, status, line, capsys):
    found, said = outcome(fault, capsys)
    assert found == status
    assert said.startswith(f"python -m paper: {line}")
    assert said.count("\n") == 1


def test_debug_and_other_errors_keep_their_traceback(capsys):
    def defect(_):
        raise OSError("without a number")

    with pytest.raises(UserError, match="wrong"):
        outcome(UserError("wrong"), capsys, "--debug")
    with pytest.raises(OSError, match="without a number"):
        run_guarded(defect, [], "vcc-infuse")


def test_only_the_first_process_speaks_unless_another_is_lost(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert outcome(UserError("wrong"), capsys) == (2, "")
    status, said = outcome(ProcessLost("another process has ended"), capsys)
    assert (status, said) == (2, "python -m paper: another process has ended\n")


def test_words_reach_the_command_without_those_for_every_command(capsys):
    seen = []
    assert run_guarded(seen.extend, ["main", "--scale", "smoke"], "python -m paper") == 0
    assert seen == ["main", "--scale", "smoke"]
    assert run_guarded(lambda _: 1, [], "python -m paper") == 1

"""The journal: nothing that was answered is lost, and what was not written leaves no trace."""

import errno
import json
import os

import pytest

from vcc_infuse.errors import UserError
from vcc_infuse.label.journal import Journal


def test_what_was_appended_is_read_again_in_order(tmp_path):
    with Journal(tmp_path / "x" / "journal.jsonl") as journal:
        for number in range(3):
            journal.append({"action": "skip", "image": f"ä\udcff{number}.png"})
    with Journal(tmp_path / "x" / "journal.jsonl") as journal:
        assert [record["image"] for record in journal.records] == [f"ä\udcff{number}.png" for number in range(3)]
        assert journal.note == ""


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_line_that_was_cut_short_is_dropped_with_a_note(tmp_path, cut):
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append({"action": "skip", "image": "a"})
        whole = path.read_bytes()
        journal.append({"action": "skip", "image": "b"})
    path.write_bytes(path.read_bytes()[:-cut])
    with Journal(path) as journal:
        assert [record["image"] for record in journal.records] == ["a"]
        assert "cut short" in journal.note
        journal.append({"action": "skip", "image": "c"})
    assert path.read_bytes().startswith(whole)
    assert [json.loads(line).get("image") for line in path.read_text().splitlines()] == [None, "a", "c"]


def test_a_second_server_is_refused(tmp_path):
    with (
        Journal(tmp_path / "journal.jsonl"),
        pytest.raises(UserError, match="in use by another server; close it, or give another --out"),
    ):
        Journal(tmp_path / "journal.jsonl")
    Journal(tmp_path / "journal.jsonl").close()


@pytest.mark.parametrize("call", ["fsync", "pwrite"])
def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch, call):
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append({"action": "skip", "image": "a"})
        before = path.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(os, call, no_space)
            with pytest.raises(OSError, match="No space"):
                journal.append({"action": "skip", "image": "b"})
        assert path.read_bytes() == before
        journal.append({"action": "skip", "image": "c"})
    assert [json.loads(line).get("image") for line in path.read_text().splitlines()] == [None, "a", "c"]


def no_space(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("line", [b"[1]", b"\xff", b"{", b"[" * 100_000, b'{"format": 9}'])
def test_a_damaged_line_names_the_file_and_a_remedy(tmp_path, line):
    path = tmp_path / "journal.jsonl"
    path.write_bytes((b"" if b"format" in line else b'{"format": 1}\n') + line + b'\n{"action": "undo"}\n')
    with pytest.raises(UserError, match="journal.jsonl.*; .*give another --out|give another --out"):
        Journal(path)

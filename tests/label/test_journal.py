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


def written(path, actions=4):
    with Journal(path) as journal:
        for number in range(actions):
            journal.append({"action": "label", "image": f"{number}.png", "class": 0})
    return path.read_bytes()


@pytest.mark.parametrize("line", [b"[1]", b"\xff", b"{", b"[" * 100_000, b'{"line":2,"action":"undo"}'])
def test_a_damaged_line_names_the_file_and_a_remedy(tmp_path, line):
    path = tmp_path / "journal.jsonl"
    lines = written(path).splitlines()
    lines[2] = line
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(UserError, match="journal.jsonl, line 3 is damaged .*; remove the line.*give another --out"):
        Journal(path)


def test_no_bit_changes_without_a_word(tmp_path):
    path = tmp_path / "journal.jsonl"
    content = written(path)
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        said = ""
        try:
            with Journal(path) as journal:
                said = journal.note
        except UserError as fault:
            said = str(fault)
        assert "journal.jsonl" in said


def test_a_removed_line_is_named_and_the_others_count(tmp_path):
    path = tmp_path / "journal.jsonl"
    lines = written(path).splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], *lines[3:]]))
    for _ in range(2):
        with Journal(path) as journal:
            assert [record["image"] for record in journal.records[:3]] == ["0.png", "2.png", "3.png"]
            assert journal.note == "1 lines of journal.jsonl are missing; what they said is left out"
            journal.append({"action": "undo"})


def test_another_version_is_refused(tmp_path, monkeypatch):
    written(tmp_path / "journal.jsonl")
    monkeypatch.setattr("vcc_infuse.label.journal.FORMAT", 9)
    with pytest.raises(UserError, match="is no journal of this version; give another --out"):
        Journal(tmp_path / "journal.jsonl")


@pytest.mark.parametrize("journal", [None, b""])
def test_labels_without_their_journal_are_not_overwritten(tmp_path, journal):
    (tmp_path / "labels.csv").write_text("file,label\na.png,cat\n")
    if journal is not None:
        (tmp_path / "journal.jsonl").write_bytes(journal)
    with pytest.raises(UserError, match="has labels.csv, but its journal.jsonl is empty or gone; .*--label_file"):
        Journal(tmp_path / "journal.jsonl")
    assert "cat" in (tmp_path / "labels.csv").read_text()

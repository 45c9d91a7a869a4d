import json
import math

import numpy as np
import pytest

from vcc_infuse import UserError
from vcc_infuse.utils.io import (
    append_jsonl,
    load_npz,
    read_json,
    read_jsonl,
    save_npz,
    write_atomic,
    write_json,
    write_text,
)


def test_a_failing_writer_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"x": 1})

    def fail(temporary):
        temporary.write_text("half")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError):
        write_atomic(path, fail)
    assert json.loads(path.read_text()) == {"x": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_unknown_numbers_become_null(tmp_path):
    write_json(tmp_path / "a.json", {"x": [math.nan, {"y": math.inf}], "z": 1.5})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": [None, {"y": None}], "z": 1.5}


def test_text_that_utf8_cannot_hold_is_escaped_or_replaced_and_json_reads_it_back(tmp_path):
    write_text(tmp_path / "a.txt", "é\udcff")
    assert (tmp_path / "a.txt").read_bytes() == "é\\udcff".encode()
    write_json(tmp_path / "a.json", {"é\udcff": "\\udcff"})
    assert read_json(tmp_path / "a.json") == {"é\udcff": "\\udcff"}
    append_jsonl(tmp_path / "a.jsonl", {"step": 1, "name": "\udcff"})
    assert read_jsonl(tmp_path / "a.jsonl").values == [{"step": 1, "name": "\udcff"}]
    write_text(tmp_path / "a.txt", "é\udcff", errors="replace")
    assert (tmp_path / "a.txt").read_bytes() == "é?".encode()


@pytest.mark.parametrize("cut", [1, 2, 12])
def test_a_last_line_cut_short_is_left_out_and_counted(tmp_path, cut):
    """Also where the cut is inside a character of two bytes."""
    path = tmp_path / "m.jsonl"
    append_jsonl(path, {"step": 1, "name": "line\u2028separator"})
    append_jsonl(path, {"step": 2})
    whole = read_jsonl(path)
    assert whole == ([{"step": 1, "name": "line\u2028separator"}, {"step": 2}], [])
    path.write_bytes(path.read_bytes() + '{"name": "éa'.encode()[:-cut])
    assert read_jsonl(path) == (whole.values, [3])


@pytest.mark.parametrize("damage", [b"rubbish", b"[1]", b"\xff", b"{}", b'{"step": "2"}', b'{"a":' * 9999])
def test_a_damaged_line_is_left_out_and_its_number_is_told(tmp_path, damage):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n' + damage + b'\n{"step": 3}\n')
    found = read_jsonl(path)
    assert found == ([{"step": 1}, {"step": 3}], [2])
    assert found.complaint(path) == f"{path}: 1 line is damaged and left out (line 2)"


def test_a_complete_last_line_needs_no_newline(tmp_path):
    (tmp_path / "m.jsonl").write_text('{"step": 1}\n\n{"step": 2}')
    assert read_jsonl(tmp_path / "m.jsonl") == ([{"step": 1}, {"step": 2}], [])


def test_files_that_do_not_exist(tmp_path):
    assert read_jsonl(tmp_path / "a") == ([], [])
    assert read_json(tmp_path / "a") is None
    assert load_npz(tmp_path / "a") is None


def test_damaged_json_is_one_line(tmp_path):
    (tmp_path / "a.json").write_text('{"x":')
    with pytest.raises(UserError, match=r"a\.json is damaged: .*; restore it from a copy or remove it"):
        read_json(tmp_path / "a.json")


def test_arrays_come_back_as_they_were(tmp_path):
    columns = {"ids": np.arange(3), "names": np.array(["a", "\udcff"])}
    save_npz(tmp_path / "new" / "a.npz", columns)
    found = load_npz(tmp_path / "new" / "a.npz")
    assert found.keys() == columns.keys()
    for name, column in columns.items():
        assert found[name].dtype == column.dtype
        assert found[name].tolist() == column.tolist()
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["a.npz"]

import json
import math

import pytest

from vcc_infuse.utils.io import append_jsonl, read_jsonl, write_atomic, write_json


def test_a_failing_writer_leaves_the_old_file_and_no_rubbish(tmp_path):
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


def test_a_torn_last_line_is_left_out(tmp_path):
    path = tmp_path / "m.jsonl"
    append_jsonl(path, {"step": 1})
    append_jsonl(path, {"step": 2})
    path.write_text(path.read_text() + '{"step": 3, "err')
    assert read_jsonl(path) == [{"step": 1}, {"step": 2}]

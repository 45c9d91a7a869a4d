import json

import pytest

from tests.helpers.folders import make_run
from vcc_infuse.errors import UserError
from vcc_infuse.report.read import read_run, read_runs


def test_a_torn_last_line_is_left_out(folder):
    with open(folder / "metrics.jsonl", "a") as handle:
        handle.write('{"step": 50, "err')
    assert [line["step"] for line in read_run(folder, "one").metrics] == [10, 20, 30, 40]


def test_a_broken_line_within_is_reported_with_its_number(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text(lines[0] + "rubbish\n" + lines[1])
    run = read_run(folder, "one")
    assert len(run.metrics) == 2
    assert run.warnings == ["metrics.jsonl: 1 line is damaged and left out (line 2)"]


@pytest.mark.parametrize("name", ["predictions.npz", "gallery.npz"])
def test_a_damaged_file_is_named(folder, name):
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=f"{name} is damaged"):
        read_run(folder, "one")


def test_a_pickle_is_refused(folder):
    import numpy as np

    np.savez(folder / "predictions.npz", truth=np.array([object()], dtype=object))
    with pytest.raises(UserError, match="predictions.npz is damaged"):
        read_run(folder, "one")


def test_a_list_is_no_summary(folder):
    (folder / "summary.json").write_text("[]")
    with pytest.raises(UserError, match="does not hold a JSON object"):
        read_run(folder, "one")


def test_names_differ(tmp_path):
    paths = [make_run(tmp_path / side / "run") for side in "ab"]
    assert [run.name for run in read_runs([*paths, paths[0]])] == [str(path) for path in paths]


def test_an_unfinished_run_has_its_latest_metrics(tmp_path):
    run = read_run(make_run(tmp_path / "run", finished=False), "run")
    assert run.summary is None
    assert run.latest["step"] == 40
    assert run.classes == tuple(str(i) for i in range(10))


def test_classes_that_share_a_name_are_made_distinct(tmp_path):
    run = read_run(make_run(tmp_path / "run", classes=["a", "b", "a"]), "run")
    assert run.classes == ("a (0)", "b (1)", "a (2)")


def test_the_summary_names_the_classes(tmp_path):
    run = read_run(make_run(tmp_path / "run", classes=["a", "b"]), "run")
    assert run.classes == tuple(json.loads((tmp_path / "run/summary.json").read_text())["classes"])

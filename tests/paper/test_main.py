"""`python -m paper` as a user calls it."""

import json
from pathlib import Path

import pytest

from paper.__main__ import main


def paper(*words: str, where: Path) -> int:
    return main([*words, "--cells", str(where / "cells"), "--out", str(where)])


SOME_ROWS = ("--rows", "VCC-F", "--rows", "OracleINFUSE", "--rows", "softmax")


@pytest.mark.parametrize(
    "rows", [pytest.param((), marks=pytest.mark.slow, id="all"), pytest.param(SOME_ROWS, id="some")]
)
def test_all_tables_at_smoke_scale(rows: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert paper("all", "--scale", "smoke", "--seeds", "1", *rows, where=tmp_path) == 0
    names = {path.name for path in tmp_path.glob("*-smoke.*")}
    stems = (
        "main", "stl10", "calibration", "coreset", "efficiency", "calibrators", "ablation-scores", "ablation-vae",
        "imbalance", "readings", "confidence", "beyond-confidence", "beyond-error", "beyond-selection",
    )  # fmt: skip
    assert names == {f"{stem}-smoke.{kind}" for stem in stems for kind in ("md", "html", "json")}
    for stem in stems:
        entries = json.loads((tmp_path / f"{stem}-smoke.json").read_text())["entries"]
        # Four steps are too few for a temporal score, but all rows of the table share one run.
        found = [
            entry["metrics_by_seed"]["error"] if stem.endswith("confidence") else entry["by_seed"] for entry in entries
        ]
        assert {len(each) for each in found} == {1}, stem
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == len(stems)  # short where nobody watches


def test_shards_together_are_the_whole(tmp_path: Path) -> None:
    command = ("ablation-vae", "--scale", "smoke", "--seeds", "1")
    for shard in ("1/3", "2/3"):
        paper(*command, "--shard", shard, where=tmp_path)
    text = (tmp_path / "ablation-vae-smoke.md").read_text()
    assert "4 of 5 runs are finished" in text
    paper(*command, "--shard", "3/3", where=tmp_path)
    assert "5 of 5 runs are finished" in (tmp_path / "ablation-vae-smoke.md").read_text()


def test_dry_run_lists_cells_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert paper("ablation-vae", "--scale", "smoke", "--seeds", "2", "--dry-run", where=tmp_path) == 0
    *cells, total = capsys.readouterr().out.splitlines()
    assert len(cells) == 10
    assert total.startswith("10 of 10 cells to run; about")
    assert list(tmp_path.iterdir()) == []


def test_seeds_start_where_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("ablation-vae", "--scale", "smoke", "--seeds", "2", "--first-seed", "5", "--rows", "MLP")
    assert paper(*command, "--dry-run", where=tmp_path) == 0
    *cells, _ = capsys.readouterr().out.splitlines()
    assert [cell.split("-")[-2] for cell in cells] == ["s5", "s6"]
    assert paper(*command, where=tmp_path) == 0
    (written,) = tmp_path.rglob("ablation-vae-smoke.md")
    assert "over seeds 5 to 6; differences are paired" in written.read_text()
    assert "2 of 2 runs are finished" in written.read_text()


def test_columns_run_and_write_a_part(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ("coreset", "--seeds", "1", "--dry-run", "--columns", "STL-10, 40 labels, 10 % kept")
    (tmp_path / "stl10").mkdir()
    assert paper(*asked, "--data-root", str(tmp_path), where=tmp_path) == 0
    *cells, _ = capsys.readouterr().out.splitlines()
    assert len(cells) == 4 + 2 + 9 + 2  # baselines, the full pool plain and lazy, selectors, lazy short and oracle
    assert all("stl10-40-" in cell for cell in cells)
    assert {"0.1"} == {cell.split("-")[4] for cell in cells if "INFUSE" in cell}


def test_rows_run_a_part(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ("coreset", "--seeds", "2", "--dry-run", "--columns", "CIFAR-10, 250 labels, 40 % kept")
    (tmp_path / "cifar10").mkdir()
    # A whole name is that row alone, although others, such as "FixMatch + INFUSE, as printed", contain it.
    rows = ("--rows", "RandomOnline", "--rows", "FixMatch + INFUSE")
    assert paper(*asked, *rows, "--data-root", str(tmp_path), where=tmp_path) == 0
    *cells, _ = capsys.readouterr().out.splitlines()
    kinds = sorted("-".join(cell.split("cifar10-250-")[1].split("-")[:2]) for cell in cells)
    assert kinds == ["FixMatch-INFUSE"] * 2 + ["FixMatch-RandomOnline"] * 2 + ["FlexMatch-RandomOnline"] * 2


def test_a_row_without_the_row_it_is_compared_with(tmp_path: Path) -> None:
    assert paper("ablation-vae", "--scale", "smoke", "--seeds", "1", "--rows", "MLP", where=tmp_path) == 0
    (text,) = (path.read_text() for path in tmp_path.rglob("ablation-vae-smoke.md"))
    assert "MLP" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mian"], "table mian is unknown"),
        (["main", "--shard", "5/4"], "--shard must be i/n with i from 1 to n, such as 1/4, got '5/4'"),
        (["main", "--shard", "x"], "--shard must be i/n"),
        (["coreset", "--columns", "MNIST, 9"], "--columns MNIST, 9 is not part of any name; there are: CIFAR-10"),
        (["coreset", "--columns", "CIFAR", "--columns", "MNIST, 9"], "--columns MNIST, 9 is not part of any name"),
        (["coreset", "--rows", "INFUSION"], "--rows INFUSION is not part of any name; there are: Supervised"),
        (["main", "--seeds", "0"], "--seeds must be an integer of at least 1, got 0"),
        (["main", "--jobs", "-1"], "--jobs must be an integer of at least 1, got -1"),
        (["main", "--scale", "huge"], "--scale must be one of smoke, scratch, frozen, paper, got 'huge'"),
        (["stl10", "--scale", "scratch"], "table stl10 does not exist at scale scratch; choose --scale frozen"),
        (["main", "--data-root", "/nowhere"], "--data_root must be a folder, got '/nowhere'"),
        (
            ["stl10", "--scale", "paper", "--data-root", "EMPTY"],
            "must hold stl10.zip, a folder stl10 or torchvision's files",
        ),
        (["ablation-vae", "--scale", "smoke", "--backend", "slurm"], "--backend must be one of loky"),
    ],
)
def test_mistakes_cost_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(tmp_path) if word == "EMPTY" else word for word in words]
    assert main(words) == 2
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1


def test_runs_in_a_file_are_not_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A grid continues where only the file of its runs is left, and makes the same table."""
    command = ("ablation-vae", "--scale", "smoke", "--seeds", "1", "--runs", str(tmp_path / "runs.jsonl"))
    paper(*command, "--shard", "1/2", where=tmp_path / "here")
    first = len((tmp_path / "runs.jsonl").read_text().splitlines())
    paper(*command, "--dry-run", where=tmp_path / "there")
    assert f"{5 - first} of {5 - first} cells to run" in capsys.readouterr().out
    assert not (tmp_path / "there").exists()
    paper(*command, where=tmp_path / "there")
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 5
    logs = list((tmp_path / "there" / "cells").glob("*.log"))
    assert len(logs) == 5 - first
    paper(*command, where=tmp_path / "elsewhere")
    tables = [(tmp_path / where / "ablation-vae-smoke.json").read_text() for where in ("there", "elsewhere")]
    assert json.loads(tables[0])["entries"] == json.loads(tables[1])["entries"]
    (tmp_path / "runs.jsonl").write_text('{"options": 3}\n')
    assert paper(*command, where=tmp_path) == 2
    assert "runs.jsonl: line 1 is not a finished run" in capsys.readouterr().err

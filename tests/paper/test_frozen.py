"""The frozen scale on generated images and a random network: banks are shared, rows are there, kills cost one cell."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from paper import Cell, run_grid, scales
from paper.__main__ import main
from paper.banks import bank_key, open_bank, subset
from paper.grid import CHECKOUT
from paper.scales import LEFT_OUT, run_options
from paper.tables import TABLES, calibration, coreset, imbalance, tables
from paper.tables import main as main_table
from vcc_infuse import FixMatch, Timm, Trainer, load_ssl
from vcc_infuse.bank.bank import Bank, BankConfig
from vcc_infuse.bank.embed import embed_data, head
from vcc_infuse.data.ssl_data import load
from vcc_infuse.training.presets import preset_options

TINY: dict[str, Any] = {
    "model": "Timm", "model.name": "test_resnet", "model.weights": "none", "model.input_size": 16, "bank.weak": 1,
    "bank.strong": 2, "steps": 4, "eval_every": 4, "batch_size": 4,
    "cross_fit": False,
}  # fmt: skip
BASELINES = ["Supervised", "LinearProbe", "LabelSpreading"]
# The scale with a tiny network, four steps and four labels, as a program of its own.
PROGRAM = f"""
import sys
from paper import scales
from paper.__main__ import main
original = scales.run_options
scales.FROZEN |= {TINY!r}
scales.run_options = lambda scale, data, labels, **more: original(scale, data, 4, **more)
sys.exit(main(sys.argv[1:]))
"""


def make_images(folder: Path, classes: int, train: int, test: int) -> None:
    """Class folders of noise around a color per class."""
    rng = np.random.default_rng(classes)
    for number in range(classes):
        color = rng.integers(40, 215, 3)
        for part, count in (("train", train), ("test", test)):
            where = folder / part / f"{number:03d}"
            where.mkdir(parents=True)
            for i in range(count):
                pixels = np.clip(color + rng.normal(0, 30, (16, 16, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(where / f"{i}.png")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name in ("cifar10", "cifar100", "stl10", "svhn", "fashion_mnist"):
        make_images(folder / name, 2, 24, 3)
    return folder


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The scale itself, with a network and runs that cost nothing."""
    monkeypatch.setattr(scales, "FROZEN", TINY)
    monkeypatch.setenv("VCC_INFUSE_CACHE", str(tmp_path / "cache"))
    open_bank.cache_clear()


def cell(algorithm: str, root: Path, **more: object) -> Cell:
    options = run_options("frozen", "stl10", 4, precision="fp32", **more)
    return Cell({**options, "data": str(root / "stl10"), "algorithm": algorithm, "seed": 0})


@pytest.mark.parametrize("name", TABLES)
def test_every_table_starts_with_the_baselines_and_has_no_number_of_the_paper(name: str) -> None:
    (table,) = tables(name, "frozen")
    assert [row.name for row in table.rows[:3]] == BASELINES
    assert not any(row.paper for row in table.rows)
    assert {column.stands_for for column in table.columns} == {None}
    if name in ("confidence", "beyond-confidence"):  # of pseudo labels, which the baselines do not have
        assert table.reference is None
        return
    assert table.reference == "LinearProbe"
    wanted = {"error", "ece", "ece_calibrated", "pseudo_label_coverage", "pseudo_label_precision", "seconds"}
    assert wanted <= set(table.metrics)
    assert not {row.options["algorithm"] for row in table.rows} & LEFT_OUT.keys()


def test_columns_of_the_main_table() -> None:
    (table,) = tables("main", "frozen")
    assert [(column.options["data"], column.options["labels"]) for column in table.columns] == [
        ("cifar10", 40), ("cifar10", 250), ("cifar100", 400), ("cifar100", 2500), ("stl10", 40), ("svhn", 250),
        ("fashion_mnist", 100),
    ]  # fmt: skip
    assert "ReMixMatch is left out: it rotates images" in table.remark
    assert "weak on SVHN" in table.remark
    assert len({bank_key(Cell(column.options)) for column in table.columns}) == 5  # one bank per dataset


def test_a_cell_is_the_preset_frozen() -> None:
    config = Cell({**run_options("frozen", "cifar10", 40), "algorithm": "FixMatch", "seed": 1}).config().train_config()
    expected = {name: value for name, value in preset_options("frozen", "cifar10").items() if hasattr(config, name)}
    assert len(expected) >= 7
    departs = {"eval_every": expected["steps"], "cross_fit": False}  # tables compare methods, not what is handed out
    assert {name: getattr(config, name) for name in expected} == {**expected, **departs}
    assert not config.report


@pytest.mark.usefixtures("tiny")
def test_cells_share_one_bank_and_leave_their_summary_alone(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []
    original = Bank.embed_all

    def build(bank: Bank, *rows: object, **options: object) -> object:
        built.append(bank.missing())
        return original(bank, *rows, **options)

    monkeypatch.setattr(Bank, "embed_all", build)
    todo = [cell(name, root) for name in ("LinearProbe", "Supervised", "FixMatch")]
    broken = Cell({**todo[0].options, "lr": -1.0})
    failures = run_grid([broken, *todo], tmp_path / "cells")
    assert [failure.cell for failure in failures] == [broken]
    assert built == [48 * 4 + 6]  # opened once: plain, weak and two strong views of each, and the test images
    for each in todo:
        assert [path.name for path in each.folder(tmp_path / "cells").iterdir()] == ["summary.json"]
        summary = each.summary(tmp_path / "cells")
        assert summary is not None
        assert summary["seconds"] >= summary["seconds_train"]
    open_bank.cache_clear()
    assert run_grid([cell("FlexMatch", root)], tmp_path / "cells") == []
    assert built[1:] == [0]  # another process finds it in the cache


@pytest.mark.usefixtures("tiny")
def test_a_cell_equals_a_run_on_the_same_bank(root: Path, tmp_path: Path) -> None:
    """The oracle is the ordinary way: load the images, embed them, train."""
    asked = {"steps": 30, "lr": 0.3, "optimizer": "sgd", "weight_decay": 0.0, "head_init": "probe", "head_scale": 3.0}
    todo = cell("FixMatch", root, eval_every=30, **asked)
    assert run_grid([todo], tmp_path / "cells") == []
    data = load_ssl(str(root / "stl10"), labels=4, seed=0)
    torch.manual_seed(0)
    encoder = Timm("test_resnet", weights="none", input_size=16)
    data = embed_data(data, encoder, BankConfig(weak=1, strong=2), cache=str(tmp_path / "other"))
    trainer = Trainer(head(), FixMatch(), batch_size=4, progress=False, **asked)
    ours, expected = todo.summary(tmp_path / "cells"), trainer.fit(data)
    assert ours is not None
    for name in ("error", "ece", "nll", "error_probe", "pseudo_label_coverage"):
        assert ours[name] == pytest.approx(expected[name], abs=1e-6), name


@pytest.mark.slow
@pytest.mark.usefixtures("tiny")
def test_two_jobs_give_what_one_gives(root: Path, tmp_path: Path) -> None:
    todo = [cell(name, root) for name in ("Supervised", "FixMatch", "LabelSpreading")]
    for jobs in (1, 2):
        assert run_grid(todo, tmp_path / str(jobs), jobs=jobs) == []
    for each in todo:
        one, two = (each.summary(tmp_path / str(jobs)) for jobs in (1, 2))
        assert one is not None
        assert two is not None
        assert one["nll"] == pytest.approx(two["nll"], rel=1e-4)


def test_a_subset_is_the_same_in_every_run_and_keeps_names(root: Path) -> None:
    images = load(str(root / "stl10"))
    first, again = subset(images, train=20, test=4), subset(images, train=20, test=4)
    assert (len(first.train), len(first.test)) == (20, 4)
    assert np.array_equal(first.train.x, again.train.x)
    assert set(first.train.y) == {0, 1}  # not the first rows, which are all of one class
    where = [list(images.train.names).index(name) for name in first.train.names]
    assert np.array_equal(first.train.x, images.train.x[where])
    assert subset(images, train=10**6).train is images.train


@pytest.mark.parametrize("names", [["stl10"], pytest.param(list(TABLES), marks=pytest.mark.slow)], ids=["one", "all"])
@pytest.mark.usefixtures("tiny")
def test_every_table_runs_through_the_command(
    names: list[str], root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scales, "run_options", lambda scale, data, labels, **more: run_options(scale, data, 4, **more))
    monkeypatch.setitem(imbalance.TAILS, "frozen", [{"first": 4, "gamma": 2, "beta": 0.5}])
    monkeypatch.setattr(coreset, "FROZEN_SETTINGS", [("stl10", 40)])
    monkeypatch.setattr(coreset, "KEEPS", (0.4,))
    for table in (main_table, calibration):
        monkeypatch.setattr(table, "FROZEN_SETTINGS", [("cifar10", 40), ("svhn", 250), ("fashion_mnist", 100)])
    table = "all" if len(names) > 1 else names[0]
    words = [table, "--scale", "frozen", "--seeds", "1", "--data-root", str(root)]
    assert main([*words, "--cells", str(tmp_path / "cells"), "--out", str(tmp_path)]) == 0
    assert {path.stem for path in tmp_path.glob("*.md")} == {f"{name}-frozen" for name in names}
    for name in names:
        entries = json.loads((tmp_path / f"{name}-frozen.json").read_text())["entries"]
        assert [entry["row"] for entry in entries[:3]] == BASELINES
        if name in ("confidence", "beyond-confidence"):
            assert {len(entry["metrics_by_seed"]["error"]) for entry in entries} == {1}
            continue
        assert all(len(entry["by_seed"]) == 1 for entry in entries), name
        probes = {entry["column"]: entry["ours"]["error"]["mean"] for entry in entries if entry["row"] == "LinearProbe"}
        for entry in entries:
            found, own = entry["difference_to_reference"], entry["ours"]["error"]["mean"]
            if entry["row"] == "LinearProbe":
                assert found is None
            else:
                assert found["mean"] == pytest.approx(own - probes[entry["column"]])
    text = (tmp_path / f"{names[0]}-frozen.md").read_text()
    assert "Δ to LinearProbe [95 % interval]" in text
    assert ", paper" not in text
    assert ("| FixMatch | LinearProbe | 3 |" in text) == (names[0] == "main")  # over all columns


@pytest.mark.usefixtures("tiny")
def test_fashion_mnist_is_skipped_with_a_remark_where_it_is_not_installed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vcc_infuse.data.sources.named.DEBIAN", tmp_path / "nowhere")
    others = tmp_path / "data"
    others.mkdir()
    (others / "stl10").symlink_to(root / "stl10")
    words = ["main", "--scale", "frozen", "--seeds", "1", "--data-root", str(others), "--rows", "Linear"]
    where = ["--cells", str(tmp_path / "cells"), "--out", str(tmp_path)]
    assert main([*words, "--columns", "STL", "--columns", "Fashion", *where]) == 0
    text = (tmp_path / "main-frozen.md").read_text()
    assert "Fashion-MNIST is skipped: apt-get install dataset-fashion-mnist." in text
    assert "## Fashion" not in text
    capsys.readouterr()
    assert main([*words, "--columns", "Fashion", *where]) == 2  # alone it is missed
    assert "fashion_mnist: no IDX files" in capsys.readouterr().err


def test_dry_run_times_a_step_on_vectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["stl10", "--scale", "frozen", "--seeds", "1", "--dry-run", "--data-root", str(tmp_path)]
    (tmp_path / "stl10").mkdir()
    assert main([*words, "--cells", str(tmp_path / "cells")]) == 0
    *cells, total = capsys.readouterr().out.splitlines()
    assert len(cells) == 4 + 3 * 5
    hours = float(total.split("about ")[1].split()[0])
    assert hours < 1  # 600 steps on vectors take seconds, not the hours of the network


def start(root: Path, folder: Path) -> subprocess.Popen[bytes]:
    words = ["ablation-vae", "--columns", "STL", "--scale", "frozen", "--seeds", "1"]
    words += ["--data-root", str(root)]
    command = [sys.executable, "-c", PROGRAM, *words, "--cells", str(folder / "cells"), "--out", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VCC_INFUSE_CACHE": str(folder / "cache")}
    return subprocess.Popen(command, start_new_session=True, env=environment, cwd=CHECKOUT)


def errors(folder: Path) -> dict[str, list[float]]:
    found = {}
    for path in sorted((folder / "cells").glob("*/summary.json")):
        summary = json.loads(path.read_text())
        found[path.parent.name] = [summary[name] for name in ("error", "nll", "ece_calibrated", "steps")]
    return found


@pytest.mark.slow
def test_killed_at_any_moment_it_ends_with_the_same_cells(root: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(root, whole).wait() == 0
    for finished in (0, 3):
        process = start(root, killed)
        while process.poll() is None and not (len(errors(killed)) >= finished and any(killed.glob("cache/banks/*"))):
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert 3 <= len(errors(killed)) < 9
    assert start(root, killed).wait() == 0
    assert errors(killed) == errors(whole)
    assert len(errors(killed)) == 9
    assert len(list(killed.glob("cache/banks/*"))) == 1

"""The study of the choice of network and size, on made-up features: what it draws, judges and writes."""

import json

import numpy as np
import pytest

from benchmarks import choose
from benchmarks.__main__ import main

NAMES = ("test_resnet", "test_vit")  # native 160 px: 96 and 160 are compared


@pytest.fixture
def features(tmp_path):
    """Features of ten classes, whose signal grows with size and differs between networks."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(10), 30)
    test_y = np.arange(200) % 10
    for name, strength in zip(NAMES, (0.5, 2.0), strict=True):
        for size in (96, 160):

            def draw(labels, scale=strength * size / 160):
                return rng.normal(size=(len(labels), 16)) + 2 * scale * np.eye(16)[labels]

            np.savez(
                tmp_path / f"toy-{name}-{size}.npz", lab=np.arange(len(y)), laby=y, labf=draw(y),
                poolf=draw(rng.integers(0, 10, 128)), testf=draw(test_y), testy=test_y,
                ms=size / 10, images=[1000, 200],
            )  # fmt: skip
    return tmp_path


def test_a_small_study(features, capsys):
    out = features / "choose"
    words = ["choose", "--sets", "toy=nowhere", "--networks", *NAMES, "--seeds", "2"]
    assert main([*words, "--features", str(features), "--out", str(out)]) == 0
    written = json.loads((features / "choose.json").read_text())
    assert len(written["results"]) == 2 * 2
    for cell in written["results"]:
        assert len(cell["errors"]) == 6, "two networks and their pair, at two sizes"
        assert cell["best_error"] == min(cell["errors"].values())
        assert cell["test_error"] == cell["errors"][cell["chosen"]]
        assert "test_vit" in cell["chosen"], "the network with the stronger signal, alone or in the pair"
    assert (features / "choose.md").read_text() in capsys.readouterr().out
    before = (features / "probes-toy-4-0.json").stat().st_mtime_ns
    assert main([*words, "--features", str(features)]) == 0
    assert (features / "probes-toy-4-0.json").stat().st_mtime_ns == before, "probes are kept"


def test_the_summary_counts_choices_within_a_point():
    cells = [
        {"test_error": error, "best_error": 0.1, "cost": cost}
        for error, cost in ((0.1, 0.01), (0.11, 0.02), (0.1101, 0.03), (0.2, 0.5))
    ]
    figures = choose.summary(cells)
    assert (figures["cells"], figures["within_a_point"]) == (4, 0.5)
    assert figures["lost"] == pytest.approx((0 + 0.01 + 0.0101 + 0.1) / 4)
    assert figures["worst"] == pytest.approx(0.1)
    assert figures["cost"] == pytest.approx(0.025)


def test_a_set_without_a_name_costs_one_line(capsys, tmp_path):
    assert main(["choose", "--sets", "data/cifar10.zip", "--features", str(tmp_path)]) == 2
    assert "--sets takes a name and a path" in capsys.readouterr().err

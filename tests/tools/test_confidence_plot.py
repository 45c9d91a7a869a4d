"""The bins of several seeds are put together as one pool, and both pictures are drawn."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from paper.confidences import EDGES, PARTS

TOOL = Path(__file__).parents[2] / "tools" / "confidence_plot.py"
BINS = len(EDGES) - 1


@pytest.fixture(scope="module")
def plot() -> ModuleType:
    spec = importlib.util.spec_from_file_location("confidence_plot", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def seed(share: float, confidence: float, accuracy: float) -> dict[str, object]:
    """The curves of a run with a part of its rows in the first bin, the others in the last, and no others."""
    empty = [None] * (BINS - 2)
    bins = {
        "share": [share, *[0.0] * (BINS - 2), 1 - share],
        "confidence": [confidence, *empty, 1.0],
        "accuracy": [accuracy, *empty, 0.5],
    }
    classes = [[0.1, 0.2]] * PARTS
    return {"auroc": [0.5] * PARTS, "coverage_per_class": classes, "bins": {"end": bins}}


def test_bins_of_several_seeds_weigh_by_their_rows(plot: ModuleType) -> None:
    gap, share = plot.end_bins({"curves": {"0": seed(0.2, 0.1, 0.0), "1": seed(0.6, 0.1, 0.2)}})
    assert gap[0] == pytest.approx((0.2 * 0.1 - 0.6 * 0.1) / 0.8)
    assert gap[-1] == pytest.approx(0.5)
    assert all(value != value for value in gap[1:-1])
    assert share[[0, -1]].tolist() == pytest.approx([0.4, 0.6])
    assert plot.end_bins({"curves": {"0": {"auroc": [0.5]}}}) is None


def test_both_pictures_are_drawn(plot: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        {"row": "softmax", "column": "c", "curves": {"0": seed(0.2, 0.1, 0.0)}},
        {"row": "other", "column": "earlier"},
    ]
    (tmp_path / "t.json").write_text(json.dumps({"entries": entries}))
    out = [tmp_path / "run.png", tmp_path / "truth.png"]
    monkeypatch.setattr(sys, "argv", ["confidence_plot.py", str(tmp_path / "t.json"), *map(str, out)])
    plot.main()
    assert all(path.stat().st_size > 1000 for path in out)

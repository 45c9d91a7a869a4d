"""Quality of confidences: metrics against other libraries, and a run that the measurement leaves alone."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torchmetrics.functional.classification import binary_calibration_error

from paper import Cell, run_grid
from paper.collect import collect
from paper.confidences import (
    CONFIDENCES,
    EDGES,
    EVIDENCE_PARTS,
    MOMENTS,
    SCORES,
    WatchedSoftmax,
    covered,
    in_bins,
    measure,
)
from paper.scales import run_options
from paper.tables import beyond, tables
from paper.tables.confidence import WATCHED
from paper.train import fit
from vcc_infuse.run import prepare


def test_metrics_are_those_of_other_libraries() -> None:
    torch.manual_seed(0)
    confidence, right = torch.rand(500), torch.rand(500) < 0.6
    found = measure(confidence, right)
    assert found["auroc"] == pytest.approx(roc_auc_score(right.numpy(), confidence.numpy()))
    expected = binary_calibration_error(confidence, right.int(), n_bins=15, norm="l1").item()
    assert found["ece"] == pytest.approx(expected, abs=1e-6)
    order = np.argsort(-confidence.numpy())[:350]  # 70 %
    assert found["precision"] == pytest.approx(right.numpy()[order].mean())
    matched = measure(confidence, right, trusted=40)["precision_matched"]
    assert matched == pytest.approx(right.numpy()[np.argsort(-confidence.numpy())[:40]].mean())
    assert "precision_matched" not in found
    assert "ece" not in measure(-confidence, right, probability=False)
    assert measure(confidence[:0], right[:0]) == {}


@pytest.fixture(scope="module")
def options() -> dict[str, object]:
    # Two passes through the pool, so that rows have an earlier visit.
    return {**run_options("smoke", "digits", 40), "steps": 40, "eval_every": 40, "batch_size": 32, "seed": 0}


@pytest.fixture(scope="module")
def watched(options: dict[str, object]) -> tuple[WatchedSoftmax, dict[str, float]]:
    run = prepare(Cell({**options, **WATCHED}).config())
    summary = fit(run)
    return run.trainer.state_.calibrator, summary


def test_measuring_does_not_change_the_run(
    options: dict[str, object], watched: tuple[WatchedSoftmax, dict[str, float]]
) -> None:
    """Compared with another calibrator that selects by the softmax and draws the same views."""
    plain = fit(prepare(Cell({**options, "algorithm": "FixMatch", "calibrator": "HardViewTemperature"}).config()))
    for name in ("error", "nll", "ece", "pseudo_label_coverage", "loss_unlabeled"):
        assert watched[1].get(name) == pytest.approx(plain.get(name), rel=1e-5), name


def test_every_confidence_is_measured_at_every_moment(watched: tuple[WatchedSoftmax, dict[str, float]]) -> None:
    calibrator, summary = watched
    assert tuple(summary["parts"]) == CONFIDENCES
    for name, found in summary["parts"].items():
        wanted = {"auroc", "precision"} | (set() if name in SCORES else {"ece"})
        moments = MOMENTS if name != "temporal" else ["end"]  # a first visit has no temporal score
        assert {f"{metric}_{moment}" for metric in wanted for moment in moments} <= found.keys(), name
    end = calibrator.kept[-1]
    rows = ~end[0].isnan()
    place = 1 + CONFIDENCES.index("VAE")
    expected = roc_auc_score(end[0][rows].numpy(), end[place][rows].numpy())
    assert summary["parts"]["VAE"]["auroc_end"] == pytest.approx(expected)
    assert end[1 + CONFIDENCES.index("target")][rows].unique().numel() > 10
    assert not torch.equal(end[1 + CONFIDENCES.index("target")][rows], end[1][rows])  # the target is not the softmax


def test_curves_have_a_value_for_each_twentieth_of_the_run(watched: tuple[WatchedSoftmax, dict[str, float]]) -> None:
    calibrator, summary = watched
    curve = summary["parts"]["target"]["curve"]
    assert {"auroc", "ece", "bias", "coverage"} <= set(curve)
    assert all(len(values) == 20 for name, values in curve.items() if name != "bins")
    right, target = (calibrator.curve[-1, place].numpy() for place in (0, 1 + CONFIDENCES.index("target")))
    known = ~(np.isnan(right) | np.isnan(target))
    right, target = right[known], target[known]
    assert curve["auroc"][-1] == pytest.approx(roc_auc_score(right, target))
    assert curve["bias"][-1] == pytest.approx(target.mean() - right.mean(), abs=1e-6)
    assert curve["coverage"][-1] == pytest.approx((target >= 0.95).mean())
    assert set(summary["parts"]["view"]["curve"]) == {"auroc"}


def test_coverage_per_class_is_that_of_the_true_classes(watched: tuple[WatchedSoftmax, dict[str, float]]) -> None:
    calibrator, summary = watched
    curve = summary["parts"]["softmax"]["curve"]
    values = calibrator.curve[-1, 1 + CONFIDENCES.index("softmax")].numpy()
    truth = calibrator.truth.numpy()
    rows = [(truth == label) & ~np.isnan(values) for label in range(10)]
    assert curve["coverage_per_class"][-1] == pytest.approx([(values[row] >= 0.95).mean() for row in rows], abs=1e-4)
    counts = [row.sum() for row in rows]
    assert curve["coverage"][-1] == pytest.approx(np.average(curve["coverage_per_class"][-1], weights=counts), abs=1e-4)
    assert covered(torch.tensor([0.96, 0.2, torch.nan]), torch.tensor([2, 2, 0])) == [None, None, 0.5]


def test_bins_add_up_to_the_bias(watched: tuple[WatchedSoftmax, dict[str, float]]) -> None:
    calibrator, summary = watched
    bins = summary["parts"]["VAE"]["curve"]["bins"]["end"]
    right, values = calibrator.kept[-1, [0, 1 + CONFIDENCES.index("VAE")]].numpy()
    known = ~np.isnan(values) & ~np.isnan(right)
    assert len(bins["share"]) == len(EDGES) - 1
    assert sum(bins["share"]) == pytest.approx(1)
    filled = [(share, c - a) for share, c, a in zip(*bins.values(), strict=True) if share]
    assert sum(share * gap for share, gap in filled) == pytest.approx(
        values[known].mean() - right[known].mean(), abs=1e-6
    )
    assert in_bins(torch.tensor([0.97, torch.nan]), torch.tensor([1.0, 1.0]))["accuracy"].index(1) == EDGES.index(0.95)


def test_rows_whose_label_the_method_saw_do_not_count(
    options: dict[str, object], watched: tuple[WatchedSoftmax, dict[str, float]]
) -> None:
    data = prepare(Cell({**options, **WATCHED}).config()).data
    seen = np.isin(data.split.pool, data.split.labeled)
    assert seen.any()
    assert watched[0].kept[:, 0, torch.from_numpy(seen)].isnan().all()
    truth = torch.from_numpy(data.pool_truth)
    assert torch.equal(watched[0].truth[~seen], truth[~seen])


def test_the_last_visit_in_a_window_counts() -> None:
    calibrator = WatchedSoftmax()
    split = SimpleNamespace(pool=np.arange(4))
    calibrator.attach(SimpleNamespace(hidden_truth=np.array([0, 1, -1, 2]), split=split))

    def visit(progress: float, ids: list[int], value: float) -> None:
        values = {name: torch.full((len(ids),), value) for name in CONFIDENCES}
        step = SimpleNamespace(progress=progress, steps=100, batch=SimpleNamespace(pool_ids=torch.tensor(ids)))
        calibrator._keep(step, values, torch.zeros(len(ids), dtype=torch.long))

    visit(0.10, [0, 1], 0.1)  # before the first window
    visit(0.20, [0, 1, 2], 0.2)
    visit(0.24, [1], 0.3)
    visit(0.25, [0], 0.4)  # after it
    assert calibrator.kept[0, 1].nan_to_num(-1).tolist() == pytest.approx([0.2, 0.3, 0.2, -1])
    assert calibrator.kept[0, 0].nan_to_num(-1).tolist() == [1, 0, -1, -1]
    assert calibrator.kept[1:].isnan().all()


def test_rows_of_the_table_share_one_run(tmp_path: Path) -> None:
    (table,) = tables("confidence", "smoke")
    cells = list(dict.fromkeys(table.cells(1)))
    assert len(cells) == 1
    assert run_grid([Cell({**cells[0].options})], tmp_path) == []
    entries = {entry.row.name: entry for entry in collect(table, 1, tmp_path)}
    parts = cells[0].summary(tmp_path)["parts"]
    assert entries["softmax"].ours["auroc_end"].mean == pytest.approx(parts["softmax"]["auroc_end"])
    change = parts["VAE"]["auroc_end"] - parts["softmax"]["auroc_end"]
    assert entries["VCC: r of the VAE"].difference.mean == pytest.approx(change)


def test_measuring_evidence_trains_as_fixmatch_alone(options: dict[str, object]) -> None:
    rows = (beyond.WATCHED, {"algorithm": "FixMatch"})
    watched, plain = (fit(prepare(Cell({**options, **row}).config())) for row in rows)
    for name in ("error", "nll", "ece", "pseudo_label_coverage", "loss_unlabeled"):
        assert watched.get(name) == pytest.approx(plain.get(name), rel=1e-5), name
    assert tuple(watched["parts"]) == EVIDENCE_PARTS
    ends = [found["auroc_end"] for found in watched["parts"].values()]
    assert len(set(ends)) == len(EVIDENCE_PARTS)  # each is a confidence of its own

"""Verdicts follow from intervals, recomputed with SciPy on a small table of made-up numbers."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy import stats

from paper.collect import recorded
from paper.tables import TABLES, tables

TOOL = Path(__file__).parents[2] / "tools" / "claims.py"


@pytest.fixture(scope="module")
def claims() -> ModuleType:
    spec = importlib.util.spec_from_file_location("claims", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["claims"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def entry(row: str, column: str, metric: str = "error", **values: float) -> dict[str, object]:
    return {"row": row, "column": column, "metrics_by_seed": {metric: {seed[1:]: v for seed, v in values.items()}}}


BASE = {"s0": 10.0, "s1": 12.0, "s2": 14.0}


@pytest.mark.parametrize(
    ("ours", "metric", "verdict"),
    [
        ([9.0, 11.1, 12.9], "error", "confirmed"),
        ([11.0, 13.1, 14.9], "error", "reversed"),
        ([9.0, 13.0, 13.9], "error", "not confirmed"),
        ([9.0, 11.1, 12.9], "auroc_end", "reversed"),  # more is better there
        ([11.0, 13.1, 14.9], "auroc_end", "confirmed"),
    ],
)
def test_a_verdict_follows_from_the_interval(claims: ModuleType, ours: list[float], metric: str, verdict: str) -> None:
    claim = claims.Claim("", "t", "new", "old", metric)
    values = dict(zip(BASE, ours, strict=True))
    (column,) = claims.differences(
        claim, [entry("old", "c", metric, **BASE), entry("new", "c", metric, **values)]
    ).values()
    finding = claims.judge(claim, list(column.values()))
    test = stats.ttest_rel(ours, list(BASE.values())).confidence_interval(0.95)
    assert (finding.difference.low, finding.difference.high) == pytest.approx((test.low, test.high))
    better = [b < o if metric == "auroc_end" else o < b for o, b in zip(ours, BASE.values(), strict=True)]
    assert (finding.verdict, finding.wins, finding.runs) == (verdict, sum(better), 3)


def test_one_seed_proves_nothing(claims: ModuleType) -> None:
    assert claims.judge(claims.Claim("", "t", "new", "old"), [-5.0]).verdict == "not confirmed"
    assert claims.judge(claims.Claim("", "t", "new", "old"), []).verdict == "not measured"


def test_all_columns_together_are_averaged_by_seed(claims: ModuleType) -> None:
    claim = claims.Claim("", "t", "new", "old")
    entries = [entry("old", "a", **BASE), entry("new", "a", s0=9.0, s1=11.5, s2=13.0)]
    entries += [entry("old", "b", **BASE), entry("new", "b", s0=8.0, s2=15.0)]  # seed 1 is not finished
    entries += [entry("old", "alone", **BASE), entry("other", "a", **BASE)]
    found = claims.overall(claim, claims.differences(claim, entries))
    assert found.difference.mean == pytest.approx(np.mean([(-1 - 2) / 2, (-1 + 1) / 2]))
    assert (found.difference.seeds, found.wins, found.runs) == (2, 4, 5)


def test_ties_are_neither_wins_nor_losses_and_nothing_but_ties_is_no_test(claims: ModuleType) -> None:
    claim = claims.Claim("", "t", "new", "old")
    some = claims.judge(claim, [-1.0, 0.0, 0.0, 2.0])
    assert (some.verdict, some.wins, some.ties, some.runs) == ("not confirmed", 1, 2, 4)
    assert "| 1 of 4 (2 ties) |" in claims.line("x", claim, some, "")
    assert claims.judge(claim, [0.0, 0.0, 0.0]).verdict == "not tested"
    assert claims.judge(claim, [0.0, 0.0, 1e-9]).verdict == "not confirmed"


def test_columns_in_which_the_row_cannot_act_do_not_count(claims: ModuleType) -> None:
    claim = claims.Claim("", "t", "new", "old")
    entries = [entry("old", "idle", **BASE), entry("new", "idle", **BASE)]
    assert claims.overall(claim, claims.differences(claim, entries)).verdict == "not tested"
    entries += [entry("old", "a", **BASE), entry("new", "a", s0=9.0, s1=11.1, s2=12.9)]
    (whole, first) = (line.split(" | ") for line in list(claims.section([claim], {"t": entries}))[2:4])
    assert whole[1:5] == ["**confirmed only on a**", "-1.00 [-1.25, -0.75]", "3 of 3", "1 / 0 / 0 / 1"]
    assert first[:2] == ["| · idle", "not tested"]


@pytest.mark.parametrize(
    ("metric", "coverage", "errors", "idle"),
    [
        ("ece", 100.0, BASE, {"c"}),
        ("ece", 99.99, BASE, set()),  # something was left to decide
        ("ece", 100.0, BASE | {"s1": 12.1}, set()),
        ("ece_calibrated", 100.0, BASE, set()),  # it acts at inference
        ("hours", 100.0, BASE, set()),
    ],
)
def test_equal_errors_at_full_coverage_are_no_test(
    claims: ModuleType, metric: str, coverage: float, errors: dict[str, float], idle: set[str]
) -> None:
    claim = claims.Claim("", "t", "new", "old", metric)
    entries = [entry("old", "c", **BASE), entry("new", "c", **errors)]
    for number, item in enumerate(entries):
        known = {"0": 100.0, "1": 100.0, "2": coverage if number else 100.0}
        item["metrics_by_seed"] |= {"pseudo_label_coverage": known, metric: {"0": 0.1, "1": 0.2, "2": 0.3 + number}}
    assert claims.idle_columns(claim, entries) == idle
    lines = list(claims.section([claim], {"t": entries}))
    verdict = lines[2].split(" | ")[1]
    assert verdict == ("**not tested**" if idle else "**not confirmed**")


def test_times_are_relative(claims: ModuleType) -> None:
    claim = claims.Claim("", "t", "new", "old", "hours")
    entries = [entry("old", "a", "hours", s0=2.0, s1=4.0), entry("new", "a", "hours", s0=1.0, s1=3.0)]
    assert claims.differences(claim, entries) == {"a": {"0": -50.0, "1": -25.0}}


def test_times_are_cpu_seconds_where_both_rows_have_them(claims: ModuleType) -> None:
    claim = claims.Claim("", "t", "new", "old", "hours")
    entries = [entry("old", "a", "hours", s0=2.0), entry("new", "a", "hours", s0=1.0)]
    entries[0]["metrics_by_seed"]["seconds_cpu"] = {"0": 10.0}
    assert claims.differences(claim, entries) == {"a": {"0": -50.0}}
    entries[1]["metrics_by_seed"]["seconds_cpu"] = {"0": 9.0}
    assert claims.differences(claim, entries) == {"a": {"0": pytest.approx(-10.0)}}


def test_every_claim_names_rows_and_metrics_of_its_table(claims: ModuleType) -> None:
    known = {name: tables(name, "frozen")[0] for name in TABLES}
    every = [claim for part in (claims.paper_claims(), claims.controls()) for _, found in part for claim in found]
    assert len(every) > 50
    unmeasured = []
    for claim in every:
        table = known[claim.table]
        rows = {row.name for row in table.rows}
        assert {claim.row, claim.base} <= rows, claim.text
        assert claim.metric in table.metrics, claim.text
        both = {claim.row, claim.base}
        if not any(column.rows is None or both <= set(column.rows) for column in table.columns):
            unmeasured.append(claim.base)
    assert unmeasured == ["FlexMatch + GradMatch", "FlexMatch + RETRIEVE"]  # too slow; the page says so
    assert len({claim.text for claim in every if claim.table != "imbalance"}) > 50


def test_the_page_has_one_line_per_claim(claims: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    better = {seed: value - 1 - 0.01 * i for i, (seed, value) in enumerate(BASE.items())}
    entries = [entry("FixMatch", "CIFAR", **BASE), entry("VCC-FixMatch", "CIFAR", **better)]
    (tmp_path / "main-frozen.json").write_text(json.dumps({"entries": entries}))
    out = tmp_path / "claims.md"
    monkeypatch.setattr(sys, "argv", ["claims.py", "--results", str(tmp_path), "--out", str(out)])
    claims.main()
    text = out.read_text()
    (line,) = (
        line
        for line in text.splitlines()
        if line.startswith("| VCC lowers the error of FixMatch | **confirmed only on CIFAR** |")
    )
    assert "| -1.01 [-1.03, -0.99] | 3 of 3 | 1 / 0 / 0 / 0 | main |" in line
    assert "| VCC lowers the error of FlexMatch | **not measured** | – | – | – | main |" in text


def test_from_scratch_a_column_counts_only_if_its_base_learns(claims: ModuleType) -> None:
    """Two standard errors of the paired gain over Supervised, recomputed here."""
    claim = claims.Claim("", "coreset", "FixMatch + INFUSE", "FixMatch + RandomOnline")
    supervised = entry("Supervised", "a labels", **BASE)
    clear = entry("FixMatch", "a labels", s0=8.0, s1=10.5, s2=11.5)
    gains = np.array([2.0, 1.5, 2.5])
    assert gains.mean() > 2 * stats.sem(gains)
    assert claims.learns("a labels, 40 % kept", claim, {"main": [supervised, clear]})
    noisy = entry("FixMatch", "a labels", s0=8.0, s1=12.5, s2=13.5)
    gains = np.array([2.0, -0.5, 0.5])
    assert gains.mean() < 2 * stats.sem(gains)
    assert not claims.learns("a labels, 40 % kept", claim, {"main": [supervised, noisy]})
    assert not claims.learns("b labels", claim, {"main": [supervised, clear]})


LOWER = {"s0": 9.0, "s1": 11.1, "s2": 12.9}


def headline(claims: ModuleType, *columns: tuple[str, dict[str, float]], metric: str = "error") -> str:
    """What the summary says of columns that differ from BASE as given."""
    claim = claims.Claim("", "t", "new", "old", metric)
    entries = [
        entry(row, name, metric, **values) for name, ours in columns for row, values in (("old", BASE), ("new", ours))
    ]
    found: str = claims.brief_of(claim, entries)
    return found


def test_the_headline_counts_tested_columns_only(claims: ModuleType) -> None:
    idle = ("CIFAR-100, 400 labels", BASE)
    lower = [("STL-10, 40 labels", LOWER), ("CIFAR-10, 40 labels", LOWER)]
    assert headline(claims, *lower, idle).endswith("6 of 6, 2 columns, 1 more not tested")
    assert headline(claims, *lower).startswith("**confirmed**: -1.00")
    assert headline(claims, idle).endswith("0 of 3 (3 ties), none of 1 columns tested")


def test_a_verdict_that_one_column_makes_names_it(claims: ModuleType) -> None:
    """FlexMatch with VCC on frozen features: two columns tested, and all of the difference from STL-10."""
    level = ("CIFAR-10, 250 labels", {"s0": 10.01, "s1": 12.0, "s2": 13.99})
    found = headline(claims, ("STL-10, 40 labels", LOWER), level, ("CIFAR-100, 400 labels", BASE))
    assert found.startswith("**confirmed only on STL-10, 40 labels**: -0.50 [-0.63, -0.37]")
    assert found.endswith("2 columns, 1 more not tested")
    claim = claims.Claim("", "t", "new", "old")
    entries = [entry(row, "STL-10, 40 labels", **values) for row, values in (("old", BASE), ("new", LOWER))]
    whole = list(claims.section([claim], {"t": entries}))[2]
    assert "| **confirmed only on STL-10, 40 labels** |" in whole


def test_a_verdict_on_one_data_set_names_it(claims: ModuleType) -> None:
    same = [(f"SVHN, {labels} labels", LOWER) for labels in (250, 1000)]
    assert headline(claims, *same).startswith("**confirmed only on SVHN**: ")
    assert headline(claims, *same).endswith("6 of 6, 2 columns")
    unclear = {"s0": 9.0, "s1": 12.5, "s2": 13.9}
    assert headline(claims, ("SVHN, 250 labels", unclear)).endswith("1 column (SVHN, 250 labels)")
    assert headline(claims, *((name, unclear) for name, _ in same)).endswith("2 columns (SVHN)")


def test_a_verdict_that_no_column_makes_is_one_on_average(claims: ModuleType) -> None:
    """A little lower everywhere, with much chance in each column and less in their mean."""
    columns = ("STL-10, 40 labels", "CIFAR-10, 40 labels")
    changes = ((-2.0, -0.9, 0.1), (0.1, -1.0, -2.1))
    rows = [{f"s{seed}": BASE[f"s{seed}"] + change for seed, change in enumerate(each)} for each in changes]
    found = headline(claims, *zip(columns, rows, strict=True))
    assert found.startswith("**confirmed only on average**: -0.97 ")


def test_a_column_with_one_pair_does_not_count_beside_fuller_ones(claims: ModuleType) -> None:
    """Else the mean over columns would have the single seed that all of them share."""
    found = headline(claims, ("MNIST, 40 labels", LOWER), ("Fashion-MNIST, 100 labels", {"s0": 15.0}))
    assert found == "**confirmed only on MNIST, 40 labels**: -1.00 [-1.25, -0.75], 3 of 3, 1 column"
    single = [(name, {"s0": 15.0}) for name in ("MNIST, 40 labels", "SVHN, 250 labels")]
    assert headline(claims, *single) == "**not confirmed**: +5.00, 0 of 2, 2 columns"


def test_the_vae_is_compared_with_what_it_learns_from(claims: ModuleType) -> None:
    """Without the VAE there is no r at inference, so that its calibrated ECE would be that of the softmax."""
    every = [claim for part in (claims.paper_claims(), claims.controls()) for _, found in part for claim in found]
    without = [claim for claim in (*every, *claims.main_claims()) if claim.base.endswith("without reconstruction")]
    assert {claim.metric for claim in without} == {"error", "ece"}
    fused = [claim for claim in (*every, *claims.main_claims()) if claim.base == "target r̃"]
    assert [(claim.row, claim.metric) for claim in fused] == 2 * [("VCC: r of the VAE", "ece_end")]


def test_both_readings_of_ece_and_both_sources_of_labels_have_a_line(claims: ModuleType) -> None:
    lines = {(claim.row, claim.base, claim.metric) for claim in claims.main_claims()}
    for base in ("FixMatch", "FlexMatch", "SimMatch"):
        assert {(f"VCC-{base}", base, metric) for metric in ("error", "ece", "ece_calibrated")} <= lines
    sources = {f"FlexMatch + EnsembleTS, {labels} labels" for labels in ("pseudo", "held-out")}
    assert {base for _, base, _ in lines if "EnsembleTS" in base} == sources
    calibration = [claim for name, found in claims.paper_claims() for claim in found if "calibration errors" in name]
    assert {claim.metric for claim in calibration if claim.base == "FixMatch"} >= {"ece", "ece_calibrated"}


@pytest.mark.parametrize(
    ("residuals", "words"),
    [
        ({"main": True, "coreset": True}, "at the softmax confidence"),
        ({"main": False}, "at ½ (`residual=False`)"),
        ({"main": None}, "at a value that these tables do not record (see their README)"),
        (
            {"main": True, "imbalance": False},
            "at the softmax confidence in main and at ½ (`residual=False`) in imbalance",
        ),
    ],
)
def test_where_vcc_starts_is_read_from_the_tables(
    claims: ModuleType, residuals: dict[str, bool | None], words: str
) -> None:
    found = {}
    for table, residual in residuals.items():
        options = {} if residual is None else {"calibrator.residual": residual}
        other = {"calibrator.residual": False}  # a reading, not the plain row
        found[table] = [entry("VCC-FixMatch", "c", **BASE) | {"options": options}]
        found[table].append(entry("VCC-FixMatch, starts at ½", "c", **BASE) | {"options": other})
    assert claims.start_of(found) == words
    assert f"VCC starts {words}" in " ".join(claims.page(found, "results/frozen", found, "results/scratch").split())


def test_a_table_records_where_vcc_starts() -> None:
    assert recorded({"calibrator": "VCC"}) == {"calibrator": "VCC", "calibrator.residual": True}
    assert recorded({"calibrator": "VCC", "calibrator.residual": False})["calibrator.residual"] is False
    assert recorded({"calibrator": "RobustVCC"}) == {"calibrator": "RobustVCC"}


def test_the_page_begins_with_one_line_per_claim(claims: ModuleType) -> None:
    better = {seed: value - 3 - 0.01 * i for i, (seed, value) in enumerate(BASE.items())}
    worse = {seed: value + 5 + 0.01 * i for i, (seed, value) in enumerate(BASE.items())}
    learned = [entry("Supervised", "c", **worse), entry("FixMatch", "c", **BASE), entry("VCC-FixMatch", "c", **better)]
    lines = list(claims.in_short({"main": learned[1:]}, {"main": learned}))
    assert len(lines) == 2 + len(claims.main_claims())
    assert lines[2].split(" | ")[1].startswith("**confirmed only on c**: -3.01")
    assert lines[2].split(" | ")[2].startswith("**confirmed only on c**: -3.01")
    assert lines[3] == "| VCC lowers the error of FlexMatch | not measured | not measured |"
    unlearned = [entry("Supervised", "c", **BASE), *learned[1:]]
    assert list(claims.in_short({}, {"main": unlearned}))[2].split(" | ")[1] == "not measured"


def test_every_line_of_the_summary_names_rows_of_both_scales(claims: ModuleType) -> None:
    for scale in ("frozen", "scratch"):
        known = {name: tables(name, scale)[0] for name in ("main", "coreset", "confidence", "efficiency", "imbalance")}
        for claim in claims.main_claims():
            if claim.table in known:
                rows = {row.name for row in known[claim.table].rows}
                assert {claim.row, claim.base} <= rows, (scale, claim.text)
                assert claim.metric in known[claim.table].metrics, (scale, claim.text)

"""Slower steps are noticed, noise is not."""

import json

import pytest

from benchmarks import check
from benchmarks.page import Part, write
from benchmarks.turns import Comparison
from vcc_infuse.errors import UserError


def part(*vcc):
    """Five rounds of a base that takes a second, and of VCC."""
    return Part("steps", "Steps", [Comparison("head", "ours", {"ours": [1.0] * 5, "VCC": list(vcc)})])


@pytest.fixture
def committed(tmp_path):
    write(part(1.9, 2.0, 2.0, 2.1, 2.0), tmp_path, "command")
    return tmp_path / "steps.json"


@pytest.mark.parametrize(
    ("times", "status"),
    [
        ((2.0, 2.1, 1.9, 2.0, 2.2), 0),
        ((3.4, 3.5, 3.3, 3.2, 3.6), 1),
        ((2.0, 2.1, 9.0, 9.0, 9.0), 0),  # two rounds are as fast as before: the machine was busy in the others
        ((2.9, 2.9, 2.9, 2.9, 2.9), 0),
    ],
)
def test_only_what_is_slower_in_most_rounds_fails(times, status, committed, monkeypatch, capsys):
    monkeypatch.setattr(check, "measured", lambda rounds: [part(*times)])
    assert check.main(["--committed", str(committed)]) == status
    assert ("slower" in capsys.readouterr().out) == bool(status)


def test_another_kind_of_processor_is_not_compared(committed, monkeypatch, capsys):
    monkeypatch.setattr(check, "measured", lambda rounds: [part(9.0, 9.0, 9.0, 9.0, 9.0)])
    assert check.main(["--committed", str(committed)]) == 1
    monkeypatch.setattr(check, "machine", lambda: {"vector_instructions": "another"})
    assert check.main(["--committed", str(committed)]) == 0
    assert "nothing is compared" in capsys.readouterr().out


def test_missing_or_foreign_results_cost_one_line(committed, monkeypatch):
    monkeypatch.setattr(check, "measured", lambda rounds: [part(2.0, 2.0, 2.0, 2.0, 2.0)])
    with pytest.raises(UserError, match=r"nowhere\.json does not exist; make it with"):
        check.main(["--committed", "nowhere.json"])
    figures = json.loads(committed.read_text())
    figures["comparisons"][0]["title"] = "another"
    committed.write_text(json.dumps(figures))
    with pytest.raises(UserError, match="nothing that was measured"):
        check.main(["--committed", str(committed)])


def test_the_committed_results_have_what_is_checked():
    titles = {title for title, _ in check.committed(check.Path("results/bench/steps.json"))}
    assert all(any(title.startswith(network) for title in titles) for network in check.NETWORKS)

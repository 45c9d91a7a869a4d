"""Slower steps are noticed, noise is not."""

import json

import pytest

from benchmarks import check
from benchmarks.page import Part, processor
from benchmarks.turns import Comparison
from vcc_infuse.errors import UserError


def part(*vcc):
    """Five rounds of a base that takes a second, and of VCC."""
    return Part("steps", "Steps", [Comparison("head", "ours", {"ours": [1.0] * 5, "VCC": list(vcc)})])


@pytest.fixture
def measuring(monkeypatch):
    """Let every measurement of the steps take the next of these times."""

    def answer(*measurements):
        left = [*measurements]
        monkeypatch.setattr(check, "NETWORKS", ("head",))
        monkeypatch.setattr(check, "measure_steps", lambda *_: part(*left.pop(0)))
        return left

    return answer


@pytest.fixture
def committed(tmp_path, measuring):
    measuring((1.9, 2.0, 2.0, 2.1, 2.0))
    assert check.main(["--record", "--committed", str(tmp_path / "check.json")]) == 0
    return tmp_path / "check.json"


SLOW = (3.4, 3.5, 3.3, 3.2, 3.6)


@pytest.mark.parametrize(
    ("measurements", "status"),
    [
        ([(2.0, 2.1, 1.9, 2.0, 2.2)], 0),
        ([SLOW, SLOW, SLOW], 1),
        ([SLOW, SLOW, (2.0, 2.1, 1.9, 2.0, 2.2)], 0),
        ([SLOW, (2.0, 2.1, 1.9, 2.0, 2.2)], 0),  # not again: the machine was busy
        ([(2.0, 2.1, 9.0, 9.0, 9.0)], 0),  # two rounds are as fast as before
        ([(2.9, 2.9, 2.9, 2.9, 2.9)], 0),
    ],
)
def test_only_what_is_slower_three_times_in_most_rounds_fails(measurements, status, committed, measuring, capsys):
    left = measuring(*measurements)
    assert check.main(["--committed", str(committed)]) == status
    assert not left
    assert ("slower" in capsys.readouterr().out) == bool(status)


def test_another_kind_of_processor_is_compared_with_the_slowest_until_it_is_recorded(
    committed, measuring, monkeypatch, capsys
):
    known = {processor(): check.read(committed)[processor()], "older": {"head: VCC": [2.2, 2.3, 2.6]}}
    committed.write_text(json.dumps(known))
    monkeypatch.setattr(check, "machine", lambda: {"processor": "another", "vector_instructions": "AVX2"})
    measuring(SLOW)  # less than 1.5 times 2.6
    assert check.main(["--committed", str(committed)]) == 0
    said = capsys.readouterr().out
    assert "compared 2 ratios with the slowest of 2 other kinds: none are recorded of another" in said
    assert said.rstrip().endswith("passed, none is more than 1.5 times as slow")
    measuring(*[[4.1] * 5] * 3)
    assert check.main(["--committed", str(committed)]) == 1
    assert capsys.readouterr().out.rstrip().endswith("FAILED, 1 are more than 1.5 times as slow")
    measuring(SLOW, SLOW)
    check.main(["--record", "--committed", str(committed)])
    check.main(["--record", "--precision", "fp32", "--committed", str(committed)])
    kinds = json.loads(committed.read_text())
    assert {name: round(ratios["head: VCC"][1], 1) for name, ratios in kinds.items()} == {
        processor(): 2.0,
        "older": 2.3,
        "another": 3.4,
        "another, AVX2, fp32": 3.4,
    }


def test_the_step_of_others_may_be_as_slow_as_it_likes():
    step = Comparison("head", "ours", {"ours": [1.0] * 5, "plain loop": [9.0] * 5})
    assert check.ratios(Part("steps", "Steps", [step])).keys() == {"head: ours"}


def test_missing_or_foreign_results_cost_one_line(committed, measuring):
    with pytest.raises(UserError, match=r"nowhere\.json does not exist; make it with"):
        check.main(["--committed", "nowhere.json"])
    committed.write_text(json.dumps({processor(): {"another: VCC": [1.0, 1.0, 1.0]}}))
    measuring(SLOW)
    with pytest.raises(UserError, match="nothing that was measured"):
        check.main(["--committed", str(committed)])


def test_the_committed_ratios_have_what_is_checked():
    for ratios in check.read(check.Path("results/bench/check.json")).values():
        assert all(any(key.startswith(network) for key in ratios) for network in check.NETWORKS)

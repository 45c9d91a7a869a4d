"""Parts of the benchmark that need no clock, and their command."""

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import processes, selection, steps, workloads
from benchmarks.__main__ import main
from benchmarks.growth import pool_bytes, state_bytes
from benchmarks.page import Part
from vcc_infuse import VCC, RobustVCC
from vcc_infuse.calibrators.history import History
from vcc_infuse.cli.parser import read_train, read_words
from vcc_infuse.errors import UserError


@pytest.mark.parametrize("calibrator", [VCC(), RobustVCC()], ids=["VCC", "RobustVCC"])
def test_memory_per_pool_row_at_a_thousand_classes(calibrator):
    """Eight classes and probabilities in 16 bits each, a step number, a count, and FlexMatch's last label."""
    assert pool_bytes(calibrator, 1000, 10**7) == pytest.approx(8 * (2 + 2) + 4 + 2 + 8)
    assert pool_bytes(calibrator, 10, 10**6) == pytest.approx(10 * 2 + 4 + 2 + 8)


def test_bytes_are_those_of_real_buffers():
    real = sum(buffer.nbytes for buffer in History(500, 1000, top_k=8).buffers())
    assert state_bytes(VCC(), 1000, 501) - state_bytes(VCC(), 1000, 1) == real + 500 * 8


@pytest.mark.slow
def test_the_command_writes_tables(tmp_path, capsys, monkeypatch):
    tiny = [case for case in workloads.cases(2, 8) if case.name.startswith("SmallConv")]
    monkeypatch.setattr(steps, "cases", lambda batch_size, size: tiny)
    assert main(["steps", "--rounds", "1", "--out", str(tmp_path / "new" / "folder")]) == 0
    found = json.loads((tmp_path / "new" / "folder" / "steps.json").read_text())["comparisons"][0]
    assert found["base"] == "reference"
    assert {"ours", "ours, lazy, 5 %", "VCC", "RobustVCC"} <= found["seconds"].keys()
    assert all(seconds[0] > 0 for seconds in found["seconds"].values())
    assert (tmp_path / "new" / "folder" / "steps.md").read_text() in capsys.readouterr().out


def test_one_network_of_the_steps(monkeypatch):
    seen = []
    monkeypatch.setattr(steps, "take_turns", lambda title, *_, count: seen.append((title, count)))
    monkeypatch.setattr(steps, "variants", lambda case, data: {"ours": None})
    steps.measure_steps(1, 2, 8, "SmallConv")
    assert seen == [("SmallConv, 2/14 images of 8 px", 1)]
    steps.measure_steps(1, 2, 8)
    assert [title.split()[0].strip(",") for title, _ in seen[1:]] == list(workloads.NETWORKS)
    assert [count for _, count in seen[1:]] == [1, 1, 20, 20]


def test_some_variants_of_the_steps(monkeypatch):
    seen = []
    monkeypatch.setattr(steps, "take_turns", lambda title, makers, *_, count: seen.append(list(makers)))
    steps.measure_steps(1, 2, 8, "SmallConv", only=["VCC", "ours"])
    assert seen == [["ours", "VCC"]]
    with pytest.raises(UserError, match="--variants Ours is none of SmallConv.*choose among reference, plain loop"):
        steps.measure_steps(1, 2, 8, "SmallConv", only=["Ours"])


def test_enlarged_digits_are_the_digits():
    small, large = selection.digits(), selection.digits(enlarge=4)
    assert large.dataset.shape == (32, 32, 3)
    for corner in range(4):
        assert (large.dataset.train.x[:, corner::4, corner::4] == small.dataset.train.x).all()
    assert (large.split.labeled == small.split.labeled).all()


def test_a_run_of_the_reference_has_as_many_steps(monkeypatch):
    taken = []
    monkeypatch.setattr(selection, "reference_step", lambda case, data: lambda: taken.append)
    work = selection.reference_run(None, None, 3)()
    work(0)
    work(1)
    assert taken == [0, 1, 2, 3, 4, 5]


def test_the_command_of_two_processes(tmp_path, monkeypatch):
    """Other tests run such commands; here the words are read as the command line reads them."""
    commands = []

    def run(command, env, **_):
        commands.append((command, env["OMP_NUM_THREADS"]))
        out = Path(command[command.index("--out") + 1])
        out.mkdir()
        (out / "summary.json").write_text('{"seconds_train": 1.5}')

    monkeypatch.setattr(processes.subprocess, "run", run)
    for number, threads in ((1, 2), (2, 1)):
        assert processes.run(tmp_path, tmp_path, 2, number, threads)()(0) == 1.5
    (one, first), (two, second) = commands
    assert (first, second) == ("2", "1")
    assert two[1:6] == ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    assert [word for word in two[6:] if "run2" not in word] == [word for word in one[1:] if "run1" not in word]
    options = read_train(read_words(one[4:])).options
    assert [options[name] for name in ("steps", "eval_every", "batch_size")] == [2, 2, 32]


@pytest.mark.parametrize("words", [["step"], ["steps", "--rounds", "0"], ["steps", "--sizes", "3"]])
def test_mistakes_cost_one_line(words, capsys):
    assert main(words) == 2
    line = capsys.readouterr().err
    assert words[-2 if len(words) > 1 else 0] in line
    assert line.count("\n") == 1


@pytest.fixture
def asked(monkeypatch):
    """The rounds that each part is asked for; nothing is measured."""
    found = {}

    def fake(name):
        def measure(options):
            found[name] = options.rounds
            return Part(name, name)

        return measure

    monkeypatch.setattr(command, "PARTS", {name: fake(name) for name in command.PARTS})
    return found


def test_all_means_every_part_and_long_turns_are_few(asked, tmp_path):
    assert main(["all", "--out", str(tmp_path)]) == 0
    assert list(asked) == list(command.PARTS)
    assert {name: rounds for name, rounds in asked.items() if rounds != 5} == {"startup": 3, "selection": 2}
    assert main(["selection", "--rounds", "1", "--out", str(tmp_path)]) == 0
    assert asked["selection"] == 1


def test_a_page_says_how_long_the_parts_took_once_all_are_measured(asked, tmp_path):
    first, *others = command.PARTS
    assert main([*others, "--out", str(tmp_path)]) == 0
    assert not (tmp_path / "all.md").exists()
    assert main([first, "--rounds", "1", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "all.md").read_text()
    assert f"    OMP_NUM_THREADS=1 python -m benchmarks {first} --rounds 1" in page
    assert f"| {first} | 0.0 | 0.0 |" in page
    assert "| all | 0.0 | 0.0 |" in page
    earlier = {
        "command": "earlier",
        "comparisons": [{"seconds": {"one": [30.0, 30.0]}, "wall": {"one": [60.0, 30.0], "other": [6.0]}}],
    }
    (tmp_path / f"{first}.json").write_text(json.dumps(earlier))
    assert main([*others, "--out", str(tmp_path)]) == 0
    page = (tmp_path / "all.md").read_text()
    assert f"| {first} | 1.0 | 1.6 |" in page
    assert "| all | 1.0 | 1.6 |" in page


@pytest.mark.parametrize("name", command.STUDIES)
def test_every_study_has_help_and_refuses_unknown_options_in_one_line(name, capsys):
    assert main([name, "--help"]) == 0
    assert f"usage: python -m benchmarks {name}" in capsys.readouterr().out
    assert main([name, "--nonsense", "1"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("python -m benchmarks: ")
    assert line.count("\n") == 1

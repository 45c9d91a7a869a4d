"""The study of fine-tuning: what runs next, what its rows change, and what its page says."""

import json

import numpy as np

from benchmarks import finetune
from benchmarks.finetune import BASE, CHOOSING, HANDED, MINUTE, NATIVE, REPORTED, ROWS, SEARCH, THE_PRESET
from vcc_infuse.training.presets import FINETUNE, FINETUNE_SIDE

FIRST = (*ROWS, SEARCH, NATIVE)


def finished(name, row, seed, error=0.5, **more):
    return {"data": name, "row": row, "seed": seed, "error": error, "error_probe": 0.7, "seconds_cpu": 10.0, **more}


def chosen(errors=None):
    """The first seed of all rows where the recipe is chosen; the search finds a rate that is not the preset's."""
    runs = [finished(name, row, 0, (errors or {}).get(row, 0.6)) for row in FIRST for name in CHOOSING]
    for run in runs:
        if run["row"] == SEARCH:
            run["rate"] = "FixMatch, lr 1e-3, head 3e-3"
            del run["error"]
    return runs


def test_the_row_of_the_preset_is_the_preset():
    row = {**finetune.COMMON, **finetune.LONG_ROWS[THE_PRESET], "cross_fit": True}
    assert row.pop("side") == FINETUNE_SIDE
    assert row == {**row, **{name: value for name, value in FINETUNE.items() if name in row}}
    assert FINETUNE.keys() - row.keys() == {"model", "eval_every", "micro_batch"}


def test_only_norms_and_the_head_learn():
    network = finetune.NormsOnly("test_resnet", weights="none")
    network.setup((3, 32, 32))
    learning = [parameter.requires_grad for parameter in network.net.parameters()]
    assert learning == [parameter.ndim == 1 for parameter in network.net.parameters()]  # its convolutions have no bias


def test_the_second_seed_is_for_the_best_rows_of_the_first():
    errors = {"labels only": 0.4, "first 3 of 8 stages fixed": 0.5, "labels only, 240 steps": 0.3, BASE: 0.9}
    runs = chosen(errors)
    again = [job for job in finetune.jobs(runs, 0) if job[2] == 1]
    rows = [BASE, "labels only, 240 steps", "labels only", "first 3 of 8 stages fixed", SEARCH]
    assert again == [(name, row, 1) for row in rows for name in CHOOSING]


def test_what_is_reported_waits_for_what_is_chosen():
    assert not [job for job in finetune.jobs(chosen()[:-1], 3) if job[0] in REPORTED]
    runs = chosen()
    reported = [job for job in finetune.jobs(runs, 3) if job[0] in REPORTED]
    assert len(reported) == len(set(reported)) == 3 * 2 * 5
    assert finetune.next_job(runs, 3)[2] == 1


def test_a_stopped_study_continues(tmp_path, monkeypatch):
    monkeypatch.setenv("VCC_INFUSE_DATA", str(tmp_path))
    out = tmp_path / "finetune"
    (tmp_path / "finetune.jsonl").write_text("".join(json.dumps(run) + "\n" for run in chosen()[:-1]))
    asked = []

    def run_one(name, row, seed, *_):
        asked.append((name, row, seed))
        rate = {"rate": BASE} if row == SEARCH else {}
        return finished(name, row, seed, **rate)

    monkeypatch.setattr(finetune, "run_one", run_one)
    finetune.main(["--out", str(out)])
    assert asked[0] == ("cifar100", FIRST[-1], 0)
    # The row that lacks, then the common one with two more finalists and the search, then the longest.
    assert len(asked) == len(set(asked)) == 1 + 2 * (1 + 2 + 1) + len(finetune.LONG_ROWS)
    asked.clear()
    finetune.main(["--out", str(out)])
    assert not asked
    assert (
        f"{len(chosen()) + 8 + len(finetune.LONG_ROWS)} runs are finished, 30 are missing"
        in (tmp_path / "finetune.md").read_text()
    )
    assert "| labels only | 60.0 | 10 | 60.0 | 10 | 60.0 |  |" in (tmp_path / "finetune.md").read_text()


def test_a_search_has_the_error_of_its_rate_and_the_seconds_of_both():
    runs = chosen({"FixMatch, lr 1e-3, head 3e-3": 0.25})
    assert finetune.measured(runs)["svhn", SEARCH] == {0: (0.25, 20.0)}


def test_differences_are_paired():
    runs = [finished("clothes over photos", row, seed, error) for row, seed, error in
            [(NATIVE, 0, 0.3), (NATIVE, 1, 0.5), (MINUTE, 0, 0.4), (MINUTE, 1, 0.4)]]  # fmt: skip
    lines = finetune.reported_table(finetune.measured(runs), [MINUTE])
    deviation = np.std([10, -10], ddof=1)
    assert lines[2] == f"| {MINUTE} |  |  |  | 40.0 ± 0.0 | +0.0 ± {deviation:.1f} | 10 |"


def test_what_is_handed_out_has_its_confidence_before_and_after():
    more = {"error_method": 0.45, "ece": 0.2, "ece_calibrated": 0.05, "handed_out": "method"}
    runs = [finished("digits over photos", HANDED, 1, 0.45, **more)]
    assert finetune.handed_table(runs)[2] == "| digits over photos | 1 | method | 45.0 | 45.0 | 70.0 | 0.200 | 0.050 |"


def test_advice_stands_beside_the_test_images():
    runs = [
        finished("digits over photos", THE_PRESET, 0, 0.4),
        finished("digits over photos", NATIVE, 0, 0.55),
        {"data": "digits over photos", "row": finetune.AUTO, "seed": 0, "frozen": 0.6, "finetuned": 0.45, "labels": 80},
    ]
    for run in runs:
        run.setdefault("seconds_cpu", 1.0)
    assert finetune.auto_table(runs)[2] == "| digits over photos | 0 | 80 | 60.0 | 45.0 | finetune | 55.0 | 40.0 |"


def test_images_invert_what_lies_below():
    photos = np.random.default_rng(0).integers(0, 256, (5, 6, 6, 3), np.uint8)
    black = np.zeros((3, 4, 4, 1), np.uint8)
    below = finetune.over_photos(black, photos)
    inverted = finetune.over_photos(black + 255, photos)
    np.testing.assert_array_equal(inverted, 255 - below)

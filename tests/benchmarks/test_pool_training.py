"""The pages of training on messy pools say which runs they show."""

from benchmarks import pool_training


def run(row, pool, seed, error):
    return {"set": "a", "per_class": 4, "seed": seed, "pool": pool, "row": row, "steps": 200, "error": error}


def test_a_page_compares_rows_and_names_an_earlier_default():
    clean = [run("FixMatch", "0 %", seed, 0.1) for seed in (0, 1)]
    foreign = [run("FixMatch", "50 %", 0, 0.12), run("FixMatch", "50 %", 1, 0.14)]
    page = pool_training.page("open", clean + foreign)
    assert "| FixMatch | 10.0 (2) | 13.0, +3.0 ± 1.0 (2) |" in page
    assert "pool_training open --features features --sets a --per_class 4 --seeds 0 1 --steps 200" in page
    assert "earlier version" not in page
    page = pool_training.page("open", [*clean, run("FlexMatch + Evidence, predicted shares", "0 %", 0, 0.1)])
    assert "FlexMatch + Evidence was the default of an earlier version." in page

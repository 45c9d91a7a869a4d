"""Every method, calibrator and selector on two processes: both end with the same numbers, those of one process."""

import json

import pytest
import torch
from tests.helpers.every import SELECTORS, differences, few_digits, name, trainer
from tests.helpers.every_worker import CASES, run, write_run_folder, write_states
from tests.helpers.processes import together

from vcc_infuse import SmallConv

# One of each kind of state: none but the weights, counts of the pool, moving averages, a queue, a second network,
# memories of a calibrator, what a calibrator has fitted, a core set.
QUICK = (
    "FixMatch",
    "FlexMatch",
    "FreeMatch",
    "CoMatch",
    "MPL",
    "FlexMatch-VCC",
    "FlexMatch-TemperatureScaling",
    "FixMatch-INFUSE",
)


def marked(key):
    return key if key in QUICK else pytest.param(key, marks=pytest.mark.slow)


every = pytest.mark.parametrize("key", [marked(key) for key in CASES])


@pytest.fixture(scope="module")
def data():
    return few_digits(600)


@pytest.fixture(scope="module")
def quick(data, tmp_path_factory):
    """The folder into which two processes wrote the ends of the quick runs."""
    folder = tmp_path_factory.mktemp("quick")
    together(2, lambda: write_states(QUICK, folder, data), folder / "log.txt")
    return folder


@pytest.fixture(scope="module")
def others(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("others")
    together(2, lambda: write_states([key for key in CASES if key not in QUICK], folder, data), folder / "log.txt")
    return folder


@pytest.fixture
def two(key, request):
    """The folder with the final states of a case."""
    return request.getfixturevalue("quick" if key in QUICK else "others")


@pytest.fixture(scope="module")
def one_folder(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one_folder")
    together(2, lambda: write_run_folder(folder, data), folder / "log.txt")
    return folder


def ended(folder, key, kind):
    """What both processes ended with."""
    paths = [folder / f"{key}-{kind}-{rank}.pt" for rank in (0, 1)]
    return [torch.load(path, weights_only=True) for path in paths]


@every
@pytest.mark.parametrize("kind", ["random", "fixed"])
def test_both_hold_the_same_numbers(two, key, kind):
    """Weights, averages, memories, optimizer and core sets, bit for bit."""
    one, other = ended(two, key, kind)
    assert one[".world"] == other[".world"] == 2
    # The user is warned by the first process, which alone has evaluated.
    assert [path for path in differences(one, other) if "warnings" not in path] == []


SELECTIONS = {f"FixMatch-{name(kind)}": kind for kind in SELECTORS}


@pytest.mark.parametrize("key", [marked(key) for key in SELECTIONS])
def test_an_untrained_model_selects_the_same_as_on_one_process(two, data, key):
    """With random views as well: each chunk of the pool is drawn from a seed of its own."""
    found, alone = ended(two, key, "random")[0], run(key, data)
    first = [path for path in alone if path.startswith(".coresets.0.")]
    assert len(first) == (2 if SELECTIONS[key].restricts else 0)
    assert all(torch.equal(found[path], alone[path]) for path in first)


@every
def test_both_hold_the_numbers_of_one_process(two, data, key):
    """Where no chance and no BatchNorm is involved, up to the rounding of sums in another order."""
    alone = run(key, data, fixed=True)
    if differences(alone, run(key, data, fixed=True, shift=1)):
        pytest.skip("it draws at random, and each process has its own stream")
    found, _ = ended(two, key, "fixed")
    numbers = {path for path in found if "warnings" not in path}
    assert numbers == {path for path in alone if "warnings" not in path}
    for path in numbers - {".world"}:
        half = getattr(found[path], "dtype", None) == torch.float16  # rounds a tiny difference up to its own precision
        near = {"rtol": 1e-3, "atol": 1e-3} if half else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(found[path], alone[path], **near, equal_nan=True, msg=path)


def test_the_global_batch_is_that_of_one_process(one_folder, data):
    """Process r holds rows r, r + 2, … of each batch."""
    left, right = (torch.load(one_folder / f"batch-ids-{rank}.pt", weights_only=True) for rank in (0, 1))
    alone = trainer(SmallConv(4), CASES["FixMatch"], steps=6)
    alone.prepare(data)
    assert len(left) == len(right) == 6
    for number in left:
        batch = alone.batches_.at(int(number))
        for ids, kind in ((batch.ids, "labeled"), (batch.pool_ids, "pool")):
            assert torch.equal(ids[0::2], left[number][kind])
            assert torch.equal(ids[1::2], right[number][kind])


def test_two_processes_write_one_run_folder(one_folder):
    summary = json.loads((one_folder / "run" / "summary.json").read_text())
    assert (summary["steps"], summary["processes"]) == (6, 2)
    lines = [json.loads(text) for text in (one_folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 6]
    assert sum(lines[0]["pseudo_label_share_per_class"]) == pytest.approx(1)

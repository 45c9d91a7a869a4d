"""`make check` runs the tests that belong to changed files."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("check", ROOT / "tools" / "check.py")
check = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check)


@pytest.mark.parametrize(("path", "test"), [
    ("src/vcc_infuse/algorithms/fixmatch.py", "tests/algorithms/test_fixmatch.py"),
    ("src/vcc_infuse/errors.py", "tests/test_errors.py"),
    ("src/vcc_infuse/algorithms/imbalance/abc.py", "tests/algorithms/imbalance/test_abc.py"),
    ("tools/claims.py", "tests/tools/test_claims.py"),
    ("tests/utils/test_io.py", "tests/utils/test_io.py"),
])  # fmt: skip
def test_the_test_of_a_file(path, test):
    assert (ROOT / test).is_file()
    assert check.selected([path, path]) == [*check.ALWAYS, test]


@pytest.mark.parametrize(
    "path",
    [
        "tests/integration/test_examples.py",
        "README.md",
        "results/minutes.md",
        "src/vcc_infuse/report/page.css",
        "src/new.py",
    ],
)
def test_other_files_add_nothing(path):
    assert check.selected([path]) == check.ALWAYS

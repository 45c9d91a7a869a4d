import pytest

from tests.helpers.folders import make_run


@pytest.fixture
def folder(tmp_path):
    return make_run(tmp_path / "one")

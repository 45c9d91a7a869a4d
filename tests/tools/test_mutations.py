"""The list of wrong versions follows the code."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_text_is_in_its_file_once():
    spec = importlib.util.spec_from_file_location("mutations", ROOT / "tools" / "mutations.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutations"] = module
    spec.loader.exec_module(module)
    assert module.mistakes(ROOT) == []
    assert len(module.MUTATIONS) >= 82

"""Imports point one way, so that a method can be read without its trainer."""

import ast
from pathlib import Path

import pytest

import vcc_infuse

ROOT = Path(vcc_infuse.__file__).parent
LAYERS = [
    {"errors"},
    {"types", "files"},
    {"memory", "models", "data", "metrics", "report"},
    {"algorithms", "calibrators", "imbalance"},
    {"selectors"},
    {"trainer", "descent", "parts", "journal", "checkpoint", "tally", "averaging", "optimize", "processes", "engine",
     "predictor", "evaluation", "figures", "describe", "restore",
     "run_folder", "interrupt", "progress", "track", "settings", "launch", "presets"},
    {"estimator", "cli", "commands", "reproduce", "__init__", "__main__"},
]  # fmt: skip
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imported(path):
    """Top-level parts of the package that a file imports, wherever in the file it does so."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            names = (*base, *(node.module or "").split(".")) if node.module else base
            yield from [names[0]] if names and names[0] else [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vcc_infuse."):
            yield node.module.split(".")[1]


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=[str(p.relative_to(ROOT)) for p in FILES])
def test_imports_point_down(path):
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for name in set(imported(path)) - {own, "__version__"}:
        assert LEVEL[name] <= LEVEL[own], f"{own} must not import {name}"
        if own in ("algorithms", "calibrators"):
            assert name not in ("algorithms", "calibrators"), "methods and calibrators do not know each other"

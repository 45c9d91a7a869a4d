"""Imports point one way, packages are declared, and nothing reaches into another module's private names."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import vcc_infuse

ROOT = Path(vcc_infuse.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
# A room may import rooms of lower layers, and itself.
LAYERS = [
    {"errors", "types"},
    {"validation", "utils"},
    {"memory", "models", "data", "metrics"},
    {"algorithms", "calibrators"},
    {"imbalance"},
    {"selectors"},
    {"evaluation"},
    {"trained_model"},
    {"predictor"},
    {"export"},
    {"training"},
    {"benchmarking"},
    {"estimator", "reproduce"},
    {"cli"},
    {"__init__", "__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
# These read and write folders, know no method, and may be used by any room above the second layer.
FOLDERS = {"runs", "report", "tracking"}


def room_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path):
    """(module path within the package, imported name) of every import from the package, wherever in the file."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            module = (*base, *(node.module or "").split(".")) if node.module else base
            for alias in node.names:
                yield tuple(filter(None, module)), alias.name
        else:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "vcc_infuse" for name in names), f"{path}: import relatively"


def rooms_imported(path):
    return {module[0] if module else name for module, name in imports(path)} - {"__version__"}


every_file = pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROOT)) for path in FILES])


def test_every_module_has_a_place():
    assert {room_of(path) for path in FILES} == LEVEL.keys() | FOLDERS
    assert len(list(ROOT.glob("*.py"))) <= 12


@every_file
def test_imports_point_down(path):
    own = room_of(path)
    for room in rooms_imported(path) - {own}:
        if own in FOLDERS:
            assert room in FOLDERS | {"errors", "types", "utils"}, f"{own} must know no method, but imports {room}"
        elif room in FOLDERS:
            assert LEVEL[own] >= LEVEL["training"], f"{own} must not import {room}"
        else:
            assert LEVEL[room] < LEVEL[own], f"{own} must not import {room}"


@every_file
def test_no_private_name_crosses_a_module(path):
    crossing = [f"{'.'.join(module)}.{name}" for module, name in imports(path) if re.match(r"_[^_]", name)]
    assert crossing == []


@every_file
def test_no_private_method_of_another_object_is_called(path):
    """`self._x` and `cls._x` are one's own; `super()._x` is the parent's; module functions `_x` are local."""
    foreign = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and re.match(r"_[^_]", node.attr) and node.attr not in NAMED_TUPLE:
            owner = node.value
            own = isinstance(owner, ast.Name) and owner.id in ("self", "cls")
            parent = isinstance(owner, ast.Call) and getattr(owner.func, "id", "") == "super"
            if not (own or parent or ast.unparse(owner).split(".")[0] in THIRD_PARTY):
                foreign.append(ast.unparse(node))
    assert foreign == []


# torch and accelerate have no public name for what is used of these; each use is explained where it stands.
THIRD_PARTY = {"torch", "AcceleratorState"}
NAMED_TUPLE = {"_replace", "_asdict", "_fields"}  # public, in spite of the underscore
# Imported only inside functions, so that the extra they need may be missing.
LAZY = {"tracking/plots.py"}


def declared():
    project = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    core = {normalized(name) for name in project["dependencies"]}
    optional = {normalized(name) for extra, names in extras.items() if extra != "dev" for name in names}
    return core, optional


def normalized(requirement):
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


@pytest.mark.skipif(not (ROOT.parents[1] / "pyproject.toml").exists(), reason="not a source checkout")
@every_file
def test_every_imported_package_is_declared(path):
    """At the top of a module only the core dependencies; inside functions also those of the extras."""
    tree, (core, optional) = ast.parse(path.read_text()), declared()
    providers = packages_distributions()
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
        for name in (name.split(".")[0] for name in names):
            if name not in sys.stdlib_module_names:
                top = node in tree.body and str(path.relative_to(ROOT)) not in LAZY
                known = core if top else core | optional
                provided = {normalized(package) for package in providers.get(name, [name])}
                assert provided & known, f"{name} is imported but not declared"

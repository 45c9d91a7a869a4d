"""Imports point one way, packages are declared, and nothing reaches into another module's private names."""

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import vcc_infuse

ROOT = Path(vcc_infuse.__file__).parent
HOME = ROOT.parents[1]
FILES = sorted(ROOT.rglob("*.py"))
# A room may import rooms of lower layers, and itself.
LAYERS = [
    {"errors", "types", "utils"},
    {"models", "augment", "data", "metrics"},
    {"bank"},
    {"algorithms", "calibrators"},
    {"selectors", "pool_audit"},
    {"functional"},
    {"inference", "training"},
    {"run_config"},
    {"run"},
    {"audit", "estimator", "label"},
    {"cli"},
    {"__init__", "__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
# Rooms of one layer stay apart, except for these: (importer, imported).
BESIDE = {
    ("types", "errors"),
    ("types", "utils"),
    ("utils", "errors"),
    ("data", "augment"),
    ("algorithms", "calibrators"),
    ("training", "inference"),
}
# For the type checker alone: a dataset of embedded views holds the bank that they come from.
TYPES_ONLY = {("data/dataset.py", "bank")}
# These read and write folders, know no method, and may be used from inference and training upward.
FOLDERS = {"runs", "report", "tracking"}
KNOWN_TO_FOLDERS = FOLDERS | {"errors", "types", "utils"}


@cache
def tree_of(path):
    return ast.parse(path.read_text())


def short(path):
    return str(path.relative_to(ROOT))


def room_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path):
    """(module path within the package, imported name) of every import from the package, wherever in the file."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            module = (*base, *(node.module or "").split(".")) if node.module else base
            for alias in node.names:
                yield tuple(filter(None, module)), alias.name
        else:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "vcc_infuse" for name in names), f"{path}: import relatively"


def outside_imports(path):
    """(statement, top-level name) of every absolute import."""
    for node in ast.walk(tree_of(path)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
        for name in names:
            yield node, name.split(".")[0]


def rooms_imported(path):
    return {module[0] if module else name for module, name in imports(path)} - {"__version__"}


def test_every_module_has_a_place():
    assert {room_of(path) for path in FILES} <= LEVEL.keys() | FOLDERS
    assert len(list(ROOT.glob("*.py"))) <= 12


def allowed(room, imported):
    if room in FOLDERS:
        return imported in KNOWN_TO_FOLDERS or (room, imported) == ("runs", "data")
    if imported in FOLDERS:
        return LEVEL[room] >= LEVEL["training"]
    return LEVEL[imported] < LEVEL[room] or (room, imported) in BESIDE


def test_imports_point_down():
    crossings = {(room_of(path), room, short(path)) for path in FILES for room in rooms_imported(path)}
    upward = [
        f"{path} imports {imported}"
        for room, imported, path in sorted(crossings)
        if room != imported and not allowed(room, imported) and (path, imported) not in TYPES_ONLY
    ]
    assert upward == []


def test_the_package_does_not_know_the_paper_and_the_benchmarks():
    """Both import the package; the other way round, an installed package would miss them."""
    named = {(short(path), name) for path in FILES for _, name in outside_imports(path)}
    assert [use for use in sorted(named) if use[1] in ("paper", "benchmarks", "tests", "tools")] == []
    users = {home: list((HOME / home).rglob("*.py")) for home in ("paper", "benchmarks")}
    for home, paths in users.items():
        assert any("vcc_infuse" in {name for _, name in outside_imports(path)} for path in paths), home


def test_the_package_stays_within_its_budget():
    """So that growth is seen: raise a number only with a reason that a user would give (results/layout.md)."""
    lines = sum(len(path.read_text().splitlines()) for path in FILES)
    assert len(FILES) <= 221, f"{len(FILES)} files"
    assert lines <= 33_280, f"{lines} lines"


def test_no_private_name_crosses_a_module():
    crossing = [
        f"{short(path)}: {'.'.join(module)}.{name}"
        for path in FILES
        for module, name in imports(path)
        if re.match(r"_[^_]", name)
    ]
    assert crossing == []


def test_no_private_method_of_another_object_is_called():
    """`self._x` and `cls._x` are one's own; `super()._x` is the parent's; module functions `_x` are local."""
    assert [f"{short(path)}: {ast.unparse(node)}" for path in FILES for node in foreign_names(path)] == []


def foreign_names(path):
    """Private attributes of other objects."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Attribute) and re.match(r"_[^_]", node.attr) and node.attr not in NAMED_TUPLE:
            owner = node.value
            own = isinstance(owner, ast.Name) and owner.id in ("self", "cls")
            parent = isinstance(owner, ast.Call) and getattr(owner.func, "id", "") == "super"
            if not (own or parent or ast.unparse(owner).split(".")[0] in THIRD_PARTY):
                yield node


# torch and accelerate have no public name for what is used of these; each use is explained where it stands.
THIRD_PARTY = {"torch", "AcceleratorState"}
NAMED_TUPLE = {"_replace", "_asdict", "_fields"}  # public, in spite of the underscore
# Imported only inside functions, so that the extra they need may be missing.
LAZY = {"tracking/plots.py"}


# A second or more each, which a run that does not need them would wait for.
SLOW = {
    "sklearn", "scipy.optimize", "scipy.stats", "scipy.sparse", "timm", "torchvision", "huggingface_hub", "pandas",
    "plotly", "onnx", "onnxscript", "onnxruntime", "torch._dynamo", "torch.onnx",
}  # fmt: skip
# These are imported only by those who ask for them.
ON_DEMAND = {"estimator.py", "inference/hub.py"}


def top_imports(path):
    """Absolute names of what a module imports when it is imported itself."""
    for node in tree_of(path).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_slow_packages_are_imported_where_they_are_used():
    waits = [
        f"{short(path)}: {name}"
        for path in FILES
        for name in top_imports(path)
        if short(path) not in ON_DEMAND | LAZY and any(f"{name}.".startswith(f"{slow}.") for slow in SLOW)
    ]
    assert waits == []
    importers = {short(path) for path in FILES for module, _ in imports(path) if module == ("inference", "hub")}
    top = {node for node in tree_of(ROOT / "inference/predictor.py").body if isinstance(node, ast.ImportFrom)}
    assert importers == {"inference/predictor.py"}
    assert "hub" not in {node.module for node in top}


def declared():
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    core = {normalized(name) for name in project["dependencies"]}
    optional = {normalized(name) for extra, names in extras.items() if extra != "dev" for name in names}
    return core, optional


def normalized(requirement):
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


@pytest.mark.skipif(not (HOME / "pyproject.toml").exists(), reason="not a source checkout")
def test_every_imported_package_is_declared():
    """At the top of a module only the core dependencies; inside functions also those of the extras."""
    core, optional = declared()
    providers = packages_distributions()
    missing = []
    for path in FILES:
        for node, name in outside_imports(path):
            top = node in tree_of(path).body and short(path) not in LAZY
            provided = {normalized(package) for package in providers.get(name, [name])}
            if name not in sys.stdlib_module_names and not provided & (core if top else core | optional):
                missing.append(f"{short(path)}: {name}")
    assert missing == []

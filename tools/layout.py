"""How easy the code is to find one's way in: size of files and functions, and the files that one `train` run crosses.

python tools/layout.py                     this checkout
python tools/layout.py --root OTHER/src    another one, for a comparison (it must be importable from there)
python tools/layout.py --no-trace          without the training run
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parents[1] / "src"
TRACER = """
import inspect, json, sys
from pathlib import Path
root, words, record = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
sys.path.insert(0, root)
stack, crossings, back, files = [], 0, 0, set()

def profile(frame, event, arg):
    global crossings, back
    name = frame.f_code.co_filename
    if event == "call":
        # Bodies of modules and classes are not optimized code; they run when a module is imported.
        mine = name.startswith(root + "/vcc_infuse") and frame.f_code.co_flags & inspect.CO_OPTIMIZED
        caller = next((f for f in reversed(stack) if f), None)
        if mine:
            files.add(name)
            if caller and caller != name and (caller, name) not in pairs:
                pairs.add((caller, name))
                crossings += 1
                back += any(f == name for f in stack)
        stack.append(name if mine else None)
    elif event == "return" and stack:
        stack.pop()

pairs = set()
from vcc_infuse.{entry} import main
sys.setprofile(profile)
status = main(words)
sys.setprofile(None)
found = {{"files": len(files), "pairs": crossings, "back": back, "status": status}}
Path(record).write_text(json.dumps(found))
"""


def modules(root: Path) -> dict[str, Path]:
    """Dotted name → path of every module that is more than a package's list of names."""
    found = {}
    for path in sorted((root / "vcc_infuse").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def importers(found: dict[str, Path]) -> Counter[str]:
    """How many other modules import each module (package lists of names do not count)."""
    counts: Counter[str] = Counter()
    for name, path in found.items():
        if path.name == "__init__.py":
            continue
        package = name.split(".")[:-1]
        seen = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = package[: len(package) - node.level + 1]
                target = ".".join([*base, *([node.module] if node.module else [])])
                seen |= {target, *(f"{target}.{alias.name}" for alias in node.names)} & found.keys()
        counts.update(seen - {name})
    return counts


def function_lengths(path: Path) -> list[int]:
    """Lines of every function in a file."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [n.end_lineno - n.lineno + 1 for n in nodes if isinstance(n, ast.FunctionDef) and n.end_lineno]


def spread(values: list[int]) -> str:
    """Median, 90th percentile and maximum."""
    return f"{statistics.median(values):.0f} / {statistics.quantiles(values, n=10)[-1]:.0f} / {max(values)}"


def traced(root: Path) -> dict[str, int]:
    """Files and pairs of files that a call of one short `train` run crosses."""
    words = "train --data digits --labels 40 --steps 4 --algorithm FlexMatch --calibrator VCC --selector INFUSE"
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        entry = "cli.main" if (root / "vcc_infuse" / "cli" / "main.py").exists() else "cli"
        arguments = json.dumps([*words.split(), "--out", f"{folder}/run"])
        command = [sys.executable, "-c", TRACER.format(entry=entry), str(root), arguments, str(record)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)
        found: dict[str, int] = json.loads(record.read_text())
    if found["status"]:
        raise SystemExit(f"the traced run failed with status {found['status']}")
    return found


def table(root: Path, trace: bool) -> list[tuple[str, str]]:
    """The rows of the comparison."""
    found = modules(root)
    files = {name: path for name, path in found.items() if path.name != "__init__.py"}
    lines = {name: len(path.read_text().splitlines()) for name, path in files.items()}
    counts = importers(found)
    single = [name for name in files if counts[name] == 1 and lines[name] < 50]
    rows = [
        ("modules in the package root", str(len(list((root / "vcc_infuse").glob("*.py"))))),
        ("modules (without packages' __init__)", str(len(files))),
        ("lines", f"{sum(lines.values()):,}"),
        ("lines per file: median / p90 / max", spread(list(lines.values()))),
        ("lines per function: median / p90 / max", spread([n for p in files.values() for n in function_lengths(p)])),
        ("files of under 50 lines with one importer", str(len(single))),
    ]
    if trace:
        crossed = traced(root)
        rows += [
            ("files crossed by one train run", str(crossed["files"])),
            ("pairs of files with a call between them", str(crossed["pairs"])),
            ("… that return to a file still on the call stack", str(crossed["back"])),
        ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=HERE, help="the src folder to look at")
    parser.add_argument("--no-trace", action="store_true", help="leave out the training run")
    options = parser.parse_args()
    for name, value in table(options.root.resolve(), not options.no_trace):
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()

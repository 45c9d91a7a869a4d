"""How easy the code is to find one's way in: its size, and what one `train` run crosses.

python tools/layout.py                 this checkout
python tools/layout.py --root OTHER    another checkout, for a comparison
python tools/layout.py --check         exit with 1 if the run crosses more than it may; CI does this

The run is `train --data photos --algorithm FlexMatch --calibrator VCC --selector INFUSE` on drawn photos: the preset
auto chooses frozen. A file is crossed if one of its functions is called; imports do not count.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from preset_digest import draw_photos

HERE = Path(__file__).parents[1]
WORDS = "train --data photos --algorithm FlexMatch --calibrator VCC --selector INFUSE --steps 8 --batch_size 6"
# Networks are compared before one is chosen, a run is repeated with each fifth of its labels hidden, and near copies
# among the labels are looked for, so that no fold tears them apart. The learning curve in the summary takes two files.
MOST = {"files": 100, "parses": 1, "banks opened": 1, "encoder loads": 4, "Trainers": 6}
# Where each thing happens, by file and function; two names where checkouts differ.
COUNTED = {
    "parses": [("cli/parser.py", "read_train"), ("cli/train.py", "parse")],
    "banks opened": [("bank/bank.py", "__init__"), ("data/bank.py", "__init__")],
    "encoder loads": [("models/timm_backbone.py", "load_pretrained"), ("models/timm.py", "load_pretrained")],
    "Trainers": [("training/trainer.py", "__init__")],
}
TRACER = """
import inspect, json, sys
from collections import Counter
from pathlib import Path
root, words, counted, record = sys.argv[1], *map(json.loads, sys.argv[2:4]), sys.argv[4]
sys.path.insert(0, root)
files, calls = set(), Counter()

def profile(frame, event, arg):
    code = frame.f_code
    if event != "call" or not code.co_flags & inspect.CO_OPTIMIZED:  # bodies of modules and classes run at import
        return
    if code.co_filename.startswith(root + "/vcc_infuse") and code.co_filename.endswith(".py"):
        files.add(code.co_filename)
    for what, places in counted.items():
        if any(code.co_name == name and code.co_filename.endswith(path) for path, name in places):
            calls[what] += 1

from vcc_infuse.cli.main import main
sys.setprofile(profile)
status = main(words)
sys.setprofile(None)
crossed = sorted(str(Path(file).relative_to(root)) for file in files)
Path(record).write_text(json.dumps({"status": status, "crossed": crossed, **calls}))
"""


def traced(root: Path) -> dict[str, object]:
    """What one run crosses, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        draw_photos(Path(folder) / "photos", [40])
        record = Path(folder) / "record.json"
        words = [*WORDS.split(), "--cache", f"{folder}/cache", "--out", f"{folder}/run"]
        arguments = [str(root / "src"), json.dumps(words), json.dumps(COUNTED), str(record)]
        subprocess.run([sys.executable, "-c", TRACER, *arguments], check=True, stdout=subprocess.DEVNULL, cwd=folder)
        counts: dict[str, object] = json.loads(record.read_text())
    if counts["status"]:
        raise SystemExit(f"the traced run failed with status {counts['status']}")
    return counts


def function_lengths(path: Path) -> list[int]:
    """Lines of every function in a file."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [n.end_lineno - n.lineno + 1 for n in nodes if isinstance(n, ast.FunctionDef) and n.end_lineno]


def spread(values: list[int]) -> str:
    """Median, 90th percentile and maximum."""
    return f"{statistics.median(values):.0f} / {statistics.quantiles(values, n=10)[-1]:.0f} / {max(values)}"


def size(root: Path) -> dict[str, str]:
    """Files and lines of the installed package."""
    files = sorted((root / "src" / "vcc_infuse").rglob("*.py"))
    lines = [len(path.read_text().splitlines()) for path in files]
    return {
        "files": str(len(files)),
        "lines": f"{sum(lines):,}",
        "lines per file: median / p90 / max": spread(lines),
        "lines per function: median / p90 / max": spread([n for path in files for n in function_lengths(path)]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=HERE, help="the checkout to look at")
    parser.add_argument("--check", action="store_true", help="fail if the run crosses more than it may")
    parser.add_argument("--list", action="store_true", help="also list the files that are crossed")
    options = parser.parse_args()
    counts = traced(options.root.resolve())
    crossed = counts.pop("crossed")
    assert isinstance(crossed, list)
    run = {"files": len(crossed), **{name: counts.get(name, 0) for name in COUNTED}}
    rows = [*size(options.root).items(), *((f"{name} in one run", value) for name, value in run.items())]
    for name, value in rows:
        print(f"| {name} | {value} |")
    if options.list:
        print(*crossed, sep="\n")
    over = [f"{name}: {run[name]}, at most {most}" for name, most in MOST.items() if run[name] > most]
    print(*over, sep="\n", file=sys.stderr)
    return int(options.check and bool(over))


if __name__ == "__main__":
    sys.exit(main())

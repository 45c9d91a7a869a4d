"""Compare methods on the same splits, seeds and steps: a table of `vcc-infuse reproduce`, made up on the spot.

    python benchmarks/compare.py --data digits --labels 20 --seeds 5 --jobs 2 --steps 600 --batch 32 --ratio 5 \
        --rows Supervised FixMatch FixMatch+VCC --out results/vcc_digits_20

A row is `Algorithm`, `Algorithm+Calibrator` or `Algorithm+Calibrator+Selector`, each with arguments in brackets if
need be: `FlexMatch+VCC(match="none")+INFUSE(keep=0.4)`. A row's paired difference is to the row of its algorithm
alone, or to `--base`. Every finished run is kept, so a stopped table goes on. Writes OUT.md and OUT.json.
"""

import argparse
import ast
import json
import shlex
import sys
from pathlib import Path

import vcc_infuse
from vcc_infuse.cli.reproduce import plain_entry, save
from vcc_infuse.reproduce import Column, Row, Table, run_grid
from vcc_infuse.reproduce.collect import collect
from vcc_infuse.reproduce.render import markdown
from vcc_infuse.runs.folder import versions
from vcc_infuse.utils.io import write_json

FIGURES = (
    "error", "ece", "ece_calibrated", "pseudo_label_coverage", "pseudo_label_precision", "least_coverage", "hours",
)  # fmt: skip
KINDS = {"calibrator": vcc_infuse.calibrators.Calibrator, "selector": vcc_infuse.selectors.Selector}


def part(text):
    """Which option an expression like `VCC(match="none")` sets, and its arguments, as training options."""
    call = ast.parse(text if text.endswith(")") else f"{text}()", mode="eval").body
    kind = getattr(vcc_infuse, call.func.id)
    name = next((name for name, base in KINDS.items() if issubclass(kind, base)), "algorithm")
    values = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    return {name: call.func.id} | {f"{name}.{key}": written(value) for key, value in values.items()}


def written(value):
    """A value as the command line reads it."""
    return json.dumps(value) if isinstance(value, list | tuple) else value


def make_row(text, base):
    options = {key: value for piece in text.split("+") for key, value in part(piece).items()}
    reference = base or text.split("+")[0]
    return Row(text, options, reference if reference != text else None)


def read():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--size", type=int)
    parser.add_argument("--flip", choices=["true", "false"])
    parser.add_argument("--labels", type=int, default=40)
    parser.add_argument("--rows", nargs="+", required=True)
    parser.add_argument("--base", help="the row all others are compared with")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--model", default="SmallConv")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--ratio", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--cells", default="runs/cells", help="where the runs are kept")
    parser.add_argument("--out", required=True)
    return parser.parse_args()


def main():
    options = read()
    names = ("data", "size", "flip", "labels", "model", "steps", "epochs", "batch", "ratio", "lr")
    setting = {name: value for name in names if (value := getattr(options, name)) is not None}
    column = Column(f"{Path(options.data).stem}, {options.labels} labels", {**setting, "eval_every": options.epochs})
    rows = tuple(make_row(text, options.base) for text in options.rows)
    table = Table("compare", f"{column.name}, {options.steps} steps", rows, (column,), FIGURES)
    failures = run_grid(list(table.cells(options.seeds)), Path(options.cells), options.jobs)
    entries = collect(table, options.seeds, Path(options.cells))
    command = shlex.join(["python", "benchmarks/compare.py", *sys.argv[1:]])
    text = markdown(
        table, entries, [f"    {command}", "", f"torch {versions()['torch']}, seeds 0 to {options.seeds - 1}."]
    )
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    save(out.with_suffix(".md"), text)
    figures = {"command": command, "versions": versions(), "entries": [plain_entry(entry) for entry in entries]}
    write_json(out.with_suffix(".json"), figures)
    print(text)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

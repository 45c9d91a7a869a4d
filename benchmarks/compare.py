"""Compare methods on the same splits, seeds and steps: a table like those of `vcc-infuse reproduce`.

    python benchmarks/compare.py --data digits --labels 20 --seeds 5 --jobs 2 --steps 600 --batch_size 32 \
        --unlabeled_ratio 5 --rows Supervised FixMatch FixMatch+RobustVCC --out runs/compare

A row is `Algorithm`, `Algorithm+Calibrator` or `Algorithm+Calibrator+Selector`, each with optional arguments:
`FlexMatch+RobustVCC(match="none")+INFUSE(keep=0.4)`. A row is compared with the row of its algorithm alone, or with
`--base`. Finished runs are kept, so the same command continues a stopped table. Writes OUT.md, OUT.html and OUT.json.
"""

import argparse
import ast
import shlex
import sys
from pathlib import Path

import vcc_infuse
from paper import Row, Table, TableColumn, run_grid
from paper.collect import collect
from paper.render import write_table
from vcc_infuse.calibrators import Calibrator
from vcc_infuse.runs.folder import versions
from vcc_infuse.selectors import Selector

METRICS = (
    "error", "ece", "ece_calibrated", "pseudo_label_coverage", "pseudo_label_precision", "least_coverage", "hours",
)  # fmt: skip
KINDS = {"calibrator": Calibrator, "selector": Selector}


def part(text):
    """The training options of an expression such as `RobustVCC(match="none")`."""
    call = ast.parse(text if text.endswith(")") else f"{text}()", mode="eval").body
    kind = getattr(vcc_infuse, call.func.id)
    name = next((name for name, base in KINDS.items() if issubclass(kind, base)), "algorithm")
    values = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    return {name: call.func.id} | {f"{name}.{key}": value for key, value in values.items()}


def make_row(text, base):
    options = {key: value for piece in text.split("+") for key, value in part(piece).items()}
    reference = base or text.split("+")[0]
    return Row(text, options, reference if reference != text else None)


def read():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--size", type=int)
    parser.add_argument("--flip", action=argparse.BooleanOptionalAction)
    parser.add_argument("--labels", type=int, default=40)
    parser.add_argument("--rows", nargs="+", required=True)
    parser.add_argument("--base", help="the row that all others are compared with")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--model", default="SmallConv")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--unlabeled_ratio", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--cells", default="runs/cells", help="where the runs are kept")
    parser.add_argument("--out", required=True)
    return parser.parse_args()


def main():
    options = read()
    names = ("data", "size", "flip", "labels", "model", "steps", "batch_size", "unlabeled_ratio", "lr")
    setting = {name: value for name in names if (value := getattr(options, name)) is not None}
    name = f"{Path(options.data).stem}, {options.labels} labels"
    column = TableColumn(name, {**setting, "eval_every": options.steps})
    rows = tuple(make_row(text, options.base) for text in options.rows)
    table = Table("compare", f"{name}, {options.steps} steps", rows, (column,), METRICS)
    failures = run_grid(list(table.cells(options.seeds)), Path(options.cells), options.jobs)
    entries = collect(table, options.seeds, Path(options.cells))
    command = shlex.join(["python", "benchmarks/compare.py", *sys.argv[1:]])
    facts = [f"    {command}", "", f"torch {versions()['torch']}, seeds 0 to {options.seeds - 1}."]
    out = Path(options.out)
    write_table(out, table, entries, facts, command)
    print(out.with_name(f"{out.name}.md").read_text(encoding="utf-8"))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

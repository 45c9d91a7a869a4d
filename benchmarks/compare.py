"""Compare methods on the same splits, seeds and steps: a table like those of `python -m paper`.

    python -m benchmarks compare --data digits --labels 20 --seeds 5 --jobs 2 --steps 600 --batch_size 32 \
        --unlabeled_ratio 5 --rows Supervised FixMatch FixMatch+RobustVCC --out runs/compare

A row is `Algorithm`, `Algorithm+Calibrator` or `Algorithm+Calibrator+Selector`, each with optional arguments:
`FlexMatch+RobustVCC(match="none")+INFUSE(keep=0.4)`. A row is compared with the row of its algorithm alone, or with
`--base`. Finished runs are kept, so the same command continues a stopped table. Writes OUT.md, OUT.html and OUT.json.
"""

from __future__ import annotations

import ast
import shlex
from argparse import BooleanOptionalAction, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vcc_infuse
from paper import Row, Table, TableColumn, run_grid
from paper.collect import collect
from paper.render import write_table
from vcc_infuse.algorithms import Algorithm
from vcc_infuse.calibrators import Calibrator
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.errors import UserError
from vcc_infuse.runs.folder import versions
from vcc_infuse.selectors import Selector

METRICS = (
    "error", "ece", "ece_calibrated", "pseudo_label_coverage", "pseudo_label_precision", "least_coverage", "hours",
)  # fmt: skip
KINDS: dict[str, type] = {"algorithm": Algorithm, "calibrator": Calibrator, "selector": Selector}
SETTING = ("data", "size", "flip", "labels", "model", "steps", "batch_size", "unlabeled_ratio", "lr")


def main(argv: Sequence[str]) -> int:
    """Run what is missing and write the table; the status is 1 if a run failed."""
    options = read(argv)
    setting = {name: value for name in SETTING if (value := getattr(options, name)) is not None}
    name = f"{Path(options.data).stem}, {options.labels} labels"
    column = TableColumn(name, {**setting, "eval_every": options.steps})
    rows = tuple(make_row(text, options.base) for text in options.rows)
    table = Table("compare", f"{name}, {options.steps} steps", rows, (column,), METRICS)
    failures = run_grid(list(table.cells(options.seeds)), Path(options.cells), jobs=options.jobs)
    entries = collect(table, options.seeds, Path(options.cells))
    command = f"python -m benchmarks compare {shlex.join(argv)}"
    facts = [f"    {command}", "", f"torch {versions()['torch']}, seeds 0 to {options.seeds - 1}."]
    out = Path(options.out)
    write_table(out, table, entries, facts, command)
    print(out.with_name(f"{out.name}.md").read_text(encoding="utf-8"))
    return 1 if failures else 0


def read(argv: Sequence[str]) -> Namespace:
    """Read and check the options."""
    parser = Parser("python -m benchmarks compare", "Compare methods on the same splits, seeds and steps.")
    parser.add_argument("--data", default="digits", help="the dataset (digits)")
    parser.add_argument("--size", type=integer(), help="height and width of the images")
    parser.add_argument("--flip", action=BooleanOptionalAction, help="flip images at random")
    parser.add_argument("--labels", type=integer(), default=40, help="labeled examples (40)")
    parser.add_argument("--rows", nargs="+", required=True, help="Algorithm[+Calibrator][+Selector], with arguments")
    parser.add_argument("--base", help="the row that all others are compared with")
    parser.add_argument("--seeds", type=integer(), default=3, help="runs of each row (3)")
    parser.add_argument("--jobs", type=integer(), default=2, help="runs at the same time (2)")
    parser.add_argument("--model", default="SmallConv", help="the network (SmallConv)")
    parser.add_argument("--steps", type=integer(), default=600, help="training steps (600)")
    parser.add_argument("--batch_size", type=integer(), default=32, help="labeled examples per step (32)")
    parser.add_argument("--unlabeled_ratio", type=integer(), default=5, help="unlabeled examples per labeled one (5)")
    parser.add_argument("--lr", type=float, default=0.03, help="learning rate (0.03)")
    parser.add_argument("--cells", default="runs/cells", help="where the runs are kept (runs/cells)")
    parser.add_argument("--out", required=True, help="writes OUT.md, OUT.html and OUT.json")
    return parser.read(argv)


def make_row(text: str, base: str | None) -> Row:
    """The row of an expression such as `FixMatch+RobustVCC(match="none")`."""
    options = {key: value for piece in text.split("+") for key, value in part_options(piece).items()}
    reference = base or text.split("+")[0]
    return Row(text, options, reference if reference != text else None)


def part_options(text: str) -> dict[str, Any]:
    """The training options of one part, such as `RobustVCC(match="none")`."""
    try:
        call = ast.parse(text if text.endswith(")") else f"{text}()", mode="eval").body
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Name)
        cls = getattr(vcc_infuse, call.func.id)
        part = next(name for name, kind in KINDS.items() if issubclass(cls, kind))
        arguments = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, AssertionError, AttributeError, StopIteration, TypeError, ValueError) as error:
        raise UserError(f"--rows {text} is no algorithm, calibrator or selector; see vcc-infuse list") from error
    return {part: call.func.id, **{f"{part}.{name}": value for name, value in arguments.items()}}

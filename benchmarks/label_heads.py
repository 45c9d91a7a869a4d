"""The two models of the labeling page on plain views: the quick head, the default method, and which one is chosen."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vcc_infuse.cli.parser import Parser
from vcc_infuse.label.worker import Learner, train_default
from vcc_infuse.pool_audit import unit_rows
from vcc_infuse.utils.io import write_json, write_text

from .page import rows

SETS = ("stl10", "cifar10", "fashion_mnist")
PER_CLASS = (4, 10, 40)
PAGE = """# The models of the labeling page

    OMP_NUM_THREADS=1 python -m benchmarks label_heads {words}

Error on the images without a label, in percent, from random labels of each class; plain views of EfficientNet-Lite0 at
224 px, as on the page. The default method is SelfTraining, as of `train`, cross-validated. It takes over where it
answers hidden labels better than the quick head by a standard error; mean over seeds {seeds}.
"""


def cell(x: np.ndarray, y: np.ndarray, per_class: int, seed: int) -> dict[str, Any]:
    """Errors of both and of the one that the page would take, and CPU seconds of the default method."""
    rng = np.random.default_rng(seed)
    labels = np.full(len(y), -1)
    for cls in range(int(y.max()) + 1):
        labels[rng.permutation(np.flatnonzero(y == cls))[:per_class]] = cls
    learner = Learner(Path("no file of features"), [])
    learner._unit = x.astype(np.float16)
    quick = learner._fit(labels, int(y.max()) + 1)
    assert quick is not None
    began = time.process_time()
    full, hidden = train_default(learner._unit, labels, 0, lambda: None)
    seconds = time.process_time() - began
    wrong = {name: float((said.argmax(1) != y)[labels < 0].mean()) for name, said in (("quick", quick), ("full", full))}
    chosen = "full" if learner.takes_over(labels, hidden) else "quick"
    return {**wrong, "chosen": chosen, "seconds": seconds}


def main(argv: Sequence[str]) -> None:
    """Compare, and write the page; finished cells are kept in its JSON file."""
    parser = Parser("python -m benchmarks label_heads", "The quick head and the default method of the labeling page.")
    parser.add_argument("--features", required=True, help="folder of SET-224.npz, as `benchmarks features` writes them")
    parser.add_argument("--sets", nargs="+", default=list(SETS), help=f"names of the sets ({', '.join(SETS)})")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1], help="of the labels (0 1)")
    parser.add_argument("--out", required=True, help="folder; writes heads.md and heads.json")
    options = parser.read(argv)
    path = Path(options.out) / "heads.json"
    cells: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    for name in options.sets:
        with np.load(Path(options.features) / f"{name}-224.npz") as file:
            x = unit_rows(file["train"][:, 0])
            y = file["train_y"]
        for per_class in PER_CLASS:
            for seed in options.seeds:
                if f"{name} {per_class} {seed}" not in cells:
                    cells[f"{name} {per_class} {seed}"] = cell(x, y, per_class, seed)
                    write_json(path, cells)
    body = []
    for name in options.sets:
        for per_class in PER_CLASS:
            some = [cells[f"{name} {per_class} {seed}"] for seed in options.seeds]
            means = [f"{100 * np.mean([one[key] for one in some]):.1f}" for key in ("quick", "full")]
            taken = f"{100 * np.mean([one[one['chosen']] for one in some]):.1f}"
            times = sum(one["chosen"] == "full" for one in some)
            seconds = f"{np.mean([one['seconds'] for one in some]):.1f}"
            body.append([name, per_class, *means, taken, f"{times} of {len(some)}", seconds])
    columns = [
        "",
        "labels per class",
        "quick head",
        "default method",
        "taken",
        "default method taken",
        "its CPU seconds",
    ]
    text = PAGE.format(words=" ".join(argv), seeds=", ".join(map(str, options.seeds)))
    write_text(Path(options.out) / "heads.md", text + "\n" + "\n".join(rows(columns, body)) + "\n")

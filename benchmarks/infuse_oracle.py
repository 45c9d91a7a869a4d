"""INFUSE with the true validation gradient: how much is lost by its support set, and how much by its selection rule?

    python benchmarks/infuse_oracle.py --labels 20 --steps 1500 --seeds 3 --out results/infuse_oracle

trains on digits with 40 % of examples and steps. The oracle is INFUSE with the gradient on the test set as its
direction, which no user has; it bounds what any support set can give. Beside the error, the table has the cosine
between the direction of INFUSE and the true one, and how well the scores of either separate right pseudo labels from
wrong ones of the same class (AUROC).
"""

import argparse
import shlex
import statistics
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F

import vcc_infuse
from vcc_infuse import RandomOnline, RobustINFUSE, SmallConv, SSLData, Trainer, load, metrics
from vcc_infuse.data.split import balanced
from vcc_infuse.reproduce.oracle import OracleINFUSE
from vcc_infuse.runs.folder import versions
from vcc_infuse.selectors.infuse.selector import chunk_influence
from vcc_infuse.utils.io import write_json, write_text

BEST = {"strategy": "top", "quota": "none"}
ROWS = {
    "RandomOnline": None,
    "RobustINFUSE": (False, {}), "INFUSE": (False, BEST),
    "RobustINFUSE, oracle": (True, {}), "INFUSE, oracle": (True, BEST),
}  # fmt: skip


class Watched(RobustINFUSE):
    """RobustINFUSE with its own direction or the true one; records how far the two agree."""

    notes: ClassVar[list] = []  # a class attribute, because the trainer copies the selector

    def reveal(self, data, oracle):
        """Give it what a real selector cannot see."""
        self.true, self.truth = OracleINFUSE(), torch.from_numpy(data.pool_truth)
        self.true.attach(data.dataset)
        self.oracle, Watched.notes = oracle, []
        return self

    def direction(self, pool):
        own, true = super().direction(pool), self.true.direction(pool)
        chunks = list(pool.sample(1024))
        auroc = [within_classes([chunk_influence(d, c) for c in chunks], chunks, self.truth) for d in (own, true)]
        self.notes.append([F.cosine_similarity(own.flatten(), true.flatten(), 0).item(), *auroc])
        return true if self.oracle else own


def within_classes(scores, chunks, truth):
    """Mean over pseudo classes of the AUROC of a low (helpful) score as a sign of a right pseudo label."""
    used = torch.cat([c.weights > 0 for c in chunks])
    labels, ids = torch.cat([c.labels for c in chunks])[used], torch.cat([c.ids for c in chunks])[used]
    right, score = truth[ids] == labels, -torch.cat(scores)[used]
    members = [labels == k for k in labels.unique()]
    found = [metrics.auroc(score[m], right[m]) for m in members if 0 < int(right[m].sum()) < int(m.sum())]
    return statistics.mean(found) if found else float("nan")


def run(row, base, labels, steps, seed):
    """One run: the test error in percent, and the mean of the notes."""
    dataset = load("digits")
    data = SSLData(dataset, balanced(dataset.train.y, labels, dataset.classes, seed))
    selector = RandomOnline(keep=0.4)
    if ROWS[row]:
        oracle, options = ROWS[row]
        selector = Watched(keep=0.4, **options).reveal(data, oracle)
    common = {"eval_every": steps, "batch_size": 32, "unlabeled_ratio": 5, "lr": 0.03, "progress": False}
    algorithm = getattr(vcc_infuse, base)()
    trainer = Trainer(SmallConv(width=24), algorithm, selector=selector, steps=steps, seed=seed, **common)
    error = 100 * trainer.fit(data)["error"]
    notes = np.nanmean(Watched.notes, 0).tolist() if ROWS[row] else []
    return {"base": base, "row": row, "seed": seed, "error": error, "notes": notes}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--bases", nargs="+", default=["FlexMatch", "FixMatch"])
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    runs = []
    for base in options.bases:
        for seed in range(options.seeds):
            for row in ROWS:
                runs.append(run(row, base, options.labels, options.steps, seed))
                print(runs[-1], flush=True)
    command = shlex.join(["python", "benchmarks/infuse_oracle.py", *sys.argv[1:]])
    write_json(Path(f"{options.out}.json"), {"command": command, "versions": versions(), "runs": runs})
    write_text(Path(f"{options.out}.md"), report(runs, options, command))


def report(runs, options, command):
    """A Markdown table."""
    lines = [
        f"digits, {options.labels} labels, 40 % of examples and of {options.steps} steps, {options.seeds} seeds.",
        "", f"    {command}", "",
        "| base | selector | error % | by seed | cosine to the truth | AUROC in class, own | with the truth |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for base in options.bases:
        for row in ROWS:
            mine = [r for r in runs if (r["base"], r["row"]) == (base, row)]
            errors = [r["error"] for r in mine]
            spread = statistics.stdev(errors) if len(errors) > 1 else 0.0
            notes = [f"{x:.2f}" for x in np.mean([r["notes"] for r in mine], 0)] if mine[0]["notes"] else ["–"] * 3
            seeds = " ".join(f"{e:.1f}" for e in errors)
            lines.append(
                f"| {base} | {row} | {statistics.mean(errors):.1f} ± {spread:.1f} | {seeds} | {' | '.join(notes)} |"
            )
    return "\n".join(lines) + f"\n\ntorch {versions()['torch']}.\n"


if __name__ == "__main__":
    main()

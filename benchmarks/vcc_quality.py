"""How well confidences separate right pseudo labels from wrong ones during training; the run cannot see the truth.

    python benchmarks/vcc_quality.py --data digits --labels 20 --steps 600 --seeds 0 1 2 --out results/vcc_quality

writes OUT.json and OUT.md: AUROC and ECE of the softmax confidence, of the target r̃ (corrected and as
printed), of its reconstruction by the VAE and by an MLP, of the matched confidence that selects, and of the softmax at
the learned temperature. The VAE is used for selection; the MLP is only trained beside it.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import ClassVar

import torch

from vcc_infuse import VCC, FixMatch, SmallConv, SSLData, Trainer, load, metrics
from vcc_infuse.calibrators.vcc.fusion import Rows
from vcc_infuse.calibrators.vcc.reconstruction import MLPReconstruction
from vcc_infuse.data.split import balanced
from vcc_infuse.utils.io import write_json, write_text


class Watched(VCC):
    """VCC that also trains an MLP and records every confidence of each batch; `watch` gives it the truth."""

    notes: ClassVar[list[dict]] = []
    truth: ClassVar[torch.Tensor]

    def setup(self, model, task):
        super().setup(model, task)
        self.other = MLPReconstruction(task.classes, model.head.in_features)

    def forward(self, step, images, outputs):
        out = super().forward(step, images, outputs)
        if not self.training:
            return out
        probs, features = outputs.logits.detach().float().softmax(1), outputs.features.detach().float()
        targets = self.targets(len(images))
        self.notes.append({
            "progress": step.progress,
            "right": probs.argmax(1) == self.truth[step.batch.pool_ids],
            "softmax": probs.amax(1),
            "target, corrected": targets["corrected"],
            "target, printed": targets["paper"],
            "VAE": self.network.confidence(probs, features).detach(),
            "MLP": self.other.confidence(probs, features).detach(),
            "selection": out.confidence,
            "softmax at temperature": self.temperature(outputs.logits.detach().float()).softmax(1).amax(1),
        })  # fmt: skip
        return out._replace(loss=out.loss + self.other.loss(probs, features, targets["corrected"]))

    def targets(self, count: int) -> dict[str, torch.Tensor]:
        """The target of the last `count` examples with each way of fusing the scores."""
        memory, fusion = self.score_memory.memory, self.fusion
        slots = (memory.cursor - count + torch.arange(count)) % memory.size
        rows, found = Rows(memory["scores"][slots], memory["confidence"][slots], memory["labels"][slots]), {}
        for name in ("corrected", "paper"):
            self.score_memory.fusion = name
            found[name] = self.score_memory.target(rows)
        self.score_memory.fusion = fusion
        return found


def watch(data: SSLData, steps: int, seed: int, model=None) -> tuple[list, dict]:
    """Train once; returns all notes and the summary of the run."""
    Watched.notes, Watched.truth = [], torch.as_tensor(data.pool_truth)
    run = {"steps": steps, "eval_every": steps, "batch_size": 32, "unlabeled_ratio": 5, "seed": seed}
    vcc = Watched(target_fraction=1.0)
    trainer = Trainer(model or SmallConv(), FixMatch(), vcc, progress=False, precision="fp32", device="cpu", **run)
    summary = trainer.fit(data)
    return Watched.notes, summary


def confidence_metrics(notes: list, start: float, stop: float) -> dict[str, dict[str, float]]:
    """AUROC and ECE of each confidence in a part of the run."""
    part = [n for n in notes if start <= n["progress"] < stop]
    right = torch.cat([n["right"] for n in part])
    names = [name for name in part[0] if name not in ("progress", "right")]
    every = {name: torch.cat([n[name] for n in part]) for name in names}
    return {n: {"auroc": metrics.auroc(c, right), "ece": metrics.ece(c, right)} for n, c in every.items()}


def table(results: list[dict]) -> str:
    """Mean ± standard deviation over seeds, for each third of the run."""
    head = "| confidence | AUROC first third | second | last | ECE first third | second | last |"
    lines = [head, "|---|" + "---|" * 6]
    for name in results[0]["parts"][0]:
        cells = []
        for kind in ("auroc", "ece"):
            for part in range(3):
                values = [r["parts"][part][name][kind] for r in results]
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                cells.append(f"{statistics.fmean(values):.3f} ± {spread:.3f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--labels", type=int, default=20)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--out", default="results/vcc_quality")
    options = parser.parse_args()
    dataset, results = load(options.data), []
    for seed in options.seeds:
        data = SSLData(dataset, balanced(dataset.train.y, options.labels, dataset.classes, seed))
        notes, summary = watch(data, options.steps, seed, SmallConv(options.width))
        parts = [confidence_metrics(notes, k / 3, (k + 1) / 3) for k in range(3)]
        results.append({"seed": seed, "error": summary["error"], "parts": parts})
        print(f"seed {seed}: error {summary['error']:.3f}", flush=True)
    write_json(Path(f"{options.out}.json"), {**vars(options), "results": results})
    write_text(Path(f"{options.out}.md"), table(results))
    print(table(results))


if __name__ == "__main__":
    main()

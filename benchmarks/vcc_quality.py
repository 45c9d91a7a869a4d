"""How well confidences tell right pseudo labels from wrong ones while training, the truth being hidden from the run.

    python benchmarks/vcc_quality.py --data digits --labels 20 --steps 600 --seeds 0 1 2 --out results/vcc_quality

writes vcc_quality.json and vcc_quality.md: AUROC and ECE of the softmax confidence, of the target r̃ (corrected and as
printed), of its reconstruction by the VAE and by an MLP, of the matched confidence that selects, and of the softmax at
the learned temperature. Selection is by the VAE; the MLP only learns alongside.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import ClassVar

import torch

from vcc_infuse import FixMatch, SmallConv, SSLData, Trainer, load, metrics
from vcc_infuse.calibrators.vcc.calibrator import VCC
from vcc_infuse.calibrators.vcc.fusion import Rows, interpolate
from vcc_infuse.calibrators.vcc.reconstruction import MLP
from vcc_infuse.data.split import balanced


class Watched(VCC):
    """VCC that also trains an MLP and notes every confidence of each batch; `watch` hands it the hidden truth."""

    notes: ClassVar[list[dict]] = []
    truth: ClassVar[torch.Tensor]

    def setup(self, model, task):
        super().setup(model, task)
        self.other = MLP(task.classes, model.head.in_features)

    def forward(self, step, images, outputs):
        out = super().forward(step, images, outputs)
        if not self.training:
            return out
        probs, features = outputs.logits.detach().float().softmax(1), outputs.features.detach().float()
        rows, queue = self._latest(len(images)), self.evidence._queue()
        classes, least = self.evidence.classes + 1, self.min_per_class
        targets = {f: interpolate(rows, queue, classes, f, least) for f in ("corrected", "paper")}
        self.notes.append({
            "progress": step.progress,
            "right": probs.argmax(1) == self.truth[step.batch.pool_ids],
            "softmax": probs.amax(1),
            "target, corrected": targets["corrected"],
            "target, printed": targets["paper"],
            "VAE": self._reconstructed(probs, features),
            "MLP": self.other.confidence(probs, features).detach(),
            "selection": out.confidence,
            "softmax at temperature": self.scale(outputs.logits.detach().float()).softmax(1).amax(1),
        })  # fmt: skip
        return out._replace(loss=out.loss + self.other.loss(probs, features, targets["corrected"]))

    def _latest(self, count: int) -> Rows:
        memory = self.evidence.memory
        slots = (memory.cursor - count + torch.arange(count)) % memory.size
        return Rows(memory["scores"][slots], memory["confidence"][slots], memory["labels"][slots])


def watch(data: SSLData, steps: int, seed: int, model=None) -> tuple[list, dict]:
    """Train once; all notes, and the run's summary."""
    Watched.notes, Watched.truth = [], torch.as_tensor(data.pool_truth)
    run = {"steps": steps, "epochs": 6, "eval_every": 6, "batch": 32, "ratio": 5, "seed": seed}
    vcc = Watched(target_fraction=1.0)
    trainer = Trainer(model or SmallConv(), FixMatch(), vcc, progress=False, precision="fp32", cpu=True, **run)
    summary = trainer.fit(data)
    return Watched.notes, summary


def figures(notes: list, start: float, stop: float) -> dict[str, dict[str, float]]:
    """AUROC and ECE of each confidence over a part of the run."""
    part = [n for n in notes if start <= n["progress"] < stop]
    right = torch.cat([n["right"] for n in part])
    names = [name for name in part[0] if name not in ("progress", "right")]
    every = {name: torch.cat([n[name] for n in part]) for name in names}
    return {n: {"auroc": metrics.auroc(c, right), "ece": metrics.ece(c, right)} for n, c in every.items()}


def table(results: list[dict]) -> str:
    """Mean ± deviation over seeds, for each third of the run."""
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
        parts = [figures(notes, k / 3, (k + 1) / 3) for k in range(3)]
        results.append({"seed": seed, "error": summary["error"], "parts": parts})
        print(f"seed {seed}: error {summary['error']:.3f}", flush=True)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    for name, text in (("json", json.dumps({**vars(options), "results": results}, indent=1)), ("md", table(results))):
        temporary = out / f".vcc_quality.{name}"
        temporary.write_text(text, encoding="utf-8")
        temporary.rename(out / f"vcc_quality.{name}")
    print(table(results))


if __name__ == "__main__":
    main()

"""How often the network and size chosen on the labels are as good as the best in hindsight, and what choosing costs.

Every image is embedded once by every network at every size (plain view); everything else is linear probes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from vcc_infuse.augment.views import ImageViews
from vcc_infuse.bank.choose import MARGIN, MOST_LABELS, SAMPLE, Candidate, affordable, at_sizes, decide
from vcc_infuse.bank.embed import make_encoder
from vcc_infuse.bank.encoder import ForwardOptions, FrozenNetwork
from vcc_infuse.bank.onnx_engine import choose_engine
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.data.dataset import Dataset
from vcc_infuse.data.split import balanced
from vcc_infuse.data.ssl_data import load
from vcc_infuse.errors import UserError
from vcc_infuse.models import Concat, Timm
from vcc_infuse.models.concat import networks_of
from vcc_infuse.models.linear_probe import cross_validate
from vcc_infuse.utils.device import unit_features
from vcc_infuse.utils.io import write_json, write_text

VIEWS = 7  # that are embedded of each training image
TESTS = 1000
CPU = torch.device("cpu")
Arrays = dict[str, np.ndarray]
Cell = dict[str, Any]


def rows_of(dataset: Dataset, seeds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training rows that labels are drawn from, unlabeled rows for the statistics, and test rows."""
    y = dataset.train.y
    classes = len(dataset.classes)
    rng = np.random.default_rng(0)
    per_class = 15 if classes > 20 else 50
    smallest = int(np.bincount(y).min())
    if classes > 20:
        base = balanced(y, min(20, smallest) * classes, dataset.classes, 0).labeled
        rngs = [np.random.default_rng(seed) for seed in range(seeds)]
        draws = [one.permutation(base[y[base] == c])[:10] for one in rngs for c in range(classes)]
    else:
        draws = [balanced(y, min(25, smallest) * classes, dataset.classes, seed).labeled for seed in range(seeds)]
    labels = np.unique(np.concatenate(draws))
    labels = np.concatenate([rng.permutation(np.sort(labels[y[labels] == c]))[:per_class] for c in range(classes)])
    rng = np.random.default_rng(0)
    sample = np.sort(rng.permutation(len(y))[: 2 * SAMPLE])[::2]
    tests = 0 if dataset.test is None else len(dataset.test)
    return np.sort(labels), sample, np.sort(rng.permutation(tests)[:TESTS])


def embed(dataset: Dataset, network: Timm, seeds: int) -> Arrays:
    """Features of the plain views by one network, and the milliseconds of CPU time per image."""
    encoder, _ = make_encoder(network, dataset.shape)
    fast = choose_engine(encoder, "auto", device=CPU, seconds=1e9) or encoder
    expects = encoder.preprocessing() or dataset
    frozen = FrozenNetwork(fast, ImageViews(expects.mean, expects.std), ForwardOptions.default(CPU))
    labeled, sample, tests = rows_of(dataset, seeds)
    assert dataset.test is not None
    frozen.embed(CPU, dataset.train.x[:1], ("plain",), (0,), None)  # warms up
    began = time.process_time()
    train, test = (
        frozen.embed(CPU, images, ("plain",), (0,), None)[:, 0]
        for images in (dataset.train.x[np.concatenate([labeled, sample])], dataset.test.x[tests])
    )
    milliseconds = 1000 * (time.process_time() - began) / (len(train) + len(test))
    return {"lab": labeled, "laby": dataset.train.y[labeled], "labf": train[: len(labeled)],
            "poolf": train[len(labeled) :], "testf": test, "testy": dataset.test.y[tests],
            "ms": np.array(milliseconds), "images": np.array([len(dataset.train), len(dataset.test)])}  # fmt: skip


def embedded(name: str, data: str, networks: Sequence[Timm], folder: Path, seeds: int) -> dict[str, Arrays]:
    """What every network makes of a set; files of earlier calls are read."""
    answers = {}
    for network in networks:
        path = folder / f"{name}-{network.name}-{network.input_size}.npz"
        if not path.is_file():
            arrays = embed(load(data, progress=False), network, seeds)
            temporary = path.with_suffix(".tmp.npz")
            np.savez(temporary, allow_pickle=False, **arrays)
            temporary.replace(path)
        with np.load(path) as file:
            answers[key(network)] = dict(file)
    return answers


def key(network: Timm | Concat) -> str:
    """How a candidate is called in files."""
    return f"{network.name}@{network.input_size}"


def standardized(arrays: Sequence[Arrays], rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of labeled and of test images, side by side, by the statistics of the labeled ones and a sample."""
    fill = max(0, SAMPLE - len(rows))
    places = np.searchsorted(arrays[0]["lab"], rows)
    known = torch.from_numpy(np.concatenate([one["labf"][places] for one in arrays], 1)).float()
    sample = torch.from_numpy(np.concatenate([one["poolf"][:fill] for one in arrays], 1)).float()
    test = torch.from_numpy(np.concatenate([one["testf"] for one in arrays], 1)).float()
    everything = torch.cat([known, sample])
    std = everything.std(0, correction=0)
    std = std.clamp(min=0.1 * float(std.square().mean().sqrt()))
    mean = everything.mean(0)
    return unit_features(known, mean, std), unit_features(test, mean, std)


def probes(arrays: dict[str, Arrays], options: Sequence[Timm | Concat], per_class: int, seed: int) -> Iterator[Cell]:
    """For each candidate, what cross-validation says of it on one draw of labels, and its error on the test images."""
    first = next(iter(arrays.values()))
    classes = int(first["laby"].max()) + 1
    by_class = [first["lab"][first["laby"] == c] for c in range(classes)]
    draws = [np.random.default_rng([seed, c]).permutation(rows)[:per_class] for c, rows in enumerate(by_class)]
    rows = np.stack(draws).T.ravel()  # class by class in turn
    y = torch.arange(classes).repeat(len(rows) // classes)
    for option in options:
        parts = [arrays[key(network)] for network in networks_of(option)]
        known, test = standardized(parts, rows)
        began = time.process_time()
        answers = cross_validate(known[:MOST_LABELS], y[:MOST_LABELS], classes)
        seconds = time.process_time() - began
        assert answers is not None
        mean = known.mean(0)
        length = (known - mean).square().sum(1).mean().sqrt()
        probe = LogisticRegression(C=answers.strength, max_iter=1000).fit((known - mean) / length, y)
        error = float((probe.predict((test - mean) / length) != first["testy"]).mean())
        yield {"candidate": key(option), "labels": len(rows), "seed": seed, "test_error": error,
               "losses": answers.losses.tolist(), "error": float(answers.wrong.mean()), "seconds": seconds}  # fmt: skip


def judge(cells: Sequence[Cell], options: Sequence[Timm | Concat], arrays: dict[str, Arrays], margin: float) -> Cell:
    """The choice on one draw of labels, against the best candidate in hindsight."""
    train, test = next(iter(arrays.values()))["images"].tolist()
    seconds = {name: float(one["ms"]) / 1000 for name, one in arrays.items()}
    views = train * VIEWS + test
    candidates = [
        Candidate(
            option, views * sum(seconds[key(network)] for network in networks_of(option)) / 60,
            np.array(cell["losses"]), cell["error"],
        )
        for option, cell in zip(options, cells, strict=True)
    ]  # fmt: skip
    chosen, _ = decide(candidates, float("inf"), margin)
    largest = max(candidates, key=lambda candidate: candidate.minutes)
    errors = {cell["candidate"]: cell["test_error"] for cell in cells}
    labels = min(cells[0]["labels"], MOST_LABELS)
    longest = 60 * max(candidate.minutes for candidate in candidates)
    images = min(max(labels, SAMPLE), affordable(sum(seconds.values()), longest))
    spent = images * sum(seconds.values()) + sum(cell["seconds"] for cell in cells)
    name = key(chosen.encoder)
    return {"chosen": name, "test_error": errors[name], "best": min(errors, key=lambda one: errors[one]),
            "best_error": min(errors.values()), "largest_error": errors[key(largest.encoder)],
            "cost": spent / (60 * chosen.minutes), "cost_of_longest": spent / longest}  # fmt: skip


def study(sets: dict[str, str], names: Sequence[str], folder: Path, seeds: int) -> list[Cell]:
    """All sets, two numbers of labels, all seeds; probes of earlier calls are read."""
    networks: list[Timm | Concat] = [*map(Timm, names), *([Concat("+".join(names))] if len(names) > 1 else [])]
    options = [option for network in networks for option in at_sizes(network)]
    singles = [option for option in options if isinstance(option, Timm)]
    results = []
    for name, data in sets.items():
        arrays = embedded(name, data, singles, folder, seeds)
        classes = int(next(iter(arrays.values()))["laby"].max()) + 1
        for per_class in (4, 10 if classes > 20 else 25):
            for seed in range(seeds):
                path = folder / f"probes-{name}-{per_class}-{seed}.json"
                if not path.is_file():
                    write_json(path, list(probes(arrays, options, per_class, seed)))
                cells = json.loads(path.read_text())
                judged = judge(cells, options, arrays, MARGIN)
                errors = {cell["candidate"]: cell["test_error"] for cell in cells}
                results.append({"set": name, "labels_per_class": per_class, "seed": seed, **judged, "errors": errors})
                print(name, per_class, seed, judged, flush=True)
    return results


def summary(results: Sequence[Cell], error: str = "test_error") -> Cell:
    """How often a choice with this `error` is within a point of the best, what it loses, and what choosing costs."""
    lost = np.array([cell[error] - cell["best_error"] for cell in results])
    costs = np.array([cell["cost"] for cell in results])
    near = float((lost <= 0.01 + 1e-9).mean())
    return {"cells": len(lost), "within_a_point": near, "lost": float(lost.mean()), "worst": float(lost.max()),
            "cost": float(np.median(costs)), "largest_cost": float(costs.max())}  # fmt: skip


def table(results: Sequence[Cell], command: str) -> str:
    """The Markdown page."""
    names = list(dict.fromkeys(cell["set"] for cell in results))
    groups = {name: [cell for cell in results if cell["set"] == name] for name in names}
    groups["all sets"] = list(results)
    lines = ["# The network and size that the labels choose\n", f"    {command}\n",
             "Error in per cent on 1,000 test images (500 of STL-10) of a linear probe. Cost is CPU time of the "
             "comparison over that of embedding every training image in seven views by the chosen network, computed "
             "from the time per image; no limit of minutes, and networks that are exported already.\n",
             "| | choices | within one point of the best | points lost, mean | most | cost, median | most |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for name, cells in groups.items():
        if cells:
            s = summary(cells)
            lines.append(f"| {name} | {s['cells']} | {s['within_a_point']:.0%} | {100 * s['lost']:.1f} "
                         f"| {100 * s['worst']:.1f} | {s['cost']:.1%} | {s['largest_cost']:.1%} |")  # fmt: skip
            s = summary(cells, "largest_error")
            lines.append(f"| … always the largest | {s['cells']} | {s['within_a_point']:.0%} | {100 * s['lost']:.1f} "
                         f"| {100 * s['worst']:.1f} | – | – |")  # fmt: skip
    candidates = list(results[0]["errors"])
    short = [name.replace("tf_efficientnet_", "") for name in candidates]
    lines += ["\nMean test error of every candidate, and how often it was chosen:\n",
              f"| | labels per class | {' | '.join(short)} |", "|---|---|" + "---|" * len(short)]  # fmt: skip
    for name in names:
        for count in dict.fromkeys(cell["labels_per_class"] for cell in groups[name]):
            cells = [cell for cell in groups[name] if cell["labels_per_class"] == count]
            entries = []
            for candidate in candidates:
                times = sum(cell["chosen"] == candidate for cell in cells)
                error = 100 * float(np.mean([cell["errors"][candidate] for cell in cells]))
                entries.append(f"{error:.1f}" + (f" ({times}×)" if times else ""))
            lines.append(f"| {name} | {count} | {' | '.join(entries)} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str]) -> None:
    """Embed, probe, choose, and write the page."""
    parser = Parser("python -m benchmarks choose", "Judge the choice of network and size on the labels.")
    parser.add_argument("--sets", nargs="+", required=True, metavar="NAME=DATA", help="datasets: a path, or a name")
    networks = ["tf_efficientnet_lite0", "tf_efficientnet_lite2"]
    parser.add_argument("--networks", nargs="+", default=networks, help="names in timm (lite0 and lite2)")
    parser.add_argument("--seeds", type=integer(), default=5, help="draws of labels (5)")
    parser.add_argument("--features", required=True, help="folder of features and probes, which are kept")
    parser.add_argument("--out", help="writes OUT.json and OUT.md")
    options = parser.read(argv)
    sets = dict(word.split("=", 1) if "=" in word else (word, word) for word in options.sets)
    if any(not name or "/" in name for name in sets):
        raise UserError("--sets takes a name and a path for each dataset, as in cifar10=data/cifar10.zip")
    folder = Path(options.features)
    folder.mkdir(parents=True, exist_ok=True)
    results = study(sets, options.networks, folder, options.seeds)
    command = " ".join(["OMP_NUM_THREADS=1 python -m benchmarks choose", *argv])
    text = table(results, command)
    print(text)
    if options.out:
        write_json(Path(f"{options.out}.json"), {"command": command, "margin": MARGIN, "results": results})
        write_text(Path(f"{options.out}.md"), text)

"""What a million images cost, and a plan for a hundred million: embedding into shards, and commands over them.

    OMP_NUM_THREADS=1 python -m benchmarks cluster --data stl10.zip --out results/cluster

Photos of the data are written as JPEG files of several sizes into a tar. Every phase is timed on one core, by CPU time,
in turns; the figures are medians. What the plan adds to them is arithmetic, and says so.
"""

from __future__ import annotations

import csv
import io
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import vcc_infuse
from vcc_infuse import INFUSE, Predictor, Shards, Timm, embed_shards, predict_shards
from vcc_infuse.bank.shard_data import labeled_shards
from vcc_infuse.bank.sharding import BACKENDS, CHUNK, Backend, Frozen, Work, embed_piece, fastest, frozen_network
from vcc_infuse.bank.shards import ShardRecipe, ShardWriter, intact
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.cli.select import scan_shards
from vcc_infuse.data.images.store import Limits, open_store
from vcc_infuse.data.sources.remote import Piece, list_pieces, read_piece
from vcc_infuse.utils.io import write_json, write_text

from .engines import in_turns

CPU = torch.device("cpu")
QUALITY = 90
LABELS = 200
CLASSES = 10
PLANNED = 10**8
CORES = 32  # of a machine of the plan
COMMANDS = ("checksum", "predict", "select")
PER_TAR = 10_000  # photos


@dataclass(frozen=True)
class Case:
    """Photos of one size, and what the network is shown of them."""

    photo: tuple[int, int]  # width, height
    side: int
    images: int


CASES = (Case((96, 96), 96, 192), Case((256, 256), 224, 96), Case((1600, 1200), 224, 48))


def main(argv: Sequence[str]) -> None:
    """Measure, and write the page."""
    parser = Parser("python -m benchmarks cluster", "Measure what embedding into shards, and using them, costs.")
    parser.add_argument("--data", required=True, help="folder or zip of photos")
    parser.add_argument("--rows", type=integer(1000), default=40_000, help="rows of a random bank (40000)")
    parser.add_argument("--rounds", type=integer(), default=3, help="turns of each (3)")
    parser.add_argument("--tasks", type=integer(), default=20, help="small shards whose overhead is measured (20)")
    parser.add_argument("--out", default="results/cluster", help="writes OUT.json and OUT.md (%(default)s)")
    options = parser.read(argv)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        embedding = [embedding_cost(options.data, case, root, options.rounds) for case in CASES]
        using = cost_over_shards(root, options.rows, options.rounds)
        overhead = overhead_per_shard(options.data, root, options.tasks)
    found = {"embedding": embedding, "using": using, "overhead": overhead}
    found["plan"] = [plan(row, using, overhead) for row in embedding]
    command = f"OMP_NUM_THREADS=1 python -m benchmarks cluster {' '.join(argv)}"
    write_json(Path(f"{options.out}.json"), {"command": command, **found})
    text = page(found, command)
    write_text(Path(f"{options.out}.md"), text)
    print(text)


# --- embedding


def embedding_cost(data: str, case: Case, root: Path, rounds: int) -> dict[str, Any]:
    """Core seconds per image of reading and decoding, of the network, and of writing; bytes per row."""
    path = root / f"{case.photo[0]}-{case.side}.tar"
    write_photos(data, path, case.photo, case.images)
    (piece,) = list_pieces(str(path), images=case.images)
    frozen = frozen_network(Timm(input_size=case.side))
    network = fastest(frozen, CPU, "onnx", 0, str(root / "cache"))
    pixels = [chunk.x for chunk in read_piece(piece, frozen.recipe.shape, CHUNK, Limits(), 1)]
    work = Work(network, frozen.recipe, None, "cpu", 1)
    embedded = embed_piece(work, 0, piece)
    writer = ShardWriter(root / f"bank-{path.stem}", frozen.recipe)
    works: dict[str, Callable[[], object]] = {
        "decode": lambda: list(read_piece(piece, frozen.recipe.shape, CHUNK, Limits(), 1)),
        "network": lambda: [network.embed(CPU, x, ("plain",), (0,), None) for x in pixels],
        "write": lambda: writer.add(0, piece, embedded.names, embedded.features, 0),
        "whole": lambda: writer.add(0, piece, *embed_piece(work, 0, piece)[:2], 0),
    }
    times = in_turns(works, rounds)
    seconds = {name: float(np.median(values[:, 0])) / case.images for name, values in times.items()}
    part = writer.shards[0]
    return {
        **asdict(case),
        **{f"{name}_seconds": value for name, value in seconds.items()},
        "images_per_second_and_core": 1 / seconds["whole"],
        "bytes_per_row": part.bytes / part.rows,
        "bytes_per_photo": path.stat().st_size / case.images,
        "megabytes": peak_memory(path, root, case.side),
    }


def peak_memory(path: Path, root: Path, side: int) -> float:
    """Peak memory in MB of a process that embeds the photos: of the largest so far, so start with small cases."""
    words = ["--data", str(path), "--shards", str(root / f"memory-{path.stem}"), "--model.input_size", str(side)]
    command = [sys.executable, "-m", "vcc_infuse", "embed", *words, "--engine", "onnx", "--cache", str(root / "cache")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def write_photos(data: str, path: Path, size: tuple[int, int], count: int) -> None:
    """A tar of JPEG files of this size. Enlarged photos are smooth, so that a little noise makes them as hard."""
    rng = np.random.default_rng(0)
    with open_store(Path(data)) as store, tarfile.open(path, "w") as archive:
        names = np.array(sorted(store.images()))
        for number, name in enumerate(rng.choice(names, count, replace=False)):
            with store.open(str(name)) as file:
                photo = np.asarray(Image.open(file).convert("RGB").resize(size, Image.Resampling.BICUBIC), np.int16)
            noisy = np.clip(photo + rng.normal(0, 4, photo.shape), 0, 255).astype(np.uint8)
            content = io.BytesIO()
            Image.fromarray(noisy).save(content, "JPEG", quality=QUALITY)
            entry = tarfile.TarInfo(f"{number:06d}.jpg")
            entry.size = content.tell()
            archive.addfile(entry, io.BytesIO(content.getvalue()))


# --- commands over shards


def cost_over_shards(root: Path, rows: int, rounds: int) -> dict[str, Any]:
    """Core seconds per row of checking, predicting and ranking, on random features as wide as the network's."""
    frozen = frozen_network(Timm(input_size=96))
    shards = random_bank(root / "random", frozen, rows)
    names = shards.names[:LABELS]
    data = labeled_shards(shards, {name: f"class {n % CLASSES}" for n, name in enumerate(names)}, pool=2000)
    out = str(root / "run")
    selector = INFUSE(keep=1)
    vcc_infuse.train(
        data, preset="frozen", selector=selector, out=out, steps=20, cross_fit=False, progress=False, device="cpu"
    )
    run = Predictor.load(out, "cpu")
    works: dict[str, Callable[[], object]] = {
        "checksum": lambda: [intact(shards.folder, part) for part in shards.parts],
        "predict": lambda: write_predictions(run, Shards(shards.folder), root / "out.csv"),
        "select": lambda: scan_shards(run, Shards(shards.folder), 0.0),
    }
    times = in_turns(works, rounds)
    seconds = {f"{name}_seconds": float(np.median(values[:, 0])) / rows for name, values in times.items()}
    index = (shards.folder / "index.json").stat().st_size / len(shards.parts)
    return {"rows": rows, "classes": CLASSES, **seconds, "index_bytes_per_shard": index}


def random_bank(folder: Path, frozen: Frozen, rows: int, per_shard: int = 4096) -> Shards:
    """A bank that no image was needed for."""
    rng = np.random.default_rng(0)
    recipe: ShardRecipe = frozen.recipe
    writer = ShardWriter(folder, recipe)
    pieces = []
    for number, start in enumerate(range(0, rows, per_shard)):
        count = min(per_shard, rows - start)
        pieces.append(Piece("tar", f"s3://photos/part-{number:05d}.tar", "", (), str(number), count))
        names = [f"part-{number:05d}.tar/{place:09d}.jpg" for place in range(count)]
        features = rng.standard_normal((count, 1, recipe.width), np.float32).astype(np.float16)
        writer.add(number, pieces[-1], names, features, 0)
    writer.save(pieces)
    return Shards(folder)


def write_predictions(run: Predictor, shards: Shards, path: Path) -> None:
    """What `predict --shards` writes."""
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        for row in predict_shards(run, shards):
            table.writerow([row.name, row.label, *(f"{value:.6f}" for value in (row.confidence, *row.probs))])


# --- what a shard costs beside its images


def overhead_per_shard(data: str, root: Path, tasks: int) -> dict[str, float]:
    """Wall seconds that one more shard of one small image takes, here and on a worker of Ray."""
    import ray

    folder = root / "small"
    folder.mkdir()
    for number in range(tasks + 1):
        write_photos(data, folder / f"{number:03d}.tar", (32, 32), 1)

    def seconds(backend: Backend, pattern: str, turn: int) -> float:
        began = time.perf_counter()
        embed_shards(
            str(folder / pattern), root / f"{backend}-{pattern[0]}-{turn}", Timm(input_size=96), size=32, device="cpu",
            backend=backend, workers=1, engine="onnx", cache=str(root / "cache"), progress=False,
        )  # fmt: skip
        return time.perf_counter() - began

    found = {}
    for backend in BACKENDS:
        seconds(backend, "000.tar", -1)  # starts the worker
        turns = [(seconds(backend, "*.tar", turn), seconds(backend, "000.tar", turn)) for turn in range(3)]
        found[str(backend)] = min(many - one for many, one in turns) / tasks
    ray.shutdown()
    return found


# --- the plan and the page


def plan(row: dict[str, Any], using: dict[str, Any], overhead: dict[str, float]) -> dict[str, Any]:
    """A hundred million images from these figures, by arithmetic alone."""
    shards = PLANNED / PER_TAR
    hours = (PLANNED * row["whole_seconds"] + shards * max(overhead["ray"] - overhead["here"], 0.0)) / 3600
    machines = int(np.ceil(hours / CORES))
    seconds = 3600 * hours / CORES / machines
    return {
        "photo": row["photo"],
        "side": row["side"],
        "core_hours": hours,
        "hours_on_one_machine": hours / CORES,
        "machines_for_one_hour": machines,
        "read_terabytes": PLANNED * row["bytes_per_photo"] / 1e12,
        "read_megabytes_per_second_and_machine": PLANNED * row["bytes_per_photo"] / 1e6 / seconds / machines,
        "features_gigabytes": PLANNED * row["bytes_per_row"] / 1e9,
        "features_megabytes_per_second": PLANNED * row["bytes_per_row"] / 1e6 / seconds,
        "index_megabytes": shards * using["index_bytes_per_shard"] / 1e6,
        **{f"{name}_core_hours": PLANNED * using[f"{name}_seconds"] / 3600 for name in COMMANDS},
    }


def page(found: dict[str, Any], command: str) -> str:
    """The Markdown page."""
    using = found["using"]
    lines = [
        "# From one laptop to a cluster: what it costs",
        "",
        f"    {command}",
        "",
        "EfficientNet-Lite0 in ONNX Runtime, plain view, one thread, medians of interleaved rounds by CPU time on a "
        "shared machine: another machine is faster or slower by a factor. Photos are JPEG files in a tar.",
        "",
        "## Embedding (measured)",
        "",
        "| photos | network's input | decode, ms | network, ms | write, ms | images per second and core "
        "| core hours per million | bytes per photo | bytes per row | memory of a process, MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["embedding"]:
        parts = " | ".join(f"{1000 * row[f'{name}_seconds']:.2f}" for name in ("decode", "network", "write"))
        rate = f"{row['images_per_second_and_core']:.1f} | {1e6 * row['whole_seconds'] / 3600:.1f}"
        size = f"{row['bytes_per_photo']:,.0f} | {row['bytes_per_row']:,.0f} | {row['megabytes']:,.0f}"
        lines.append(f"| {row['photo'][0]}×{row['photo'][1]} | {row['side']} px | {parts} | {rate} | {size} |")
    seconds = {name: using[f"{name}_seconds"] for name in COMMANDS}
    lines += [
        "",
        f"A shard of one small image takes {1000 * found['overhead']['here']:.0f} ms here and "
        f"{1000 * found['overhead']['ray']:.0f} ms on a worker of Ray, by wall clock, the start of either left out.",
        "",
        f"## Commands over shards (measured on {using['rows']:,} rows of random features, {using['classes']} classes)",
        "",
        "| command | rows per second and core | core seconds per million |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {1 / value:,.0f} | {1e6 * value:.1f} |" for name, value in seconds.items()]
    lines += [
        "",
        f"`predict` includes the CSV file. The index takes {using['index_bytes_per_shard']:,.0f} bytes per shard.",
        "",
        f"## {PLANNED:,} images (reckoned from the tables above, not measured)",
        "",
        f"Machines of {CORES} cores as fast as the one measured, tars of {PER_TAR:,} photos, no time lost to waiting.",
        "",
        "| photos | network's input | core hours | hours on one machine | machines for one hour | photos, TB "
        "| read per machine, MB/s | features, GB | features to the driver in that hour, MB/s | index, MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["plan"]:
        first = f"{row['photo'][0]}×{row['photo'][1]} | {row['side']} px | {row['core_hours']:,.0f}"
        middle = f"{row['hours_on_one_machine']:.1f} | {row['machines_for_one_hour']} | {row['read_terabytes']:.1f}"
        read = f"{row['read_megabytes_per_second_and_machine']:,.0f} | {row['features_gigabytes']:,.0f}"
        last = f"{row['features_megabytes_per_second']:.0f} | {row['index_megabytes']:.1f}"
        lines.append(f"| {first} | {middle} | {read} | {last} |")
    row = found["plan"][0]
    hours = ", ".join(f"{name} {row[f'{name}_core_hours']:.2f}" for name in COMMANDS)
    lines += ["", f"Core hours of the commands over all {PLANNED:,} rows: {hours}."]
    return "\n".join(lines) + "\n"

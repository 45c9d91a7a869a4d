"""This library against scikit-learn on the same features, and its embedding against a plain PyTorch loop.

    OMP_NUM_THREADS=1 python -m benchmarks rivals --features features --sets stl10-224 cifar10-224 --seeds 3 \\
        --photos photos --out results/rivals

To compare with lightly, too:

    pip install --no-deps --target lightly lightly lightly_utils aenum hydra-core omegaconf \\
        antlr4-python3-runtime==4.9.3 pytorch-lightning lightning-utilities torchmetrics
    PYTHONPATH=lightly python -m benchmarks rivals --sets --photos photos --out results/rivals-embedding
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import vcc_infuse
from vcc_infuse import Timm
from vcc_infuse.augment.views import ImageViews
from vcc_infuse.bank.embed import make_encoder
from vcc_infuse.bank.encoder import ForwardOptions, features
from vcc_infuse.bank.onnx_engine import choose_engine
from vcc_infuse.cli.parser import Parser, integer
from vcc_infuse.data.ssl_data import load
from vcc_infuse.utils.io import write_json, write_text

from .features import FeatureSet

ERRORS = (
    "Everything takes turns on the same labels; seconds are CPU time of this process. scikit-learn sees the plain "
    "views, standardized on the whole pool, with its default options; its two semi-supervised methods see the "
    "unlabeled rows too."
)
RATES = (
    "The loop is timm's network, torchvision's transforms and a DataLoader, as most people embed photos. lightly, "
    "if it can be imported, embeds the same way through its own dataset and loop, with the same network and "
    "transforms. They take turns; seconds are CPU time of this process."
)
NETWORK = "tf_efficientnet_lite0"
SIZE = 224
BATCH = 32
Figures = dict[str, Any]


def scikit_learn(features: FeatureSet, per_class: int, seed: int, model: Any, *, unlabeled: bool) -> float:
    """The test error of a model of scikit-learn."""
    labeled = features.draw(per_class, seed).split.labeled
    plain = features.train[:, 0].astype(np.float32)
    scaler = StandardScaler().fit(plain)
    known = np.full(len(plain), -1)
    known[labeled] = features.train_y[labeled]
    rows = np.arange(len(plain)) if unlabeled else labeled
    model.fit(scaler.transform(plain[rows]), known[rows])
    predicted = model.predict(scaler.transform(features.test.astype(np.float32)))
    return float((predicted != features.test_y).mean())


def library(features: FeatureSet, per_class: int, seed: int, **options: Any) -> float:
    """The test error of `vcc_infuse.train`; what is not given is the default."""
    data = features.draw(per_class, seed)
    result = vcc_infuse.train(data, preset="frozen", seed=seed, progress=False, **options)
    return float(result.summary["error"])


def models() -> dict[str, tuple[Any, bool]]:
    """The models of scikit-learn, and whether they see unlabeled rows."""
    logistic = LogisticRegression(max_iter=1000)
    return {
        "scikit-learn LogisticRegression": (logistic, False),
        "scikit-learn SelfTrainingClassifier": (SelfTrainingClassifier(logistic), True),
        "scikit-learn LabelSpreading": (LabelSpreading(kernel="knn", n_neighbors=7), True),
    }


def ours() -> dict[str, dict[str, Any]]:
    """The options of `vcc_infuse.train`."""
    return {"ours, FixMatch": {"algorithm": "FixMatch", "cross_fit": False}, "ours, defaults": {}}


def error_of(name: str, features: FeatureSet, per_class: int, seed: int) -> float:
    """The test error of one row of the table."""
    if name in ours():
        return library(features, per_class, seed, **ours()[name])
    model, unlabeled = models()[name]
    return scikit_learn(features, per_class, seed, model, unlabeled=unlabeled)


def compare(features: FeatureSet, per_class: int, seeds: int) -> list[Figures]:
    """Errors and CPU seconds of every way on one set, in turns."""
    rows: dict[str, Figures] = {name: {"errors": [], "seconds": []} for name in (*models(), *ours())}
    for seed in range(seeds):
        for name, figures in rows.items():
            began = time.process_time()
            figures["errors"].append(error_of(name, features, per_class, seed))
            figures["seconds"].append(time.process_time() - began)
    return [{"set": features.name, "per_class": per_class, "way": name, **figures} for name, figures in rows.items()]


def embedding(folder: Path, rounds: int) -> list[Figures]:
    """CPU seconds per image of the plain loop and of ours, from files to features, in turns."""
    encoder = make_encoder(Timm(NETWORK, input_size=SIZE), (SIZE, SIZE, 3))[0].eval()
    expects = encoder.preprocessing()
    assert expects is not None
    views = ImageViews(expects.mean, expects.std)
    fast = choose_engine(encoder, "auto", device=torch.device("cpu"), seconds=1e9) or encoder
    network: Any = encoder.net

    normalize = v2.Normalize(expects.mean, expects.std)
    transform = v2.Compose([v2.ToImage(), v2.Resize((SIZE, SIZE)), v2.ToDtype(torch.float32, scale=True), normalize])

    def loop() -> int:
        images = ImageFolder(str(folder), transform)
        with torch.inference_mode():
            return sum(len(network(x)) for x, _ in DataLoader(images, BATCH))

    def library_way() -> int:
        x = load(str(folder), size=SIZE, progress=False).train.x
        parts = (torch.from_numpy(np.array(x[start : start + BATCH])) for start in range(0, len(x), BATCH))
        return sum(len(features(fast, views.plain(part), ForwardOptions(BATCH))) for part in parts)

    ways: dict[str, Callable[[], int]] = {"plain PyTorch loop": loop, "ours": library_way}
    if find_spec("lightly"):
        ways["lightly"] = partial(lightly_way, folder, transform, network)
    figures: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.process_time()
            count = way()
            figures[name].append((time.process_time() - began) / count)
    return [{"way": name, "seconds_per_image": seconds} for name, seconds in figures.items()]


def lightly_way(folder: Path, transform: Any, network: nn.Module) -> int:
    """Embed by lightly's own loop; returns how many images."""
    from lightly.data import LightlyDataset
    from lightly.embedding import SelfSupervisedEmbedding

    model = nn.Module()
    model.backbone = network
    images = LightlyDataset(str(folder), transform=transform)
    embedded = SelfSupervisedEmbedding(model, None, None, None).embed(DataLoader(images, BATCH), torch.device("cpu"))
    return len(embedded[0])


def page(runs: Sequence[Figures], embedded: Sequence[Figures], command: str) -> str:
    """Both tables."""
    lines = ["# Against what people use", "", f"    {command}"]
    if runs:
        lines += ["", ERRORS, ""]
        lines += ["| set | labels per class | | error %, mean ± std | CPU seconds, median |", "|---|---|---|---|---|"]
    for run in runs:
        errors = 100 * np.array(run["errors"])
        spread = f"{errors.mean():.1f} ± {errors.std(ddof=1) if len(errors) > 1 else 0:.1f}"
        lines.append(
            f"| {run['set']} | {run['per_class']} | {run['way']} | {spread} | {np.median(run['seconds']):.1f} |"
        )
    if embedded:
        base = np.array(embedded[0]["seconds_per_image"])
        lines += ["", f"Embedding of files at {SIZE} px, plain views, one thread. {RATES}", ""]
        lines += [
            "| | CPU ms per image | images per second | times as fast as the loop, quartiles |",
            "|---|---|---|---|",
        ]
        for row in embedded:
            low, middle, high = np.quantile(base / np.array(row["seconds_per_image"]), (0.25, 0.5, 0.75))
            milliseconds = 1e3 * np.median(row["seconds_per_image"])
            rate = f"{milliseconds:.1f} | {1e3 / milliseconds:.0f}"
            lines.append(f"| {row['way']} | {rate} | {middle:.2f} ({low:.2f} to {high:.2f}) |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str]) -> None:
    """Run every row and write OUT.md and OUT.json."""
    options = read(argv)
    warnings.filterwarnings("ignore", category=UserWarning)
    runs: list[Figures] = []
    for name in options.sets:
        for per_class in options.per_class:
            runs += compare(FeatureSet.load(Path(options.features), name), per_class, options.seeds)
            print("\n".join(page(runs, [], "").splitlines()[-len(models()) - len(ours()) :]), flush=True)
    embedded = embedding(Path(options.photos), options.rounds) if options.photos else []
    command = " ".join(["OMP_NUM_THREADS=1 python -m benchmarks rivals", *argv])
    out = Path(options.out)
    write_json(out.with_suffix(".json"), {"command": command, "runs": runs, "embedding": embedded})
    write_text(out.with_suffix(".md"), page(runs, embedded, command))


def read(argv: Sequence[str]) -> Any:
    """The options, checked."""
    parser = Parser("python -m benchmarks rivals", "Compare with scikit-learn and with a plain PyTorch loop.")
    parser.add_argument("--features", default="features", help="folder of `python -m benchmarks features` (features)")
    parser.add_argument("--sets", nargs="*", required=True, help="names of the feature files, or none")
    parser.add_argument("--per_class", type=integer(), nargs="+", default=[4, 25], help="labels per class (4 25)")
    parser.add_argument("--seeds", type=integer(), default=3, help="draws of the labels (3)")
    parser.add_argument("--photos", help="folder of class folders to embed in both ways")
    parser.add_argument("--rounds", type=integer(), default=3, help="turns of embedding (3)")
    parser.add_argument("--out", default="results/rivals", help="files to write, without suffix (results/rivals)")
    return parser.read(argv)

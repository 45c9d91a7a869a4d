"""How long it takes until something happens: imports, help, and the first and the next start of a training."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from .page import Part
from .turns import Maker, Work, take_turns

LIBRARIES = "import torch, timm, accelerate, sklearn.linear_model, sklearn.model_selection"
FIRST_STEP = """
import vcc_infuse
from vcc_infuse.training.callbacks import Callback
class Stop(Callback):
    def on_start(self, *_):
        raise SystemExit
options = dict(labels=40, preset="frozen", progress=False, cross_fit=False, device="cpu")
vcc_infuse.train({photos!r}, callbacks=[Stop()], **options)
"""
ON_FEATURES = """
import numpy as np
from vcc_infuse import SelfTraining, SSLClassifier
y = np.arange(1000) % 10
x = np.random.default_rng(0).normal(size=(1000, 256)) + y[:, None]
SSLClassifier(algorithm=SelfTraining(), cross_fit=False).fit(x, np.where(np.arange(1000) < 100, y, -1))
"""
TRAIN = "train --preset scratch --size 16 --steps 1 --batch_size 4 --report false --progress false".split()


def measure_startup(rounds: int) -> Part:
    """Fresh interpreters, in turns."""
    part = Part("startup", "Start-up")
    with tempfile.TemporaryDirectory() as folder:
        photos = make_photos(Path(folder) / "photos")
        module = ("-m", "vcc_infuse")
        makers = {
            "import torch": interpreter("-c", "import torch"),
            "import vcc_infuse": interpreter("-c", "import vcc_infuse"),
            "from vcc_infuse import Trainer": interpreter("-c", "from vcc_infuse import Trainer"),
            "vcc-infuse --help": interpreter(*module, "--help"),
            "vcc-infuse train --help": interpreter(*module, "train", "--help"),
            "train, 1 step, first start": training(Path(folder), photos, fresh=True),
            "train, 1 step, images in the cache": training(Path(folder), photos, fresh=False),
            "import torch._dynamo, as torch's first optimizer does": interpreter("-c", "import torch._dynamo"),
            "import torchvision, as timm does": interpreter("-c", "import torchvision"),
            "import timm": interpreter("-c", "import timm"),
            "import torch, sklearn.linear_model": interpreter("-c", "import torch, sklearn.linear_model"),
            "the libraries of a run on a bank": interpreter("-c", LIBRARIES),
            "a fit on features, no steps": interpreter("-c", ON_FEATURES),
            "until the first step, on a cached bank": before_first_step(Path(folder)),
        }
        title = "CPU time of a fresh interpreter; training on 400 PNG files of 16 px"
        part.comparisons.append(take_turns(title, makers, rounds, per="start"))
    part.comparisons[0].memory = {}
    return part


def before_first_step(folder: Path) -> Maker:
    """Makes a start of a run of the preset `frozen` that ends where its first step would begin; all is cached."""
    photos = make_photos(folder / "larger", 64, 100)
    once = interpreter("-c", FIRST_STEP.format(photos=str(photos)), VCC_INFUSE_CACHE=str(folder / "banks"))

    def make() -> Work:
        once()(0)  # embeds, and chooses the network
        return once()

    return make


def make_photos(folder: Path, side: int = 16, count: int = 400) -> Path:
    """Two classes of noise."""
    rng = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(path)
    return folder


def interpreter(*words: str, **variables: str) -> Maker:
    """Makes a start of Python with these words; its time is the CPU seconds of the child."""

    def work(_: int) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return lambda: work


def training(folder: Path, photos: Path, fresh: bool) -> Maker:
    """Makes a run of one step, with a cache of its own in every round if `fresh`."""

    def make() -> Work:
        def work(number: int) -> float:
            cache = folder / (f"cache{number}" if fresh else "cache")
            out = folder / f"run{number}{fresh}"
            words = [*TRAIN, "--data", str(photos), "--labels", "8", "--out", str(out)]
            return float(interpreter("-m", "vcc_infuse", *words, VCC_INFUSE_CACHE=str(cache))()(number))

        return work

    return make

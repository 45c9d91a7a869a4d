"""The step that people write themselves: the one-file example on views of torchvision, image by image.

Unlike `reference.py`, which does all work with gradient, the example sees the weak views without; its network is ours,
in single precision and NCHW. Its views are those of torchvision's own FixMatch-style recipes: crop and flip, and
RandAugment with random erasing after it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vcc_infuse.data.ssl_data import SSLData
from vcc_infuse.models import Classifier

from .pil import MEAN, STD
from .turns import Maker, Work
from .workloads import STEPS, Case

EXAMPLE = Path(__file__).parents[1] / "examples" / "fixmatch_vcc_one_file.py"
View = Callable[[Tensor], Tensor]


def plain_step(case: Case, data: SSLData, *, vcc: bool = False) -> Maker:
    """Makes a step of FixMatch, or of FixMatch and VCC, on batches of the same size as ours."""

    def make() -> Work:
        height, width, channels = data.dataset.shape
        net = Classifier.build(case.model(), (channels, height, width), len(data.dataset.classes))
        run = example().FixMatchVCC(net, len(data.split.pool), STEPS)
        if not vcc:
            run.calibrate = of_softmax
        return partial(step, run, data, case.batch_size, views(height))

    return make


def example() -> ModuleType:
    """The file of examples, which is no package."""
    spec = spec_from_file_location(EXAMPLE.stem, EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[EXAMPLE.stem] = module
    spec.loader.exec_module(module)
    return module


def of_softmax(weak: Tensor, probs: Tensor, features: Tensor, pool_ids: Tensor) -> tuple[Tensor, Tensor]:
    """FixMatch alone: the largest probability, and nothing to learn."""
    return probs.amax(1), probs.new_zeros(())


def views(size: int) -> tuple[View, View]:
    """A weak and a strong view of one image, uint8 (channels, size, size)."""
    from torchvision.transforms import v2

    crop = [v2.RandomCrop(size, padding=size // 8, padding_mode="reflect"), v2.RandomHorizontalFlip()]
    scaled = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    return v2.Compose([*crop, *scaled]), v2.Compose([*crop, v2.RandAugment(), *scaled, v2.RandomErasing(1.0)])


def step(run: Any, data: SSLData, batch_size: int, both: tuple[View, View], number: int) -> None:
    """One batch, as a DataLoader without workers makes it."""
    weak, strong = both
    rng = np.random.default_rng(number)
    labeled = rng.integers(len(data.split.labeled), size=batch_size)
    pool = rng.integers(len(data.split.pool), size=7 * batch_size)
    x = images(data, data.split.labeled[labeled])
    u = images(data, data.split.pool[pool])
    batches = [torch.stack([view(image) for image in part]) for part, view in ((x, weak), (u, weak), (u, strong))]
    y = torch.from_numpy(data.labeled_y[labeled])
    run.train_step(STEPS // 2 + number, batches[0], y, *batches[1:], torch.from_numpy(pool))


def images(data: SSLData, rows: np.ndarray) -> Tensor:
    """Training images, channels first."""
    return torch.from_numpy(data.dataset.train.x[rows]).permute(0, 3, 1, 2)

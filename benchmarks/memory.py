"""Peak memory of fine-tuning steps at 224 px, in pieces of several sizes."""

from __future__ import annotations

from typing import Any

from vcc_infuse.algorithms import FixMatch
from vcc_infuse.models import Timm
from vcc_infuse.training.presets import FINETUNE
from vcc_infuse.training.trainer import Trainer

from .page import Part
from .turns import Maker, Work, take_turns
from .workloads import random_images

SIZE = 224
BATCH = 16
UNLABELED_RATIO = 3  # more than the preset's own, so that there is something to take apart


def measure_memory(network: str = "tf_efficientnet_lite0") -> Part:
    """One step each: time is beside the point."""
    data = random_images(SIZE, 10, 128)
    recipe: dict[str, Any] = {
        name: value for name, value in FINETUNE.items() if name not in ("model", "head_init", "head_scale")
    }

    def step(**options: Any) -> Maker:
        def make() -> Work:
            model = Timm(network, weights="none", input_size=SIZE)
            given = {**recipe, "unlabeled_ratio": UNLABELED_RATIO, "device": "cpu", "progress": False, **options}
            trainer = Trainer(model, FixMatch(), **given)
            trainer.prepare(data)
            return trainer.train_step

        return make

    whole: dict[str, Any] = {"micro_batch": None}
    makers = {
        "whole batch": step(**whole),
        "preset finetune (micro_batch 32)": step(),
        "--memory 4GB": step(memory="4GB", **whole),
        "--memory 2GB": step(memory="2GB", **whole),
    }
    title = f"{network}, random weights, {BATCH}/{UNLABELED_RATIO * BATCH} images of {SIZE} px, AdamW, BatchNorm frozen"
    part = Part("memory", "Peak memory of a step")
    part.comparisons.append(take_turns(title, makers, rounds=1, warmup=0))
    return part

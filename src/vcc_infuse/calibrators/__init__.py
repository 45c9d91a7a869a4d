"""Calibrators, one a file."""

from .base import Calibrator, Softmax
from .vcc import VCC

__all__ = ["VCC", "Calibrator", "Softmax"]

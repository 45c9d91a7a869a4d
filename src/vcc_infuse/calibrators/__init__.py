"""Calibrators, one a file."""

from .base import Calibrator, Softmax

__all__ = ["Calibrator", "Softmax"]

"""VCC: consistency scores, fusion and reconstruction of the confidence."""

from .calibrator import VCC

__all__ = ["VCC"]

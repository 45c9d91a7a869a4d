"""VCC: consistency scores, their fusion into a target confidence, and the network that reconstructs it."""

from .calibrator import VCC

__all__ = ["VCC"]

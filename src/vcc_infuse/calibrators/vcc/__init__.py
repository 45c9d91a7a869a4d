"""VCC: consistency scores, their fusion into a target confidence, and the network that reconstructs it."""

from .calibrator import VCC
from .robust import RobustVCC

__all__ = ["VCC", "RobustVCC"]

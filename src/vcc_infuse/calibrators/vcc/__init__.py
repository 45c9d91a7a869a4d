"""VCC: consistency scores, their fusion into a target confidence, and the network that reconstructs it."""

from .robust import RobustVCC
from .vcc import VCC

__all__ = ["VCC", "RobustVCC"]

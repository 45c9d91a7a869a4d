"""INFUSE: influence of unlabeled examples on the support loss."""

from .robust import RobustINFUSE
from .selector import INFUSE

__all__ = ["INFUSE", "RobustINFUSE"]

"""INFUSE: influence of unlabeled examples on the support loss."""

from .aligned import AlignedINFUSE
from .robust import RobustINFUSE
from .selector import INFUSE

__all__ = ["INFUSE", "AlignedINFUSE", "RobustINFUSE"]

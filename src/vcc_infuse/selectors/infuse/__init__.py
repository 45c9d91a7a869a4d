"""INFUSE: influence of unlabeled examples on the support loss."""

from .aligned import AlignedINFUSE
from .infuse import INFUSE
from .robust import RobustINFUSE

__all__ = ["INFUSE", "AlignedINFUSE", "RobustINFUSE"]

"""INFUSE: influence of unlabeled examples on the support loss."""

from .selector import INFUSE

__all__ = ["INFUSE"]

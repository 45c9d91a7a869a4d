"""Where examples come from, which labels are visible, and how examples are augmented."""

from .dataset import Dataset, Examples
from .loading import load
from .ssl_data import SSLData

__all__ = ["Dataset", "Examples", "SSLData", "load"]

"""Where examples come from, which labels are shown, and how examples are augmented."""

from .dataset import Dataset, Examples
from .loading import load, load_ssl
from .split import LongTail
from .ssl_data import SSLData

__all__ = ["Dataset", "Examples", "LongTail", "SSLData", "load", "load_ssl"]

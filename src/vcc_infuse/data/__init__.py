"""Where examples come from, and which labels are shown."""

from .images.store import Limits
from .split import LongTail
from .ssl_data import SSLData, load_ssl

__all__ = ["Limits", "LongTail", "SSLData", "load_ssl"]

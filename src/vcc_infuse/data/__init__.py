"""Where examples come from, and which labels are shown."""

from .images.store import Limits
from .loading import load_ssl
from .split import LongTail
from .ssl_data import SSLData

__all__ = ["Limits", "LongTail", "SSLData", "load_ssl"]

"""Banks: every image embedded once by a frozen network, in a few views, in place of images."""

from .bank import BankConfig
from .embed import embed_data

__all__ = ["BankConfig", "embed_data"]

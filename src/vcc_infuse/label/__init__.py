"""A page on which a person labels photos while the model learns from them."""

from .embedding import Network
from .images import PoolSource
from .launch import LabelOptions, LabelServer, serve

__all__ = ["LabelOptions", "LabelServer", "Network", "PoolSource", "serve"]

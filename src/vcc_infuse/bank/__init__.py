"""Banks: every image embedded once by a frozen network, in a few views, in place of images."""

from .bank import BankConfig
from .choose import EncoderChoice, choose_encoder
from .embed import embed_data

__all__ = ["BankConfig", "EncoderChoice", "choose_encoder", "embed_data"]

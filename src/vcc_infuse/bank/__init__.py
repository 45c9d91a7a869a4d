"""Banks: every image embedded once by a frozen network, in a few views, in place of images."""

from .bank import BankConfig
from .choose import EncoderChoice, choose_encoder
from .embed import embed_data
from .shard_data import labeled_shards
from .sharding import embed_shards
from .shards import Shards

__all__ = ["BankConfig", "EncoderChoice", "Shards", "choose_encoder", "embed_data", "embed_shards", "labeled_shards"]

"""What happens in memory while a model trains: the loop, its options, its callbacks and its state."""

from .callbacks import Callback
from .config import TrainConfig
from .trainer import Trainer

__all__ = ["Callback", "TrainConfig", "Trainer"]

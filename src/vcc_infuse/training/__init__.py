"""What happens in memory while a model trains: the loop, its configuration and its state."""

from .trainer import Trainer

__all__ = ["Trainer"]

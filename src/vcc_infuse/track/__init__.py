"""The live view: figures and reliability diagrams in TensorBoard or Weights & Biases, through accelerate's trackers."""

from .choice import check_tracker, chosen_tracker
from .tracker import Tracker

__all__ = ["Tracker", "check_tracker", "chosen_tracker"]

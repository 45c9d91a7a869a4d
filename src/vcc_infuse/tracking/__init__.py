"""Live metrics and reliability diagrams in TensorBoard or Weights & Biases, through accelerate's trackers."""

from .tracker import Tracker

__all__ = ["Tracker"]

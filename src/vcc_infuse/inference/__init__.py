"""What is done with a trained model: predict, evaluate, export, share."""

from .export import export_model
from .predictor import Predictor

__all__ = ["Predictor", "export_model"]

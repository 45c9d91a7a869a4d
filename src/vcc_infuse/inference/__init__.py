"""What a trained model is used for: predict, evaluate, export, share."""

from .export import ExportedClassifier, export_model
from .predictor import Predictor

__all__ = ["ExportedClassifier", "Predictor", "export_model"]

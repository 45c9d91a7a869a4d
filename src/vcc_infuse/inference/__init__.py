"""What is done with a trained model: predict, evaluate, export, share."""

from .export import export_model
from .predictor import Predictor
from .shards import network_of_run, predict_shards

__all__ = ["Predictor", "export_model", "network_of_run", "predict_shards"]

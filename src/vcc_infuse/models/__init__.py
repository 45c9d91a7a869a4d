"""Networks: backbones that compute features, and the classifier around them."""

from .backbone import Backbone
from .classifier import Classifier
from .small import MLP, SmallConv
from .timm import Timm
from .wide_resnet import WideResNet

__all__ = ["MLP", "Backbone", "Classifier", "SmallConv", "Timm", "WideResNet"]

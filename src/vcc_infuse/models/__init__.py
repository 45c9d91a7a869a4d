"""Networks: backbones that compute features, and the classifier around them."""

from .backbone import Backbone
from .classifier import Classifier
from .on_features import Embedded, Identity
from .small import MLP, SmallConv
from .timm_backbone import Timm
from .wide_resnet import WideResNet

__all__ = ["MLP", "Backbone", "Classifier", "Embedded", "Identity", "SmallConv", "Timm", "WideResNet"]

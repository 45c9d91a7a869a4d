"""Networks: backbones that compute features, and the classifier around them."""

from .backbone import Backbone, Identity
from .classifier import Classifier
from .concat import Concat
from .small import MLP, SmallConv
from .timm_backbone import Timm
from .wide_resnet import WideResNet

__all__ = ["MLP", "Backbone", "Classifier", "Concat", "Identity", "SmallConv", "Timm", "WideResNet"]

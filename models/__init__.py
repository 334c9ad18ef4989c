"""Pretrained CNNs by name: weights, preprocessing, labels, layers.

This floor knows torchvision and timm; of the explainers it uses the survey of layers and the geometry.
"""

from models.errors import ModelError
from models.preprocess import Preprocess
from models.registry import Registry, list_models, load_model
from models.spec import LoadedModel, ModelSpec
from models.wrapping import wrap_model

__all__ = [
    "LoadedModel",
    "ModelError",
    "ModelSpec",
    "Preprocess",
    "Registry",
    "list_models",
    "load_model",
    "wrap_model",
]

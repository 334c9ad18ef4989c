"""Explanations of any `torch.nn.Module`: hooks, methods, and maps laid back onto the picture.

This floor knows torch and nothing of model zoos or HTTP.
"""

from explainers.base import Attribution, Explainer
from explainers.cam import GradCAM
from explainers.errors import ExplainerError
from explainers.explanation import Explanation, explain
from explainers.geometry import Geometry
from explainers.gradient import Saliency
from explainers.hooks import HookSession
from explainers.layers import Survey, survey
from explainers.registry import get_method, list_methods

__all__ = [
    "Attribution",
    "Explainer",
    "ExplainerError",
    "Explanation",
    "Geometry",
    "GradCAM",
    "HookSession",
    "Saliency",
    "Survey",
    "explain",
    "get_method",
    "list_methods",
    "survey",
]

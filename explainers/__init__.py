"""Explanations of any `torch.nn.Module`: hooks, methods, and maps laid back onto the picture.

This floor knows torch and nothing of model zoos or HTTP.
"""

from explainers.base import Attribution, Explainer
from explainers.cam import GradCAM
from explainers.capturing import Capture, capture
from explainers.edits import Edit
from explainers.errors import ExplainerError
from explainers.explanation import Explanation, explain
from explainers.geometry import Geometry
from explainers.gradient import Saliency
from explainers.hooks import HookSession
from explainers.intervention import Intervention, intervene
from explainers.layers import Survey, survey
from explainers.registry import get_method, list_methods
from explainers.sweeping import Sweep, sweep_channels
from explainers.tracing import Trace, trace

__all__ = [
    "Attribution",
    "Capture",
    "Edit",
    "Explainer",
    "ExplainerError",
    "Explanation",
    "Geometry",
    "GradCAM",
    "HookSession",
    "Intervention",
    "Saliency",
    "Survey",
    "Sweep",
    "Trace",
    "capture",
    "explain",
    "get_method",
    "intervene",
    "list_methods",
    "survey",
    "sweep_channels",
    "trace",
]

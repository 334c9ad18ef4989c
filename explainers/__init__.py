"""Explanations of any `torch.nn.Module`: hooks, methods, and maps laid back onto the picture.

This floor knows torch and nothing of model zoos or HTTP.
"""

from explainers.agreement import rank_correlation
from explainers.base import Attribution, Explainer
from explainers.cam import CAM, WeightedCAM
from explainers.capturing import Capture, capture
from explainers.edits import Edit
from explainers.errors import ExplainerError
from explainers.explanation import Explanation, compare, explain
from explainers.geometry import Geometry
from explainers.hooks import HookSession
from explainers.intervention import Intervention, intervene
from explainers.layers import Survey, survey
from explainers.many import Failure, explain_many
from explainers.methods.gradcam import GradCAM
from explainers.methods.saliency import Saliency
from explainers.registry import Paper, get_method, list_methods, method
from explainers.sweeping import Sweep, sweep_channels
from explainers.tracing import Trace, trace

__all__ = [
    "CAM",
    "Attribution",
    "Capture",
    "Edit",
    "Explainer",
    "ExplainerError",
    "Explanation",
    "Failure",
    "Geometry",
    "GradCAM",
    "HookSession",
    "Intervention",
    "Paper",
    "Saliency",
    "Survey",
    "Sweep",
    "Trace",
    "WeightedCAM",
    "capture",
    "compare",
    "explain",
    "explain_many",
    "get_method",
    "intervene",
    "list_methods",
    "method",
    "rank_correlation",
    "survey",
    "sweep_channels",
    "trace",
]

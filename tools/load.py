"""The requests of the load: models, methods and routes, and their order."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from seewhy import list_methods

LAYERS = {
    "efficientnet_lite0": ("blocks.0", "blocks.4"),
    "efficientnet_lite1": ("blocks.0", "blocks.4"),
    "mnasnet0_5": ("layers.0", "layers.10"),
    "mobilenet_v3_small": ("features.1", "features.8"),
    "shufflenet_v2_x0_5": ("conv1.0", "stage3"),
}
"""An early layer of each model, with few channels, and a later one."""

MODELS = tuple(LAYERS)

UNTRAINED = ("mnasnet0_5", "mobilenet_v3_small", "shufflenet_v2_x0_5")
"""Models with fixed random weights, which are made here."""

PICTURES = ("cat.png", "coffee.png", "rocket.png")

OPTIONS: dict[str, dict[str, str]] = {
    "ablationcam": {"layer": "early"},
    "blur-ig": {"steps": "4"},
    "dave": {"samples": "3"},
    "dff": {"iterations": "20"},
    "drise": {"samples": "24", "cells": "4"},
    "expected-gradients": {"samples": "4"},
    "extremal-perturbation": {"steps": "5"},
    "feature-ablation": {"segments": "12"},
    "gradcam++": {"layer": "early"},
    "grid-saliency": {"steps": "5"},
    "guided-ig": {"steps": "4"},
    "integrated-gradients": {"steps": "4"},
    "iscam": {"layer": "early", "samples": "2"},
    "kernel-shap": {"segmentation": "grid", "segments": "12", "samples": "40"},
    "layercam": {"layer": "late"},
    "lime": {"segmentation": "grid", "segments": "12", "samples": "30"},
    "occlusion": {"patch": "64", "stride": "64"},
    "rise": {"samples": "24", "probability": "0.8"},
    "scorecam": {"layer": "early"},
    "smoothgrad": {"samples": "4"},
    "smoothgradcam++": {"samples": "4"},
    "sobol": {"cells": "4", "samples": "2"},
    "sscam": {"layer": "early", "samples": "2"},
    "vargrad": {"samples": "4"},
    "xgradcam": {"sign": "signed"},
    "xrai": {"steps": "3"},
}
"""Options that make methods quick."""

METHODS = {name: OPTIONS.get(name, {}) for name in sorted(list_methods())}
"""All methods, with their options."""

LONG: dict[str, dict[str, str]] = {
    "integrated-gradients": {"steps": "50"},
    "rise": {"samples": "300"},
    "scorecam": {"layer": "early", "smooth": "tta"},
    "smoothgrad": {"samples": "40"},
}
"""Requests with many passes, of some seconds each: one in a band of requests."""

_OF_OTHERS = ("attention-rollout", "chefer", "legrad", "grid-saliency", "drise")
UNFIT = dict.fromkeys(MODELS, _OF_OTHERS) | {
    "mobilenet_v3_small": (
        *("cam", "dave", "deconvnet", "excitation-backprop", "guided-backprop", "guided-gradcam", "lrp"),
        *_OF_OTHERS,
    ),
}
"""Methods that a model is refused with 422: none of these has attention, regions or boxes; MobileNetV3's head is not
linear, and its activations are not rectifiers; DAVE and LRP have no rule for these."""

MAX_MODELS = 2
"""Maximum number of models that the service may keep."""

BAND = 48
"""Number of requests in a row for the same few models; later ones, and some at the same time, are for others."""


@dataclass(frozen=True)
class Question:
    """One request.

    Attributes:
        path: path of the route.
        picture: name of an example.
        fields: fields of the form.
        is_long: whether it takes many passes.
    """

    path: str
    picture: str
    fields: tuple[tuple[str, str], ...]
    is_long: bool = False

    @property
    def model(self) -> str:
        """The name of the requested model."""
        return dict(self.fields)["model"]


def questions(models: Sequence[str] = MODELS, methods: Sequence[str] = tuple(METHODS)) -> list[Question]:
    """Return the requests: all routes that run a model, over models, methods, layers, targets, contrasts and edits."""
    kinds = []
    for model in models:
        quick = [*_explanations(model, methods), *_others(model)]
        long = [("/explain", _explanation(model, method, LONG[method])) for method in LONG if method in methods]
        for number, (path, fields) in enumerate([*quick, *long]):
            picture, form = PICTURES[number % len(PICTURES)], tuple({"model": model, **fields}.items())
            kinds.append(Question(path, picture, form, is_long=number >= len(quick)))
    return kinds


def _explanations(model: str, methods: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    for method in methods:
        if method in UNFIT.get(model, ()):
            continue
        fields = _explanation(model, method, METHODS[method])
        yield "/explain", fields
        if method in ("gradcam", "fullgrad"):
            yield "/explain", {**fields, "target": "282"}
            yield "/explain", {**fields, "target": "281", "against": "282"}
            yield "/explain", {**fields, "top": "3"}
    yield "/explain", {"method": "gradcam,hirescam", "format": "npz"}


def _explanation(model: str, method: str, options: dict[str, str]) -> dict[str, str]:
    layers = dict(zip(("early", "late"), LAYERS[model], strict=True))
    named = {"layer": layers[options["layer"]]} if "layer" in options else {}
    return {"method": method, "format": "npz", **options, **named}


def _others(model: str) -> Iterator[tuple[str, dict[str, str]]]:
    early, late = LAYERS[model]
    edits = json.dumps([{"layer": late, "op": "zero", "channels": [0, 1, 2]}])
    early_edit = json.dumps([{"layer": early, "op": "zero"}])
    yield "/predict", {}
    yield "/similar", {"format": "npz", "top": "1"}
    yield "/evaluate", {"method": "layercam", "metrics": "infidelity,sparseness", "infidelity.masks": "4"}
    yield "/hooks/trace", {"format": "json"}
    yield "/hooks/trace", {"format": "json", "layer": late, "target": "282"}
    yield "/hooks/capture", {"layer": late, "format": "npz"}
    yield "/hooks/capture", {"layer": late, "kind": "grad_output", "target": "282", "format": "json"}
    yield "/hooks/intervene", {"edits": edits, "format": "json"}
    yield "/hooks/intervene", {"edits": early_edit, "each_channel": "true", "format": "json"}


def order(kinds: Sequence[Question], count: int, models_at_once: int, seed: int = 0) -> list[Question]:
    """Draw requests in bands, each for a few models and with repetitions, so that they meet in batches.

    In each band, one request is long.
    """
    draw = random.Random(seed)
    models = sorted({question.model for question in kinds})
    sequence: list[Question] = []
    while len(sequence) < count:
        few = draw.sample(models, min(models_at_once, len(models)))
        fitting = [question for question in kinds if question.model in few]
        quick = [question for question in fitting if not question.is_long]
        long = [question for question in fitting if question.is_long]
        band = [
            *draw.sample(long, min(1, len(long))),
            *draw.choices(draw.sample(quick, min(BAND // 3, len(quick))), k=BAND),
        ]
        sequence += draw.sample(band[:BAND], BAND)
    return sequence[:count]

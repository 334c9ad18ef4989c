"""Explanations of a picture: of one or several targets, by one or several methods."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray
from torch import nn

from seewhy.explainers.core.ask import Ask, SpatialTarget
from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.calibration import Calibration
from seewhy.explainers.core.choices import AREA, Extent, Fill
from seewhy.explainers.core.model import Model, must_know_pictures
from seewhy.explainers.errors import LayerError, OptionError, TargetError
from seewhy.explainers.hooks.selection import match_modules
from seewhy.explainers.methods.cam.shared_pass import explain_jointly
from seewhy.explainers.methods.catalogue import Method, build_methods, get_method
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.results.comparison import Comparison
from seewhy.explainers.results.display import must_show
from seewhy.explainers.results.explanation import Explanation, explanations
from seewhy.explainers.results.origin import origin_of
from seewhy.explainers.tasks.function import TargetFunction
from seewhy.explainers.tasks.pose import each_ask, named_ask, predict, task_of
from seewhy.explainers.trust.calibration import check_calibration
from seewhy.explainers.trust.faithfulness import prove
from seewhy.explainers.trust.trial import Trial, trial_of
from seewhy.explainers.unknown_names import arguments_of
from seewhy.explainers.view import View, ViewSource, prepare

Target: TypeAlias = int | str | NDArray[np.bool_] | SpatialTarget | TargetFunction
"""A target, as a user names it: the index or the label of a class, ``output:INDEX`` of a value, a mask (H, W)
of a segmenter's region, a target of the model's task, or a function of the outputs."""

Layers: TypeAlias = str | nn.Module | Sequence[str | nn.Module]
"""Layers of a model: dotted paths, globs, or the modules themselves."""


@overload
def explain(
    model: Model,
    picture: ViewSource,
    method: str | None = None,
    target: None = None,
    layer: Layers | None = None,
    against: int | str | None = None,
    *,
    top: int,
    attribute: str | None = None,
    label: int | str | None = None,
    proof: Extent = False,
    proof_area: float = AREA,
    proof_fill: Fill = "blur",
    proof_calibration: Calibration | None = None,
    **options: Any,
) -> list[Explanation]: ...


@overload
def explain(
    model: Model,
    picture: ViewSource,
    method: str | None = None,
    target: Target | None = None,
    layer: Layers | None = None,
    against: int | str | None = None,
    *,
    attribute: str | None = None,
    label: int | str | None = None,
    proof: Extent = False,
    proof_area: float = AREA,
    proof_fill: Fill = "blur",
    proof_calibration: Calibration | None = None,
    **options: Any,
) -> Explanation: ...


@overload
def explain(
    model: Model,
    picture: ViewSource,
    method: str | None = None,
    target: list[Target] | tuple[Target, ...] = ...,
    layer: Layers | None = None,
    against: int | str | None = None,
    *,
    attribute: str | None = None,
    label: int | str | None = None,
    proof: Extent = False,
    proof_area: float = AREA,
    proof_fill: Fill = "blur",
    proof_calibration: Calibration | None = None,
    **options: Any,
) -> list[Explanation]: ...


def explain(
    model: Model,
    picture: ViewSource,
    method: str | None = None,
    target: Target | list[Target] | tuple[Target, ...] | None = None,
    layer: Layers | None = None,
    against: int | str | None = None,
    *,
    top: int | None = None,
    attribute: str | None = None,
    label: int | str | None = None,
    proof: Extent = False,
    proof_area: float = AREA,
    proof_fill: Fill = "blur",
    proof_calibration: Calibration | None = None,
    **options: Any,
) -> Explanation | list[Explanation]:
    """Explain the prediction of a model for a picture.

    Args:
        model: a `LoadedModel`, from `load_model` or `wrap_model`; left unchanged.
        picture: a path, bytes, open file, PIL image or array, see `read_picture`; or a tensor (C, H, W) of the model's
            input, float and normalised, as `model.preprocess` makes it.
        method: a name from `list_methods()`; None for ``gradcam``, or ``hirescam`` for segmenters and ``odam`` for
            detectors.
        target: class index or label, or several; for regression ``output:INDEX``, with ``:down`` to explain what
            lowers the value; for a detector ``box:N``, ``box:X1,Y1,X2,Y2``, ``label:NAME`` for each box of a class, or
            ``region:X1,Y1,X2,Y2``; for a segmenter the region of a class, the region at ``pixel:X,Y``, or a bool mask
            (H, W), see `Segmentation.target`; a function from outputs (N, K) to the scores (N,) to explain; None for
            the most probable class, the box with the highest score or the largest region.
        layer: dotted path or glob, or a module of the model, or several; None for the model's default.
        against: class index or label to contrast each target with; None for no contrast.
        top: number of the most probable classes to explain, instead of `target`; all if the model has fewer.
        attribute: property of a detector's box: ``score``, ``x1``, ``y1``, ``x2``, ``y2``, ``box``, ``objectness`` or
            ``mask``.
        label: class of a target that is a place, such as ``region:10,20,90,80``.
        proof: whether to test the map on masked copies of the picture, with two or three extra forward passes, and add
            a `proof` to the result; ``full`` also tries rotated and mirrored copies of the map.
        proof_area: share of the model's input that the map marks for the proof, 0.01 to 0.9.
        proof_fill: replacement of hidden pixels for the proof: ``blur``, or ``mean`` for the mean colour.
        proof_calibration: result of `calibrate`, to grade the map; None for the scores included with the weights.
        options: the method's own options.

    Returns:
        The heatmap in upload coordinates, with predictions and diagnostics; a list of them for several targets, with
        `top`, and for ``label:NAME`` of a detector.

    Raises:
        PictureError: the picture cannot be read.
        OptionError: a method or option is unknown, or a value is out of bounds.
        LayerError, TargetError: the model does not have the layer or class.
        UnsupportedModuleError: the model is a bare module, whose preprocessing is unknown.
    """
    must_know_pictures(model, picture)
    entry = get_method(model.task.default_method if method is None else method)
    (explainer,) = explainers_of([entry], layer, options, model.module, explain)
    trial = trial_of(proof, proof_area, proof_fill)
    check_calibration(proof_calibration, model, trial)
    if top is None:
        view, names = None, target if isinstance(target, list | tuple) else [target]
    else:
        view = prepare(model, picture)
        names = _best(model, view, target, top)
    if not names:
        raise TargetError("The list of targets is empty; omit `target` to explain the most probable class.")
    asks = [ask_of(model, name, against, attribute, label) for name in names]
    view = view or prepare(model, picture)
    results = _explained(model, entry, explainer, view, _each(model, view, asks), trial, proof_calibration)
    is_single = top is None and not isinstance(target, list | tuple) and not asks[0].is_plural
    return results[0] if is_single else results


def _best(model: Model, view: View, target: Any, top: int) -> list[Any]:
    """Return the names of the `top` most probable targets in a picture; errors are those of `explain`."""
    if target is not None:
        raise OptionError("Give `target` or `top`, not both.", field="top")
    must_show(top)
    outputs = predict(model, view.images(model.device))[0]
    return [row.name for row in model.task.describe(outputs, top=top)] or [None]


def _each(model: Model, view: View, asks: Sequence[Ask]) -> list[Ask]:
    """Return the questions about a picture, one for each box of a class."""
    asks = [ask.placed(view.geometry) for ask in asks]
    if not any(ask.is_plural for ask in asks):
        return asks
    outputs = predict(model, view.images(model.device))[0]
    return [part for ask in asks for part in each_ask(model.task, outputs, ask)]


def _explained(
    model: Model,
    entry: Method,
    explainer: Explainer,
    view: View,
    asks: Sequence[Ask],
    trial: Trial | None,
    calibration: Calibration | None,
) -> list[Explanation]:
    """Return the explanation of each placed question about a picture; all but functions in one batch."""
    if len(asks) > 1 and any(ask.function for ask in asks):
        return [row for ask in asks for row in _explained(model, entry, explainer, view, [ask], trial, calibration)]
    ask = Ask.stacked(asks)
    images = view.images(model.device).expand(len(asks), -1, -1, -1)
    attribution = explainer.explain(model, images, ask)
    (attribution,) = prove(model, images, [attribution], trial, ask, explainers=[explainer])
    return explained(model, entry, explainer, view, attribution, ask, calibration)


def explained(
    model: Model,
    entry: Method,
    explainer: Explainer,
    view: View,
    attribution: Attribution,
    ask: Ask,
    calibration: Calibration | None = None,
    is_edited: bool = False,
) -> list[Explanation]:
    """Return the explanation of each map of an attribution of one picture, with its origin."""
    task = task_of(model, ask)
    rows = explanations(
        model,
        entry.name,
        view.picture,
        view.geometry,
        attribution,
        task,
        calibration,
        explainer,
        remarks=view.remarks,
    )
    outputs = attribution.outputs[0]
    values = outputs.cpu().clone().numpy() if outputs.ndim == 1 else None  # a clone keeps no other picture in memory
    identity = model.identity
    is_known = identity.weights is not None and identity.precision in ("float32", "bfloat16") and view.file is not None
    repeats = is_known and ask.function is None and not is_edited
    origin = origin_of(model, explainer, values, view.file, repeats)
    return [replace(row, origin=origin) for row in rows]


def compare(
    model: Model,
    picture: ViewSource,
    methods: Sequence[str],
    target: Target | None = None,
    layer: Layers | None = None,
    against: int | str | None = None,
    *,
    proof: Extent = False,
    proof_area: float = AREA,
    proof_fill: Fill = "blur",
    proof_calibration: Calibration | None = None,
    **options: Any,
) -> Comparison:
    """Explain with several methods, which share forward and backward passes where possible.

    Args:
        model, picture, layer, against, proof, proof_area, proof_fill, proof_calibration: as in `explain`, including the
            errors.
        methods: names from `list_methods()`.
        target: as in `explain`, but a single target.
        options: options of the methods; each method gets its own.

    Returns:
        One explanation per method, all of the same class, with the agreement of their maps.
    """
    must_know_pictures(model, picture)
    entries = [get_method(name) for name in ([methods] if isinstance(methods, str) else methods)]
    if not entries:
        raise OptionError("The list of methods is empty; name one or more.", field="methods")
    explainers = explainers_of(entries, layer, options, model.module, compare)
    trial = trial_of(proof, proof_area, proof_fill)
    check_calibration(proof_calibration, model, trial)
    view = prepare(model, picture)
    ask, images = ask_of(model, target, against), view.images(model.device)
    attributions = explain_jointly(explainers, model, images, ask.placed(view.geometry))
    attributions = prove(model, images, attributions, trial, ask, explainers=explainers)
    return Comparison(
        tuple(
            explained(model, entry, explainer, view, attribution, ask, proof_calibration)[0]
            for entry, attribution, explainer in zip(entries, attributions, explainers, strict=True)
        )
    )


def ask_of(
    model: Model,
    target: Target | None,
    against: int | str | None = None,
    attribute: str | None = None,
    label: int | str | None = None,
) -> Ask:
    """Return the question about one picture, from user input.

    Raises:
        TargetError: the model has no such target, or a function is contrasted.
    """
    if not callable(target):
        return named_ask(model.task, target, against, attribute, label)
    if against is not None:
        raise TargetError("A target function has no contrast; subtract the other score in the function.")
    return Ask(function=target)


def explainers_of(
    entries: Sequence[Method],
    layer: Layers | None,
    options: Mapping[str, Any],
    module: nn.Module,
    function: Callable[..., Any],
) -> tuple[Explainer, ...]:
    """Return the explainers of methods; layer, options and errors are those of the function that takes them."""
    layers = layer_paths(module, layer)
    given = options if layers is None else {**options, "layers": layers}
    return build_methods(entries, given, arguments_of(function))


def layer_paths(module: nn.Module, layer: Layers | None) -> tuple[str, ...] | None:
    """Return the layers of `explain` as paths and globs.

    Raises:
        LayerError: a module of another model, or an object that is no layer; or an empty list.
    """
    if layer is None:
        return None
    modules = dict(module.named_modules())
    layers = (layer,) if isinstance(layer, str | nn.Module) or not isinstance(layer, Iterable) else tuple(layer)
    if not layers:
        raise LayerError("The list of layers is empty; omit `layer` for the model's default.")
    for part in layers:
        if not isinstance(part, str | nn.Module) or part == "":
            raise LayerError(f"A layer is a dotted path, such as 'layer4', or a module, not {part!r}.")
    # Of several names of a module, hooks know the first.
    return tuple(part if isinstance(part, str) else match_modules(modules, [part])[0] for part in layers)

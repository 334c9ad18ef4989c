"""The routes that describe: /models, /methods and /colormaps."""

from dataclasses import asdict

from flask import Blueprint, Response, request

from seewhy.app.answers.catalogue_schemas import (
    ColormapAnswer,
    ColormapsAnswer,
    LayerAnswer,
    LayersAnswer,
    MethodAnswer,
    MethodsAnswer,
    ModelAnswer,
    ModelDetailAnswer,
    ModelsAnswer,
    WeightsAnswer,
)
from seewhy.app.http.declaration import Declaration
from seewhy.app.http.routes import json_response, model_spec, service
from seewhy.app.http.uploads import flatten
from seewhy.app.pipeline.costs import most_passes
from seewhy.app.pipeline.options import MethodsOptions, ModelsOptions, NoOptions
from seewhy.app.pipeline.parse import parse
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.imaging.choices import DIVERGING, SEQUENTIAL
from seewhy.explainers.imaging.render import palette
from seewhy.explainers.layers.survey import Survey
from seewhy.explainers.methods.catalogue import METHODS, Method, list_methods
from seewhy.models.spec import ModelSpec

blueprint = Blueprint("catalogue", __name__)


@blueprint.get("/models")
@Declaration("All models", options=ModelsOptions, answers=(ModelsAnswer,))
def models() -> Response:
    """List the models; `source` narrows the list."""
    source = parse(ModelsOptions, flatten(request.args)).source
    specs = [spec for spec in service().models.registry.specs() if source in (None, spec.source)]
    return json_response(ModelsAnswer(models=[_describe(spec) for spec in specs]))


@blueprint.get("/models/<path:name>")
@Declaration("One model", options=NoOptions, answers=(ModelDetailAnswer,))
def model(name: str) -> Response:
    """Describe one model, labels included."""
    _check_options()
    spec = model_spec(name)
    survey = _survey(spec)
    description = _describe(spec).model_dump()
    description["default_layers"] = list(survey.default_layers)
    return json_response(ModelDetailAnswer(**description, no_default_layer=survey.reason, labels=list(spec.labels)))


@blueprint.get("/models/<path:name>/layers")
@Declaration("Every module in execution order", options=NoOptions, answers=(LayersAnswer,))
def layers(name: str) -> Response:
    """List every module of a model in execution order."""
    _check_options()
    rows = [LayerAnswer.model_validate(asdict(layer)) for layer in _survey(model_spec(name)).layers]
    return json_response(LayersAnswer(model=name, layers=rows))


@blueprint.get("/methods")
@Declaration("All methods", options=MethodsOptions, answers=(MethodsAnswer,))
def methods() -> Response:
    """List the methods and their options; `model` decides which one is the default, and what each costs."""
    model = parse(MethodsOptions, flatten(request.args)).model
    return json_response(
        MethodsAnswer(
            methods=[describe_method(METHODS[name], model) for name in list_methods()],
            model=model or service().settings.default_model,
            default=service().default_method(model),
            recommended=service().recommended_method(model),
            deadline=service().settings.deadline,
        )
    )


@blueprint.get("/colormaps")
@Declaration("Colour maps with their colours", options=NoOptions, answers=(ColormapsAnswer,))
def colormaps() -> Response:
    """List the colour maps with their colours."""
    _check_options()
    rows = [
        ColormapAnswer(
            name=name,
            diverging=name in DIVERGING,
            colors=[f"#{colour}" for colour in palette(name).hex(" ", bytes_per_sep=3).split()],
        )
        for name in SEQUENTIAL + DIVERGING
    ]
    return json_response(ColormapsAnswer(colormaps=rows))


def _check_options() -> None:
    """Refuse options on a route that has none."""
    parse(NoOptions, flatten(request.args))


_MADE = {"cost", "options", "quantities", "seconds_per_pass", "most_passes", "partial", "unsuitable"}
"""Members of a method's entry that are not attributes of the method."""


def describe_method(method: Method, model: str | None) -> MethodAnswer:
    """Return the catalogue entry of a method, with what it costs on a model, by default the service's."""
    options = {"layer" if name == "layers" else name: schema for name, schema in method.options.items()}
    alike = {name: getattr(method, name) for name in MethodAnswer.model_fields.keys() - _MADE}
    cost = {"forwards": method.forwards, "backwards": method.backwards}
    loaded = service().models.engine.loaded(model or service().settings.default_model)
    quantities = seconds = most = unsuitable = None
    if loaded is not None:
        quantities = method.build({}).quantities(loaded, loaded.spec.image_shape)
        unsuitable = service().models.unsuitable(loaded).get(method.name)
        usual = Passes(1, int(method.backwards != "0"))
        pace = service().models.engine.pace(loaded.name)
        part = None if method.explainer.runs_whole else method.explainer
        seconds = pace.usual(usual, part) / usual.total or None
        if part is None:
            most = most_passes(pace.least(usual) / usual.total, service().settings.deadline)
    return MethodAnswer(
        **alike,
        cost=cost,
        options=options,
        partial=not method.explainer.runs_whole,
        quantities=quantities,
        seconds_per_pass=seconds,
        most_passes=most,
        unsuitable=unsuitable,
    )


def _survey(spec: ModelSpec) -> Survey:
    loaded = service().models.engine.loaded(spec.name)
    return loaded.survey if loaded is not None else service().models.registry.survey(spec, service().deadline().check)


def _describe(spec: ModelSpec) -> ModelAnswer:
    loaded = service().models.engine.loaded(spec.name)
    missing = service().models.registry.missing_weights(spec)
    return ModelAnswer(
        name=spec.name,
        source=spec.source,
        licence=spec.licence,
        input_size=spec.input_size if loaded is None else loaded.preprocess.size,
        classes=len(spec.labels),
        head=spec.head,
        default_layers=list(loaded.default_layers) if loaded is not None else None,
        weights=WeightsAnswer(
            name=spec.weights.name if spec.weights is not None else None,
            available=missing is None,
            reason=missing,
        ),
        loaded=loaded is not None,
    )

"""KServe's V1 protocol, /v1/models, which TensorFlow Serving and TorchServe answer too."""

from typing import Any

from flask import Blueprint, Response, request

from seewhy.app.answers.documents import json_body, ranked
from seewhy.app.answers.stream import json_parts, respond
from seewhy.app.compatible.instances import Given, Range
from seewhy.app.compatible.routes import answer, instances, options_of
from seewhy.app.compatible.schemas import (
    ExplainParameters,
    PredictParameters,
    ReadyModel,
    V1Models,
    V1Predictions,
    V1Request,
)
from seewhy.app.errors import FieldError
from seewhy.app.http.bodies import parse_object, read_body
from seewhy.app.http.routes import service
from seewhy.app.http.uploads import parse
from seewhy.explainers.tasks.classification import best, predictions
from seewhy.models.spec import ModelSpec

blueprint = Blueprint("v1", __name__, url_prefix="/v1")


@blueprint.get("/models")
def models() -> Response:
    """List the models whose weights are at hand."""
    return answer(V1Models(models=instances().names()))


@blueprint.get("/models/<model:name>")
def model(name: str) -> Response:
    """Say whether a model is ready."""
    return answer(ReadyModel(name=instances().ready(name).name, ready=True))


@blueprint.post("/models/<model:name>:predict")
def predict(name: str) -> Response:
    """Classify pictures."""
    spec, sent = instances().spec(name), _read()
    options = parse(PredictParameters, options_of(sent.parameters, name))
    _targets(sent)  # clients send the same instances to both
    found = instances().predict(name, _pictures(sent, spec, options.range))
    if options.output == "labels":
        labels = found.model.labels
        told = [ranked(predictions(logits, labels, best(logits, options.top))) for logits in found.logits]
        return answer(V1Predictions(predictions=told))
    rows = found.logits if options.output == "logits" else found.probabilities
    return answer(V1Predictions(predictions=rows.tolist()))


@blueprint.post("/models/<model:name>:explain")
def explain(name: str) -> Response:
    """Explain pictures; each explanation is a document as POST /explain answers."""
    spec, sent = instances().spec(name), _read()
    options = parse(ExplainParameters, options_of(sent.parameters, name))
    targets = _targets(sent)
    if any(target is not None for target in targets) and (options.target or options.top):
        raise FieldError("Classes stand in an instance and in parameters; give them in one place.", field="target")
    own = [
        options if one is None else parse(ExplainParameters, options_of({**sent.parameters, "target": one}, name))
        for one in targets
    ]
    found = instances().explain(_pictures(sent, spec, options.range), own, drawn=True)
    with service().processors:
        body = json_parts({"explanations": json_body(found, options.values, service().settings.max_json_values)})
        whole = body if options.values is True else body.whole()
    return respond(whole, "application/json", service().settings.download_seconds)


def _read() -> V1Request:
    sent = parse(V1Request, parse_object(read_body(request)))
    instances().check_count(len(sent.instances))
    return sent


def _targets(sent: V1Request) -> list[Any]:
    """Take out of the instances the classes that they name, as those of TorchServe behind KServe do."""
    return [one.pop("target", None) if isinstance(one, dict) else None for one in sent.instances]


def _pictures(sent: V1Request, spec: ModelSpec, meaning: Range | None) -> list[Given]:
    taken = instances().taken(spec, meaning)
    return [taken.from_json(one, f"instances[{number}]") for number, one in enumerate(sent.instances)]

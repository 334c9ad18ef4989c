"""KServe's V1 protocol, /v1/models, which TensorFlow Serving and TorchServe also support."""

from typing import Any

from flask import Blueprint, Response, request

from seewhy.app.answers.documents import json_documents
from seewhy.app.answers.stream import json_parts, respond
from seewhy.app.compatible.instances import Range
from seewhy.app.compatible.outputs import numbers
from seewhy.app.compatible.routes import (
    EXPLAIN,
    KServe,
    check_count,
    json_request,
    model_ready,
    models,
    options_of,
    picture_reader,
)
from seewhy.app.compatible.schemas import (
    ExplainParameters,
    PredictParameters,
    V1Explanations,
    V1Predictions,
    V1Request,
)
from seewhy.app.errors import FieldError
from seewhy.app.http.bodies import parse_object, read_body
from seewhy.app.http.routes import json_response, model_spec, service
from seewhy.app.pipeline.decode import Source
from seewhy.app.pipeline.parse import parse
from seewhy.explainers.results.predictions import ranked
from seewhy.models.spec import ModelSpec

blueprint = Blueprint("v1", __name__, url_prefix="/v1")
blueprint.get("/models")(models)
blueprint.get("/models/<model:name>", endpoint="model")(model_ready)


@blueprint.post("/models/<model:name>:predict")
@KServe(
    "Classify pictures",
    "KServe's V1. Options go in `parameters`: `top`, `output`, `range`.",
    body=json_request(V1Request),
    answers=(V1Predictions,),
)
def predict(name: str) -> Response:
    """Classify pictures."""
    spec, body = model_spec(name), _read()
    options = parse(PredictParameters, options_of(body.parameters, name))
    _pop_targets(body)  # clients send the same instances to predict and explain
    results = service().classify(_pictures(body, spec, options.range), name, options.top)
    if options.output == "labels":
        return json_response(V1Predictions(predictions=[ranked(result.predictions) for result in results]))
    return json_response(V1Predictions(predictions=numbers(results, options.output).tolist()))


@blueprint.post("/models/<model:name>:explain")
@KServe(
    "Explain predictions",
    f"KServe's V1. Options go in `parameters`: {EXPLAIN}",
    body=json_request(V1Request),
    answers=(V1Explanations,),
)
def explain(name: str) -> Response:
    """Explain pictures; each explanation is a document as from POST /explain."""
    spec, body = model_spec(name), _read()
    options = parse(ExplainParameters, options_of(body.parameters, name))
    targets = _pop_targets(body)
    if any(target is not None for target in targets) and (options.target or options.top):
        raise FieldError("Classes are in both an instance and parameters; give them in one place.", field="target")
    questions = [
        options if target is None else parse(ExplainParameters, options_of({**body.parameters, "target": target}, name))
        for target in targets
    ]
    results = service().present(service().ask(_pictures(body, spec, options.range), questions))
    with service().processors:
        documents = json_documents(results, options.values, service().settings.max_json_values)
        parts = json_parts({"explanations": documents})
        answer_body = parts if options.values is True else parts.join()
    return respond(answer_body, "application/json", service().settings.download_seconds)


def _read() -> V1Request:
    body = parse(V1Request, parse_object(read_body(request)))
    check_count(len(body.instances))
    return body


def _pop_targets(body: V1Request) -> list[Any]:
    """Remove the target from instances and return it, as for TorchServe behind KServe."""
    return [instance.pop("target", None) if isinstance(instance, dict) else None for instance in body.instances]


def _pictures(body: V1Request, spec: ModelSpec, meaning: Range | None) -> list[Source]:
    reader = picture_reader(spec, meaning)
    return [reader.from_json(instance, f"instances[{number}]") for number, instance in enumerate(body.instances)]

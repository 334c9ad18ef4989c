"""The Open Inference Protocol (KServe's V2), /v2, which Triton and MLServer also support."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version as version_of
from typing import Any

from flask import Blueprint, Response, current_app, request

from seewhy.app.answers.stream import respond
from seewhy.app.compatible import schemas
from seewhy.app.compatible.inference import InferRequest, read_request, write_answer
from seewhy.app.compatible.instances import Range
from seewhy.app.compatible.outputs import (
    DRAWN,
    PROOFS,
    check_proofs,
    explained_names,
    explained_tensors,
    predicted_names,
    predicted_tensors,
)
from seewhy.app.compatible.routes import (
    BYTES,
    EXPLAIN,
    VERSION,
    KServe,
    check_count,
    json_request,
    model_ready,
    models,
    options_of,
    picture_reader,
    versioned_spec,
)
from seewhy.app.compatible.statistics import Statistics, statistics_of
from seewhy.app.compatible.tensors import HEADER, Tensor
from seewhy.app.errors import FieldError
from seewhy.app.http.bodies import read_body
from seewhy.app.http.declaration import BINARY
from seewhy.app.http.routes import json_response, liveness, service
from seewhy.app.observability.listeners import Operations
from seewhy.app.pipeline.decode import Source
from seewhy.app.pipeline.parse import parse
from seewhy.models.spec import ModelSpec

blueprint = Blueprint("v2", __name__, url_prefix="/v2")
blueprint.get("/models")(models)
blueprint.get("/models/<model:name>/versions/<version>/ready")(model_ready)
blueprint.get("/models/<model:name>/ready")(model_ready)

_IGNORED = {"binary_data_output", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers"}
"""Ignored parameters of clients; the service sets the deadline."""

PLATFORM = "pytorch_seewhy"
"""The platform of the models, for clients."""

_V2 = "The V2 protocol. Options go in `parameters`:"
_BINARY = f"Both bodies are JSON, or JSON and binary tensors; then the header {HEADER} is the length of the JSON."
_LENGTH = {
    "name": HEADER,
    "in": "header",
    "description": "Number of JSON bytes in the body, if binary tensors follow.",
    "schema": {"type": "integer", "minimum": 1},
}
_Inference = partial(
    KServe,
    body=json_request(schemas.V2Request, BYTES),
    headers=(_LENGTH,),
    answers=(schemas.V2Answer,),
    media={BYTES: BINARY},
)


@blueprint.get("")
@KServe("Name and version of the server", answers=(schemas.V2Server,))
def server() -> Response:
    """Return name and version of the server."""
    extensions = ["binary_tensor_data", "classification", "model_configuration", "statistics"]
    return json_response(schemas.V2Server(name="seewhy", version=version_of("seewhy"), extensions=extensions))


@blueprint.get("/health/live")
@KServe("Whether the process is alive", answers=(schemas.V2Live,), is_open=True)
def live() -> Response:
    """Answer that the process is alive; 503 if it is permanently broken."""
    liveness().require()
    return json_response(schemas.V2Live(live=True))


@blueprint.get("/health/ready")
@KServe("Whether the service is ready", answers=(schemas.V2Ready,), is_open=True)
def ready() -> Response:
    """Answer whether the default model is loaded."""
    liveness().require()
    service().models.require_ready()
    return json_response(schemas.V2Ready(ready=True))


@blueprint.get("/models/<model:name>/versions/<version>")
@blueprint.get("/models/<model:name>")
@KServe("The tensors of a model", answers=(schemas.V2Model,))
def model(name: str, version: str = VERSION) -> Response:
    """Describe a model's tensors."""
    spec = versioned_spec(name, version)
    return json_response(
        schemas.V2Model(
            name=spec.name, versions=[VERSION], platform=PLATFORM, inputs=_inputs(spec), outputs=_outputs(spec)
        )
    )


@blueprint.get("/models/<model:name>/versions/<version>/config")
@blueprint.get("/models/<model:name>/config")
@KServe("The configuration of a model, as Triton's", answers=(schemas.V2Configuration,))
def configuration(name: str, version: str = VERSION) -> Response:
    """Describe a model as Triton does: the axis of the pictures is not among the dimensions."""
    spec = versioned_spec(name, version)
    answer = schemas.V2Configuration(
        name=spec.name,
        platform=PLATFORM,
        version_policy={"latest": {"num_versions": 1}},
        max_batch_size=service().settings.max_instances,
        input=[_tensor_configuration(tensor, optional=True) for tensor in _inputs(spec)],
        output=[_tensor_configuration(tensor) for tensor in _outputs(spec)],
    )
    return json_response(answer)


@blueprint.get("/models/stats")
@KServe("The statistics of all models, as Triton's", answers=(schemas.V2Statistics,))
def all_statistics() -> Response:
    """Return the statistics of the models that were used."""
    rows = sorted(_statistics().items())
    return json_response(schemas.V2Statistics(model_stats=[model.answer(name) for name, model in rows]))


@blueprint.get("/models/<model:name>/versions/<version>/stats")
@blueprint.get("/models/<model:name>/stats")
@KServe("The statistics of a model, as Triton's", answers=(schemas.V2Statistics,))
def statistics(name: str, version: str = VERSION) -> Response:
    """Return the statistics of a model, which are zero until it is used."""
    spec = versioned_spec(name, version)
    return json_response(schemas.V2Statistics(model_stats=[_statistics()[spec.name].answer(spec.name)]))


@blueprint.post("/models/<model:name>/versions/<version>/infer")
@blueprint.post("/models/<model:name>/infer")
@_Inference("Classify pictures", f"{_V2} `top`, `range`. {_BINARY}")
def infer(name: str, version: str = VERSION) -> Response:
    """Classify pictures."""
    spec, inference = versioned_spec(name, version), _read()
    options = parse(schemas.ClassifyOptions, _options(inference, name))
    outputs = inference.outputs_of(predicted_names(spec.head))
    results = service().classify(_pictures(inference, spec, options.range), name, options.top)
    return _answer(name, inference, outputs, predicted_tensors(results, outputs))


@blueprint.post("/models/<model:name>/versions/<version>/explain")
@blueprint.post("/models/<model:name>/explain")
@_Inference("Explain predictions", f"{_V2} {EXPLAIN} {_BINARY}")
def explain(name: str, version: str = VERSION) -> Response:
    """Explain pictures."""
    spec, inference = versioned_spec(name, version), _read()
    options = parse(schemas.ExplainParameters, _options(inference, name))
    has_proofs, settings = bool(options.proof), service().settings
    outputs = inference.outputs_of(explained_names(spec.head, has_proofs), (*DRAWN, PROOFS))
    check_proofs(outputs, has_proofs)
    limits = [settings.max_values if inference.is_binary(output) else settings.max_json_values for output in outputs]
    has_drawing = any(output.name in DRAWN for output in outputs)
    pictures = _pictures(inference, spec, options.range)
    results = service().present(service().ask(pictures, [options] * len(pictures), has_drawing))
    with service().processors:
        tensors = explained_tensors(results, outputs, options.values, limits)
    return _answer(name, inference, outputs, tensors)


def _read() -> InferRequest:
    return read_request(read_body(request), request.headers.get(HEADER))


def _options(inference: InferRequest, name: str) -> dict[str, Any]:
    """Return the options of a request; Alibi Explain's clients send them in a separate object."""
    options = {option: value for option, value in inference.parameters.items() if option not in _IGNORED}
    inner = options.pop("explain_parameters", {})
    if not isinstance(inner, dict):
        raise FieldError("explain_parameters must be an object.", field="explain_parameters")
    options.pop("content_type", None)
    return options_of(options | inner, name)


def _pictures(inference: InferRequest, spec: ModelSpec, meaning: Range | None) -> list[Source]:
    parts = inference.pictures()
    check_count(len(parts))
    reader = picture_reader(spec, meaning)
    return [
        part if isinstance(part, bytes) else reader.from_array(part, f"picture {number}")
        for number, part in enumerate(parts, start=1)
    ]


def _answer(
    name: str, inference: InferRequest, outputs: Sequence[schemas.V2RequestedOutput], tensors: list[Tensor]
) -> Response:
    head = {"model_name": name, "model_version": VERSION, "id": inference.id}
    binary = [inference.is_binary(output) for output in outputs]
    body, length = write_answer(head, list(zip(tensors, binary, strict=True)))
    kind = "application/json" if length is None else BYTES
    response = respond(body, kind, service().settings.download_seconds)
    if length is not None:
        response.headers[HEADER] = str(length)
    return response


def _statistics() -> defaultdict[str, Statistics]:
    operations: Operations = current_app.extensions["seewhy-operations"]
    return statistics_of(operations.metrics.families())


def _tensor_configuration(tensor: schemas.V2TensorMetadata, **details: bool) -> schemas.V2ConfiguredTensor:
    kind = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
    return schemas.V2ConfiguredTensor(
        name=tensor.name, data_type=f"TYPE_{kind}", dims=tensor.shape[1:] or [1], **details
    )


def _inputs(spec: ModelSpec) -> list[schemas.V2TensorMetadata]:
    preprocess = spec.preprocess
    normalized = {"range": "normalized", "mean": list(preprocess.mean), "std": list(preprocess.std)}
    return [
        schemas.V2TensorMetadata(name="image", datatype="BYTES", shape=[-1], parameters={"content_type": "base64"}),
        schemas.V2TensorMetadata(name="pixels", datatype="UINT8", shape=[-1, -1, -1, 3], parameters={"range": "byte"}),
        schemas.V2TensorMetadata(name="input", datatype="FP32", shape=[-1, *spec.image_shape], parameters=normalized),
    ]


def _outputs(spec: ModelSpec) -> list[schemas.V2TensorMetadata]:
    classes = len(spec.labels)
    if spec.head == "segmentation":
        kind = "UINT8" if classes < 256 else "UINT16"
        return [
            schemas.V2TensorMetadata(name="masks", datatype=kind, shape=[-1, -1, -1]),
            schemas.V2TensorMetadata(name="areas", datatype="FP32", shape=[-1, classes]),
        ]
    numbers = [name for name in predicted_names(spec.head) if name not in ("indices", "classes")]
    return [
        *(schemas.V2TensorMetadata(name=name, datatype="FP32", shape=[-1, classes]) for name in numbers),
        schemas.V2TensorMetadata(name="indices", datatype="INT64", shape=[-1, -1]),
        schemas.V2TensorMetadata(name="classes", datatype="BYTES", shape=[-1, -1]),
    ]

"""The Open Inference Protocol (KServe's V2), /v2, which Triton and MLServer answer too."""

from collections.abc import Sequence
from importlib.metadata import version as version_of
from typing import Any

from flask import Blueprint, Response, request

from seewhy.app.answers.stream import respond
from seewhy.app.compatible.inference import Asked, read_request, write_answer
from seewhy.app.compatible.instances import Given, Range
from seewhy.app.compatible.outputs import DRAWN, EXPLAINED, PREDICTED, explained_tensors, predicted_tensors
from seewhy.app.compatible.routes import answer, instances, options_of
from seewhy.app.compatible.schemas import (
    ClassifyOptions,
    ExplainParameters,
    ReadyModel,
    V1Models,
    V2Live,
    V2Model,
    V2Ready,
    V2RequestedOutput,
    V2Server,
    V2TensorMetadata,
)
from seewhy.app.compatible.tensors import HEADER, Tensor
from seewhy.app.errors import FieldError, VersionNotFoundError
from seewhy.app.http.bodies import read_body
from seewhy.app.http.declaration import Declaration
from seewhy.app.http.routes import liveness, service
from seewhy.app.http.uploads import parse
from seewhy.models.spec import ModelSpec

blueprint = Blueprint("v2", __name__, url_prefix="/v2")

VERSION = "1"
"""The only version of each model."""

_OURS = {"binary_data_output", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers"}
"""Parameters of clients that are no options of ours; a deadline is the service's."""


@blueprint.get("")
def server() -> Response:
    """Say which server this is."""
    extensions = ["binary_tensor_data", "classification"]
    return answer(V2Server(name="seewhy", version=version_of("seewhy"), extensions=extensions))


@blueprint.get("/health/live")
@Declaration(is_open=True)
def live() -> Response:
    """Say that the process is alive; 503 where it is broken for good."""
    liveness().require()
    return answer(V2Live(live=True))


@blueprint.get("/health/ready")
@Declaration(is_open=True)
def is_ready() -> Response:
    """Say whether the default model is loaded."""
    liveness().require()
    service().require_ready()
    return answer(V2Ready(ready=True))


@blueprint.get("/models")
def models() -> Response:
    """List the models whose weights are at hand."""
    return answer(V1Models(models=instances().names()))


@blueprint.get("/models/<model:name>")
@blueprint.get("/models/<model:name>/versions/<version>")
def model(name: str, version: str = VERSION) -> Response:
    """Describe a model's tensors."""
    spec = _spec(name, version)
    return answer(
        V2Model(
            name=spec.name, versions=[VERSION], platform="pytorch_seewhy", inputs=_inputs(spec), outputs=_outputs(spec)
        )
    )


@blueprint.get("/models/<model:name>/ready")
@blueprint.get("/models/<model:name>/versions/<version>/ready")
def model_ready(name: str, version: str = VERSION) -> Response:
    """Say whether a model is ready."""
    _spec(name, version)
    return answer(ReadyModel(name=instances().ready(name).name, ready=True))


@blueprint.post("/models/<model:name>/infer")
@blueprint.post("/models/<model:name>/versions/<version>/infer")
def infer(name: str, version: str = VERSION) -> Response:
    """Classify pictures."""
    spec, asked = _spec(name, version), _read()
    options = parse(ClassifyOptions, _options(asked, name))
    wanted = asked.wanted(PREDICTED)
    found = instances().predict(name, _pictures(asked, spec, options.range))
    return _answer(name, asked, wanted, predicted_tensors(found, options.top, wanted))


@blueprint.post("/models/<model:name>/explain")
@blueprint.post("/models/<model:name>/versions/<version>/explain")
def explain(name: str, version: str = VERSION) -> Response:
    """Explain pictures."""
    spec, asked = _spec(name, version), _read()
    options = parse(ExplainParameters, _options(asked, name))
    wanted, settings = asked.wanted(EXPLAINED, DRAWN), service().settings
    limits = [settings.max_values if asked.is_binary(one) else settings.max_json_values for one in wanted]
    drawn = any(one.name in DRAWN for one in wanted)
    pictures = _pictures(asked, spec, options.range)
    found = instances().explain(pictures, [options] * len(pictures), drawn)
    with service().processors:
        tensors = explained_tensors(found, wanted, options.values, limits)
    return _answer(name, asked, wanted, tensors)


def _spec(name: str, version: str) -> ModelSpec:
    spec = instances().spec(name)
    if version != VERSION:
        raise VersionNotFoundError(f"The model {name!r} has no version {version!r}, only {VERSION}.")
    return spec


def _read() -> Asked:
    return read_request(read_body(request), request.headers.get(HEADER))


def _options(asked: Asked, name: str) -> dict[str, Any]:
    """Return the options of a request; those of Alibi Explain's clients stand in an object of their own."""
    given = {option: value for option, value in asked.parameters.items() if option not in _OURS}
    inner = given.pop("explain_parameters", {})
    if not isinstance(inner, dict):
        raise FieldError("explain_parameters must be an object.", field="explain_parameters")
    given.pop("content_type", None)
    return options_of(given | inner, name)


def _pictures(asked: Asked, spec: ModelSpec, meaning: Range | None) -> list[Given]:
    parts = asked.pictures()
    instances().check_count(len(parts))
    taken = instances().taken(spec, meaning)
    return [taken.from_tensor(one, f"picture {number + 1}") for number, one in enumerate(parts)]


def _answer(name: str, asked: Asked, wanted: Sequence[V2RequestedOutput], tensors: list[Tensor]) -> Response:
    head = {"model_name": name, "model_version": VERSION, "id": asked.id}
    binary = [asked.is_binary(one) for one in wanted]
    body, length = write_answer(head, list(zip(tensors, binary, strict=True)))
    kind = "application/json" if length is None else "application/octet-stream"
    response = respond(body, kind, service().settings.download_seconds)
    if length is not None:
        response.headers[HEADER] = str(length)
    return response


def _inputs(spec: ModelSpec) -> list[V2TensorMetadata]:
    preprocess = spec.preprocess
    normalized = {"range": "normalized", "mean": list(preprocess.mean), "std": list(preprocess.std)}
    return [
        V2TensorMetadata(name="image", datatype="BYTES", shape=[-1], parameters={"content_type": "base64"}),
        V2TensorMetadata(name="pixels", datatype="UINT8", shape=[-1, -1, -1, 3], parameters={"range": "byte"}),
        V2TensorMetadata(name="input", datatype="FP32", shape=[-1, *spec.image_shape], parameters=normalized),
    ]


def _outputs(spec: ModelSpec) -> list[V2TensorMetadata]:
    classes = len(spec.labels)
    return [
        V2TensorMetadata(name="logits", datatype="FP32", shape=[-1, classes]),
        V2TensorMetadata(name="probabilities", datatype="FP32", shape=[-1, classes]),
        V2TensorMetadata(name="indices", datatype="INT64", shape=[-1, -1]),
        V2TensorMetadata(name="classes", datatype="BYTES", shape=[-1, -1]),
    ]

"""Schemas of requests and answers of other servers: KServe's V1 and V2, and TorchServe.

Only our own members are strict. Members of a protocol that the service does not need are ignored.
"""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, StrictStr

from seewhy.app.answers.schemas import AnyPrediction, ExplainAnswer
from seewhy.app.compatible.instances import Range
from seewhy.app.pipeline.options import ExplainOptions, Name, PredictOptions

RANGE = Field(
    None,
    description="Meaning of an array's numbers: `byte`, levels from 0 to 255; `unit`, levels from 0 to 1; "
    "`normalized`, the model's input. By default integers are `byte` and floating-point numbers `normalized`.",
)


Members: TypeAlias = Annotated[dict[str, Any], BeforeValidator(lambda members: {} if members is None else members)]
"""An object that a client may omit or send as null."""


class ClassifyOptions(PredictOptions):
    """Options of predictions."""

    range: Range | None = RANGE


class PredictParameters(ClassifyOptions):
    """Parameters of POST /v1/models/NAME:predict."""

    output: Literal["labels", "probabilities", "logits", "values"] = Field(
        "labels", description="The `top` most probable classes with their labels, or a number for each class or value."
    )


class ExplainParameters(ExplainOptions):
    """Parameters of explanations; GET /methods lists those of the method."""

    range: Range | None = RANGE


class V1Request(BaseModel):
    """Request of the V1 protocol."""

    model_config = ConfigDict(extra="forbid")

    instances: list[Any] = Field(
        json_schema_extra={"minItems": 1},
        description='Pictures: base64, {"b64": BASE64}, {"image": {"b64": BASE64}}, or nested lists of numbers, '
        "[H, W, 3] or [3, H, W]. An object may also have a `target`, the class to explain.",
    )
    parameters: Members = Field(default={}, description="Options, the same for all instances.")
    signature_name: Any = Field(None, description="Let through.")


class V1Models(BaseModel):
    """Answer of GET /v1/models."""

    models: list[str] = Field(description="Models whose weights are available.")


class ReadyModel(BaseModel):
    """Whether a model is ready."""

    name: str
    ready: bool


class V1Predictions(BaseModel):
    """Answer of POST /v1/models/NAME:predict."""

    predictions: list[list[AnyPrediction]] | list[list[float]] = Field(
        description="For each instance, the best predictions as in POST /predict, or with `output` one number per "
        "class."
    )


class V1Explanations(BaseModel):
    """Answer of POST /v1/models/NAME:explain."""

    explanations: list[ExplainAnswer] = Field(description="One per instance, as in POST /explain.")


class ProtocolError(BaseModel):
    """An error of the V1 and V2 protocols."""

    error: str


class V2Server(BaseModel):
    """Answer of GET /v2."""

    name: str
    version: str
    extensions: list[str]


class V2Live(BaseModel):
    """Answer of GET /v2/health/live."""

    live: bool


class V2Ready(BaseModel):
    """Answer of GET /v2/health/ready."""

    ready: bool


class V2TensorMetadata(BaseModel):
    """An input or output tensor of a model."""

    name: str
    datatype: str
    shape: list[int] = Field(description="-1 if the request determines it.")
    parameters: dict[str, Any] = {}


class V2Model(BaseModel):
    """Answer of GET /v2/models/NAME."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[V2TensorMetadata] = Field(description="Alternatives; a request contains one of them.")
    outputs: list[V2TensorMetadata]


class V2ConfiguredTensor(BaseModel):
    """An input or output tensor in Triton's configuration of a model."""

    name: str
    data_type: str
    dims: list[int] = Field(description="Without the axis of the pictures; -1 if the request determines it.")
    optional: bool = Field(False, description="Whether a request may leave the input out; it contains one of them.")


class V2Configuration(BaseModel):
    """Answer of GET /v2/models/NAME/config: the members of Triton's ModelConfig that apply."""

    name: str
    platform: str
    version_policy: dict[str, dict[str, int]]
    max_batch_size: int = Field(description="Maximum number of pictures per request.")
    input: list[V2ConfiguredTensor]
    output: list[V2ConfiguredTensor]


class V2Duration(BaseModel):
    """A number of requests or batches, and the sum of their durations."""

    count: int
    ns: int = Field(description="The sum, in nanoseconds.")


class V2InferenceStatistics(BaseModel):
    """The durations of requests for a model and of their stages."""

    success: V2Duration = Field(description="Requests with status 2xx, from their headers to the end of the answer.")
    fail: V2Duration = Field(description="Requests with status 4xx or 5xx after the model was loaded.")
    queue: V2Duration = Field(description="Waiting for the model.")
    compute_input: V2Duration = Field(description="Reading pictures and making the model's input.")
    compute_infer: V2Duration = Field(description="Running the model, explanations included.")
    compute_output: V2Duration = Field(description="Drawing and encoding, each counted.")


class V2BatchStatistics(BaseModel):
    """The batches with a number of pictures."""

    batch_size: int
    compute_infer: V2Duration


class V2ModelStatistics(BaseModel):
    """The statistics of a model since the service started."""

    name: str
    version: str
    last_inference: int = Field(description="End of the latest batch, in milliseconds since 1970; 0 without one.")
    inference_count: int = Field(description="Pictures in batches that did not fail.")
    execution_count: int = Field(description="Batches that did not fail, of one picture or more.")
    inference_stats: V2InferenceStatistics
    batch_stats: list[V2BatchStatistics]


class V2Statistics(BaseModel):
    """Answer of GET /v2/models/NAME/stats: the members of Triton's statistics that are measured."""

    model_stats: list[V2ModelStatistics]


class V2Input(BaseModel):
    """The tensor of a request."""

    name: Name
    shape: list[StrictInt] = Field(max_length=8)
    datatype: Name
    parameters: Members = {}
    data: Any = Field(None, description="Numbers, flat or nested; base64 in a BYTES tensor. None if binary.")


class V2RequestedOutput(BaseModel):
    """A requested output tensor."""

    name: Name
    parameters: Members = {}


class V2Request(BaseModel):
    """Request of the Open Inference Protocol."""

    id: StrictStr | None = Field(None, max_length=1000)
    parameters: Members = Field(default={}, description="Options, the same for all pictures.")
    inputs: list[V2Input] = Field(json_schema_extra={"minItems": 1, "maxItems": 1})
    outputs: Annotated[
        list[V2RequestedOutput],
        Field(max_length=64),
        BeforeValidator(lambda items: [] if items is None else items),
    ] = []


class V2Output(BaseModel):
    """An output tensor of an answer."""

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] | None = None
    data: list[float | int | str] | None = None


class V2Answer(BaseModel):
    """Answer of the Open Inference Protocol."""

    model_name: str
    model_version: str
    id: str
    outputs: list[V2Output]


class TorchServeError(BaseModel):
    """An error of TorchServe."""

    code: int
    type: str
    message: str

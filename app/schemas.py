"""What requests and answers look like: these schemas validate both, and OpenAPI is made from them."""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    StringConstraints,
    WithJsonSchema,
)

from explainers.render import DIVERGING, SEQUENTIAL, View

Format = Literal["png", "jpeg", "webp", "json", "npz"]
MEDIA_TYPES: dict[Format, str] = {
    "png": "image/png",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "json": "application/json",
    "npz": "application/x-npz",
}


def _listed(value: Any) -> Any:
    return [] if value is None else [value] if isinstance(value, str | int) else value


def _ends(value: Any) -> Any:
    """Read ``image``, ``lo,hi`` or a pair."""
    if value == "image":
        return None
    if isinstance(value, str):
        parts = value.split(",")
        if len(parts) != 2:
            raise ValueError("must be 'image' or two numbers lo,hi")
        return tuple(parts)
    return value


_SCALE_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            {"type": "string", "pattern": r"^(image|[^,]+,[^,]+)$"},
            {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
            {"type": "null"},
        ],
    }
)


Name = Annotated[str, StringConstraints(max_length=200)]
StrictName = Annotated[StrictStr, StringConstraints(max_length=200)]
"""What a user types for a model, a layer or a class; longer text is not worth a search for near matches."""


_Scalar = StrictName | StrictInt | StrictFloat | StrictBool | None


class Options(BaseModel):
    """Options common to all routes that take a picture. What is not listed belongs to the method."""

    model: Name | None = Field(None, description="A name of GET /models; by default the service's default model.")

    model_config = ConfigDict(extra="forbid", frozen=True)


class PredictOptions(Options):
    """Options of POST /predict."""

    top: int = Field(5, ge=1, le=1000, description="How many of the most probable classes to return.")


class ExplainOptions(Options):
    """Options of POST /explain; further ones belong to the method and are listed by GET /methods."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, _Scalar | list[_Scalar]] = Field(init=False)

    method: Name = Field("gradcam", description="A name of GET /methods.")
    target: Annotated[list[StrictInt | StrictName], BeforeValidator(_listed)] = Field(
        default=[], description="Class index or label, repeatable; by default the most probable class."
    )
    top: int | None = Field(None, ge=1, description="Explain the N most probable classes instead of `target`.")
    layer: Annotated[list[StrictName], BeforeValidator(_listed)] = Field(
        default=[], description="Dotted module path or glob, repeatable (fused); by default the model's own."
    )
    format: Format | None = Field(None, description="By default what Accept asks for, or else png.")
    view: View = Field("overlay", description="The heatmap over the picture, alone, or beside it.")
    colormap: Name | None = Field(
        None,
        description=f"One of {', '.join(SEQUENTIAL + DIVERGING)}; by default inferno, or icefire for signed maps.",
    )
    alpha: float = Field(0.5, ge=0, le=1, description="Strength of the overlay.")
    scale: Annotated[tuple[float, float] | None, BeforeValidator(_ends), _SCALE_SCHEMA] = Field(
        None,
        description="`image` divides each map by its own maximum; `lo,hi` are fixed ends, so that pictures compare.",
    )
    values: bool = Field(False, description="Include the heatmap's numbers in a JSON answer.")

    @property
    def method_options(self) -> dict[str, Any]:
        """The options that are none of ours."""
        return dict(self.model_extra or {})


class FieldProblem(BaseModel):
    """One field at fault."""

    field: str
    message: str


class Problem(BaseModel):
    """An error as RFC 9457 has it."""

    type: str = Field(description="`urn:seewhy:problem:CODE`; the codes are listed in the documentation.")
    title: str
    status: int
    detail: str = Field(description="What is wrong and what to do next.")
    errors: list[FieldProblem] | None = None


class PredictionAnswer(BaseModel):
    """One class."""

    index: int
    label: str
    probability: float


class ModelIdentity(BaseModel):
    """Which model answered."""

    name: str
    weights: str | None
    sha256: str | None = Field(description="Of the weights file.")


class PredictAnswer(BaseModel):
    """Answer of POST /predict."""

    model: ModelIdentity
    predictions: list[PredictionAnswer]


class MethodIdentity(BaseModel):
    """Which method explained, with which options."""

    name: str
    options: dict[str, Any]


class TargetAnswer(PredictionAnswer):
    """The explained class."""

    logit: float


class HeatmapAnswer(BaseModel):
    """The heatmap of one class, in the coordinates of the upload."""

    shape: tuple[int, int] = Field(description="Height and width of the upload.")
    min: float = Field(description="Smallest value before scaling, in the method's own units.")
    max: float = Field(description="Largest value before scaling.")
    values: list[list[float]] | None = Field(
        None, description="Rows, divided by the largest magnitude: in [0, 1], or [-1, 1] when signed."
    )


class DiagnosticAnswer(BaseModel):
    """Something that a reader of the map should know."""

    code: str
    message: str


class ExplanationAnswer(BaseModel):
    """The explanation of one class."""

    target: TargetAnswer
    heatmap: HeatmapAnswer
    overlay: str = Field(description="The drawn answer as a data URL (PNG).")
    diagnostics: list[DiagnosticAnswer]


class ExplainAnswer(BaseModel):
    """Answer of POST /explain with format=json."""

    model: ModelIdentity
    method: MethodIdentity
    layers: list[str]
    predictions: list[PredictionAnswer]
    explanations: list[ExplanationAnswer]
    timings_ms: dict[str, float]
    versions: dict[str, str]


class WeightsAnswer(BaseModel):
    """The weights of a model, or why they are not at hand."""

    name: str | None
    available: bool
    reason: str | None


class ModelAnswer(BaseModel):
    """One model."""

    name: str
    source: str
    licence: str
    input_size: tuple[int, int] = Field(description="Height and width.")
    classes: int
    default_layers: list[str] | None = Field(description="Null in the list of all models for those not loaded.")
    weights: WeightsAnswer
    loaded: bool


class ModelDetailAnswer(ModelAnswer):
    """One model with its labels."""

    no_default_layer: str | None = Field(description="Why `default_layers` is empty.")
    labels: list[str]


class ModelsAnswer(BaseModel):
    """Answer of GET /models."""

    models: list[ModelAnswer]


class LayerAnswer(BaseModel):
    """One module of a model."""

    path: str = Field(description="Dotted path; empty for the model itself.")
    type: str
    input_shape: list[int] | None
    output_shape: list[int] | None
    parameters: int
    calls: int = Field(description="How often it runs in one forward pass.")
    hooks: list[str] = Field(description="What can be recorded of it.")
    cam: bool = Field(description="Whether a CAM can use it.")
    default: bool


class LayersAnswer(BaseModel):
    """Answer of GET /models/NAME/layers: every module in execution order."""

    model: str
    layers: list[LayerAnswer]


class PaperAnswer(BaseModel):
    """Where a method was published."""

    authors: str
    title: str
    year: int
    url: str


class MethodAnswer(BaseModel):
    """One method."""

    name: str
    family: str
    summary: str
    paper: PaperAnswer
    signed: bool
    needs: list[str]
    cost: dict[str, int] = Field(description="Forward and backward passes per picture and class.")
    options: dict[str, dict[str, Any]] = Field(description="JSON schema of each option: type, default, bounds.")


class MethodsAnswer(BaseModel):
    """Answer of GET /methods."""

    methods: list[MethodAnswer]


class HealthAnswer(BaseModel):
    """Answer of GET /healthz and GET /readyz."""

    status: str

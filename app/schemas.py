"""What requests and answers look like: these schemas validate both, and OpenAPI is made from them."""

import json
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

from explainers.edits import MAX_EDITS, AnyEdit, AnyEdits
from explainers.intervention import Applied
from explainers.render import DIVERGING, SEQUENTIAL, Scale, View
from explainers.sites import Kind
from explainers.statistics import Statistics
from explainers.sweeping import ChannelEffect
from explainers.targets import Head
from explainers.tracing import Event, Summary

Drawing = Literal["png", "jpeg", "webp"]
Format = Literal["png", "jpeg", "webp", "json", "npz"]
TraceFormat = Literal["json", "svg", "png"]
CaptureFormat = Literal["json", "npz", "safetensors", "png", "jpeg", "webp"]
InterveneFormat = Literal["json", "png", "jpeg", "webp"]
MEDIA_TYPES: dict[str, str] = {
    "png": "image/png",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "json": "application/json",
    "npz": "application/x-npz",
    "safetensors": "application/x-safetensors",
    "svg": "image/svg+xml",
}


def _listed(value: Any) -> Any:
    return [] if value is None else [value] if isinstance(value, str | int) else value


def _names(value: Any) -> Any:
    """Read names that are repeated, or separated by commas."""
    given = _listed(value)
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        return given
    names = [part.strip().lower() for one in given for part in one.split(",")]
    return list(dict.fromkeys(name for name in names if name))


def _single(value: Any) -> Any:
    if isinstance(value, list):  # as pydantic wants it: no TypeError
        raise ValueError("give it once")  # noqa: TRY004
    return value


class RepeatedMemberError(ValueError):
    """A member that stands twice in an object of JSON; `name` says which."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the member {name[:100]!r} stands twice; give it once")
        self.name = name


def loads(text: str | bytes, **how: Any) -> Any:
    """Return what JSON says, as `json.loads` does.

    Raises:
        RepeatedMemberError: which value is meant cannot be known.
        ValueError, RecursionError: it is no JSON, or nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_unrepeated, **how)


def _unrepeated(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in members:
        if name in found:
            raise RepeatedMemberError(name)
        found[name] = value
    return found


def _json(value: Any) -> Any:
    try:
        found = loads(value) if isinstance(value, str) else value
    except RepeatedMemberError:
        raise
    except json.JSONDecodeError as error:
        raise ValueError(f"it must be a JSON list of edits, and is not JSON: {error}") from None
    except (ValueError, RecursionError):
        raise ValueError("it must be a JSON list of edits") from None
    # One too many is too many: what comes after it is not looked at.
    return found[: MAX_EDITS + 1] if isinstance(found, list) else found


def _ends(value: Any) -> Any:
    """Read ``image``, ``robust``, ``lo,hi`` or a pair."""
    if value == "image":
        return None
    if value == "robust":
        return value
    if isinstance(value, str):
        parts = value.split(",")
        if len(parts) != 2:
            raise ValueError("must be 'image', 'robust' or two numbers lo,hi")
        return tuple(parts)
    return value


_SCALE_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            {"type": "string", "pattern": r"^(image|robust|[^,]+,[^,]+)$"},
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


class NoOptions(BaseModel):
    """Options of routes that take none."""

    model_config = ConfigDict(extra="forbid")


class ModelsOptions(NoOptions):
    """Options of GET /models."""

    source: Literal["own", "embedded", "torchvision", "timm"] | None = Field(
        None, description="List only the models of one source."
    )


class PredictOptions(Options):
    """Options of POST /predict."""

    top: int = Field(5, ge=1, le=1000, description="How many of the most probable classes to return.")


class DrawingOptions(Options):
    """Options of all routes that draw maps over the picture."""

    view: View = Field("overlay", description="The map over the picture, alone, or beside it.")
    colormap: Name | None = Field(
        None,
        description=f"One of {', '.join(SEQUENTIAL + DIVERGING)}; by default inferno, or icefire for signed maps.",
    )
    alpha: float = Field(0.5, ge=0, le=1, description="Strength of the overlay.")
    scale: Annotated[Scale, BeforeValidator(_ends), _SCALE_SCHEMA] = Field(
        None,
        description="`image` divides each map by its own maximum; `robust` by its 99th percentile, for fine maps with "
        "a few extreme pixels; `lo,hi` are fixed ends, so that pictures compare.",
    )


Layers = Annotated[list[StrictName], BeforeValidator(_listed)]
Target = Annotated[StrictInt | StrictName | None, BeforeValidator(_single)]


class HeatmapOptions(DrawingOptions):
    """Options of all routes that explain; further ones belong to the method and are listed by GET /methods."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, _Scalar | list[_Scalar]] = Field(init=False)

    method: Name = Field("gradcam", description="A name of GET /methods.")
    layer: Layers = Field(
        default=[], description="Dotted module path or glob, repeatable (fused); by default the model's own."
    )
    values: bool = Field(False, description="Include the heatmap's numbers in a JSON answer.")

    @property
    def method_options(self) -> dict[str, Any]:
        """The options that are none of ours."""
        return dict(self.model_extra or {})


class ExplainOptions(HeatmapOptions):
    """Options of POST /explain."""

    method: Annotated[list[StrictName], BeforeValidator(_names)] = Field(  # type: ignore[assignment]
        default=["gradcam"],
        min_length=1,
        description="A name of GET /methods, or several, repeated or separated by commas: methods that need the same "
        "forward and backward pass share it.",
    )
    against: Target = Field(
        None, description="Class index or label to contrast the explained class with: why this rather than that."
    )
    target: Annotated[list[StrictInt | StrictName], BeforeValidator(_listed)] = Field(
        default=[], description="Class index or label, repeatable; by default the most probable class."
    )
    values: bool | Literal["map"] = Field(  # type: ignore[assignment]
        False,
        description="Include the heatmap's numbers in a JSON answer; `map` for those of the method's own, coarser "
        "grid.",
    )
    top: int | None = Field(None, ge=1, description="Explain the N most probable classes instead of `target`.")
    format: Format | None = Field(None, description="By default what Accept asks for, or else png.")


class TraceOptions(Options):
    """Options of POST /hooks/trace."""

    target: Target = Field(None, description="Class index or label; by default the most probable class.")
    layer: Layers = Field(
        default=[], description="Dotted module path or glob, repeatable; by default all modules without submodules."
    )
    format: TraceFormat | None = Field(None, description="By default what Accept asks for, or else json.")


class CaptureOptions(DrawingOptions):
    """Options of POST /hooks/capture."""

    layer: Layers = Field(min_length=1, description="Dotted module path or glob, repeatable.")
    kind: Annotated[list[Kind], BeforeValidator(_listed)] = Field(
        default=["output"], min_length=1, description="What to capture, repeatable."
    )
    target: Target = Field(None, description="Class whose gradients; by default the most probable class.")
    top: int = Field(16, ge=1, le=100, description="How many feature maps a contact sheet shows.")
    rank: Literal["activation", "effect"] = Field(
        "activation",
        description="Rank the maps of a contact sheet by mean magnitude, or by that of the sum of output times "
        "gradient, an estimate of what the map does to the target's logit.",
    )
    format: CaptureFormat | None = Field(None, description="By default what Accept asks for, or else json.")


class InterveneOptions(HeatmapOptions):
    """Options of POST /hooks/intervene."""

    edits: Annotated[AnyEdits, BeforeValidator(_json)] = Field(
        description="What to edit, in this order; in a form or a query string as JSON text."
    )
    each_channel: bool = Field(
        False,
        description="Make a sweep: apply the only edit, of one layer's input or output, to each channel by itself, and "
        "rank the channels by what that does to the target.",
    )
    target: Target = Field(None, description="Class index or label; by default the most probable one before the edits.")
    top: int = Field(16, ge=1, le=100, description="How many channels a drawn sweep shows.")
    format: InterveneFormat | None = Field(None, description="By default what Accept asks for, or else json.")


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
    instance: str | None = Field(None, description="`urn:seewhy:request:ID`, with the id of `X-Request-ID`.")
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
    head: Head = Field(description="What makes probabilities: `softmax`, or `sigmoid` of a model with one logit.")


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


class ExplainedHeatmapAnswer(HeatmapAnswer):
    """The heatmap of one class, where it lies in the upload, and what it was before it was laid there."""

    signed: bool = Field(description="Whether negative values speak against the class.")
    box: tuple[float, float, float, float] = Field(
        description="Left, top, right, bottom of what the model saw, in the upload's pixels; beyond the upload where "
        "the model's input is padded."
    )
    map: list[list[float]] | None = Field(
        None, description="Rows of the map as the method gave it, over `box`, in the method's own units: values=map."
    )


class DrawnAnswer(BaseModel):
    """How the values of a map became colours."""

    colormap: str = Field(description="A name of GET /colormaps.")
    low: float = Field(description="The value with the first colour, and all below it.")
    high: float = Field(description="The value with the last colour, and all above it.")


class DiagnosticAnswer(BaseModel):
    """Something that a reader of the map should know."""

    code: str
    message: str


class RegionAnswer(BaseModel):
    """A part of the picture that the layer takes for alike."""

    gain: float = Field(description="The score with nothing in the layer but it, less that with nothing at all.")
    predictions: list[PredictionAnswer] = Field(description="When its concept alone fills the layer.")


class ExplanationAnswer(BaseModel):
    """The explanation of one class by one method."""

    method: str
    target: TargetAnswer
    against: TargetAnswer | None = Field(None, description="The class that the target is contrasted with.")
    heatmap: ExplainedHeatmapAnswer
    drawn: DrawnAnswer
    overlay: str = Field(description="The drawn answer as a data URL (PNG).")
    diagnostics: list[DiagnosticAnswer]
    regions: list[RegionAnswer] = Field(
        description="Of a method that cuts the picture into parts, the largest gain first; empty for all others."
    )


class AgreementAnswer(BaseModel):
    """How much the maps of two methods agree."""

    target: int = Field(description="Index of the explained class.")
    methods: tuple[str, str]
    rank_correlation: float | None = Field(
        description="Spearman's, over the finer of the two grids, in [-1, 1]; null where a map is constant."
    )


class ExplainAnswer(BaseModel):
    """Answer of POST /explain with format=json."""

    model: ModelIdentity
    method: MethodIdentity = Field(description="The first method.")
    methods: list[MethodIdentity] = Field(description="All methods, with their options.")
    agreement: list[AgreementAnswer] = Field(description="Of each two methods, for each class.")
    layers: list[str]
    predictions: list[PredictionAnswer]
    explanations: list[ExplanationAnswer]
    timings_ms: dict[str, float]
    versions: dict[str, str]


class ProgressAnswer(BaseModel):
    """How far an explanation is, in a stream of events."""

    done: int = Field(description="How much of the work is done, in parts of `total`.")
    total: int = Field(description="1000 once the model is at work; 0 while the request waits.")
    elapsed_ms: float = Field(description="Milliseconds since the stream began.")
    preview: str | None = Field(
        None,
        description="The first class's map so far, drawn as the answer will be, at most 512 pixels: a data URL.",
    )


class TraceAnswer(BaseModel):
    """Answer of POST /hooks/trace with format=json."""

    model: ModelIdentity
    target: TargetAnswer
    summary: Summary
    events: list[Event]
    timings_ms: dict[str, float]
    versions: dict[str, str]


class CapturedAnswer(BaseModel):
    """One captured tensor."""

    key: str = Field(description="LAYER/KIND/CALL, as in npz and safetensors.")
    layer: str
    kind: Kind
    call: int | None = Field(description="0 for the layer's first call; null for a parameter.")
    name: str | None = Field(description="Of the parameter; or the index, where a call has several tensors.")
    statistics: Statistics | None = Field(description="Null where no gradient flows.")


class CaptureAnswer(BaseModel):
    """Answer of POST /hooks/capture with format=json."""

    model: ModelIdentity
    target: TargetAnswer
    tensors: list[CapturedAnswer]
    timings_ms: dict[str, float]
    versions: dict[str, str]


class SideAnswer(BaseModel):
    """What the model says without, or with, the edits."""

    logit: float = Field(description="Of the target.")
    probability: float = Field(description="Of the target.")
    predictions: list[PredictionAnswer]
    heatmap: HeatmapAnswer
    diagnostics: list[DiagnosticAnswer]


class DifferenceAnswer(BaseModel):
    """With the edits less without."""

    logit: float
    probability: float
    heatmap: HeatmapAnswer


class InterveneAnswer(BaseModel):
    """Answer of POST /hooks/intervene with format=json. All three heatmaps are divided by the same number."""

    model: ModelIdentity
    method: MethodIdentity
    layers: list[str]
    target: TargetAnswer = Field(description="The class, with its logit and probability before the edits.")
    edits: list[AnyEdit]
    before: SideAnswer
    after: SideAnswer
    difference: DifferenceAnswer
    applied: list[Applied] = Field(description="What each edit did at each call of its layer.")
    panel: str = Field(description="The heatmaps before, after and their difference as a data URL (PNG).")
    timings_ms: dict[str, float]
    versions: dict[str, str]


class SweepAnswer(BaseModel):
    """Answer of POST /hooks/intervene with each_channel and format=json."""

    model: ModelIdentity
    layer: str
    edit: AnyEdit
    target: TargetAnswer = Field(description="The class, with its logit and probability without any edit.")
    predictions: list[PredictionAnswer]
    channels: list[ChannelEffect] = Field(description="The one whose edit lowers the logit most comes first.")
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
    head: Head = Field(description="What makes probabilities: `softmax`, or `sigmoid` of a model with one logit.")
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
    cost: dict[str, str] = Field(
        description="Forward and backward passes per picture and class: a number, or an expression of the options and "
        "the layer's channels."
    )
    equation: str = Field(description="In LaTeX.")
    discriminates: bool = Field(description="Whether maps of two classes in one picture claim to differ.")
    fine: bool = Field(
        description="Whether the map has a value for each pixel that the model saw, unless options say otherwise; "
        "`scale=robust` draws it so that a few extreme pixels do not leave the others pale."
    )
    rounding: str = Field(
        description="What rounding can decide, so that maps may differ between processors, threads and batches; empty "
        "where they differ by rounding alone."
    )
    options: dict[str, dict[str, Any]] = Field(description="JSON schema of each option: type, default, bounds.")


class MethodsAnswer(BaseModel):
    """Answer of GET /methods."""

    methods: list[MethodAnswer]


class ColormapAnswer(BaseModel):
    """One colour map: perceptually uniform, and safe for colour-blind eyes."""

    name: str
    diverging: bool = Field(description="Made for signed maps: zero lies in the middle.")
    colors: list[str] = Field(description="256 colours from the lowest value to the highest, as #rrggbb.")


class ColormapsAnswer(BaseModel):
    """Answer of GET /colormaps."""

    colormaps: list[ColormapAnswer]


class HealthAnswer(BaseModel):
    """Answer of GET /healthz and GET /readyz."""

    status: str

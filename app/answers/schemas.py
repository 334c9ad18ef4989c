"""What answers look like: these schemas make them, and OpenAPI is made from them."""

from typing import Any

from pydantic import (
    BaseModel,
    Field,
)

from seewhy.explainers.hooks.kinds import Kind
from seewhy.explainers.inspection.editor import Applied
from seewhy.explainers.inspection.edits import AnyEdit
from seewhy.explainers.inspection.statistics import Statistics
from seewhy.explainers.inspection.sweep import ChannelEffect
from seewhy.explainers.inspection.trace_events import Event, Summary
from seewhy.explainers.tasks.classification import Head


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
    head: Head = Field(description="What makes probabilities of logits: `softmax`, or `sigmoid` of each.")


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
    head: Head = Field(description="What makes probabilities of logits: `softmax`, or `sigmoid` of each.")
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

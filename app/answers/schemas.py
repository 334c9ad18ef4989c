"""Schemas of answers about pictures, of progress and of errors, which also make the OpenAPI document."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from seewhy.explainers.core.diagnostic import Diagnostic
from seewhy.explainers.hooks.kinds import Kind
from seewhy.explainers.imaging.geometry import Box
from seewhy.explainers.inspection.editor import EditEffect
from seewhy.explainers.inspection.edits import AnyEdit
from seewhy.explainers.inspection.statistics import Statistics
from seewhy.explainers.inspection.sweep import ChannelEffect
from seewhy.explainers.inspection.trace_events import Event, Summary
from seewhy.explainers.results.boxes import DetectedBox
from seewhy.explainers.results.evaluation import Column
from seewhy.explainers.tasks.box_target import Attribute
from seewhy.explainers.tasks.heads import Head
from seewhy.explainers.tasks.values import Direction
from seewhy.explainers.trust.proof import Proof

HeadName = Annotated[
    Head,
    Field(description="How outputs are interpreted: `softmax` or `sigmoid` of the logits, `value`, or another task."),
]

InputBox = Annotated[
    Box,
    Field(
        description="Left, top, right, bottom of the part that the model saw, in the upload's pixels; beyond the "
        "upload if the model's input is padded."
    ),
]


class FieldProblem(BaseModel):
    """One field at fault."""

    field: str
    message: str


class Problem(BaseModel):
    """An error by RFC 9457."""

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


class ValueAnswer(BaseModel):
    """One value of a regression."""

    index: int
    label: str
    value: float
    unit: str = Field(description="Empty where none is declared.")


class SegmentAnswer(BaseModel):
    """One class of a segmenter."""

    index: int
    label: str
    area: float = Field(description="Share of the model's input that it covers within the explained region, 0 to 1.")


class BoxAnswer(PredictionAnswer):
    """One box of a detector."""

    number: int | None = Field(description="Index among the detector's boxes; null if it is not one of them.")
    box: Box


AnyPrediction = PredictionAnswer | ValueAnswer | SegmentAnswer | BoxAnswer
"""The prediction for a class, a value, a class with its area, or a box."""


class ModelIdentity(BaseModel):
    """The model that answered."""

    name: str
    weights: str | None
    sha256: str | None = Field(description="SHA-256 of the weights file.")
    head: HeadName
    precision: str = Field(description="The lowest precision in which the model computes.")


class PredictAnswer(BaseModel):
    """Answer of POST /predict."""

    model: ModelIdentity
    predictions: list[AnyPrediction]


class DetectAnswer(BaseModel):
    """Answer of POST /detect."""

    model: ModelIdentity
    boxes: list[DetectedBox] = Field(description="The boxes that the detector finds, in order of score.")


class WorkAnswer(BaseModel):
    """The members of all answers that say how long the work has taken."""

    model: ModelIdentity
    timings_ms: dict[str, float]
    versions: dict[str, str]


class MethodIdentity(BaseModel):
    """A method and its options."""

    name: str
    options: dict[str, Any]


class TargetAnswer(PredictionAnswer):
    """The explained class."""

    logit: float


class ValueTargetAnswer(ValueAnswer):
    """The explained value."""

    direction: Direction = Field(description="Whether the map explains what raises the value, or what lowers it.")


class SegmentTargetAnswer(SegmentAnswer):
    """The explained region."""

    logit: float = Field(description="Mean over the region.")


class BoxTargetAnswer(BoxAnswer):
    """The explained box."""

    logit: float = Field(description="Raw logit of the class.")
    attribute: Attribute = Field(description="Property of the box that is explained.")
    value: float = Field(description="Value of the attribute: the logit, pixels of the upload, or a raw logit.")


AnyTarget = TargetAnswer | ValueTargetAnswer | SegmentTargetAnswer | BoxTargetAnswer
"""The explained target."""


class HeatmapAnswer(BaseModel):
    """The heatmap of one class, in the coordinates of the upload."""

    shape: tuple[int, int] = Field(description="Height and width of the upload.")
    min: float = Field(description="Smallest value before scaling, in the method's own units.")
    max: float = Field(description="Largest value before scaling; the cells of `map` may be higher.")
    values: list[list[float]] | None = Field(
        None, description="Rows, divided by the largest magnitude: in [0, 1], or [-1, 1] when signed."
    )


class ExplainedHeatmapAnswer(HeatmapAnswer):
    """The heatmap of one class, its position in the upload, and its raw map."""

    signed: bool = Field(description="Whether negative values are evidence against the class.")
    box: InputBox
    map: list[list[float]] | None = Field(
        None, description="Rows of the method's raw map over `box`, in the method's own units; with values=map."
    )


class DrawnAnswer(BaseModel):
    """The mapping from the values of a map to colours."""

    colormap: str = Field(description="A name from GET /colormaps.")
    low: float = Field(description="The value of the first colour, and of all values below.")
    high: float = Field(description="The value of the last colour, and of all values above.")
    meaning: str = Field(description="What the colours mean, in a sentence.")


class RegionAnswer(BaseModel):
    """A part of the picture with similar features in the layer."""

    gain: float = Field(description="The score with only this region in the layer, minus that of an empty layer.")
    predictions: list[AnyPrediction] = Field(description="Predictions if only its concept fills the layer.")


class ExplanationAnswer(BaseModel):
    """The explanation of one class by one method."""

    method: str
    target: AnyTarget
    against: AnyTarget | None = Field(None, description="The class that the target is contrasted with.")
    heatmap: ExplainedHeatmapAnswer
    drawn: DrawnAnswer
    overlay: str = Field(description="The drawing as a data URL (PNG).")
    diagnostics: list[Diagnostic]
    regions: list[RegionAnswer] = Field(
        description="Regions of a method that divides the picture, the largest gain first; empty for other methods."
    )
    outside: float | None = Field(
        None, description="For a segmenter: the share of the map's magnitude outside the explained region, 0 to 1."
    )
    proof: Proof | None = Field(None, description="Test of the heatmap on the model; with `proof`.")


class AgreementAnswer(BaseModel):
    """The agreement of two methods' maps."""

    target: int | str = Field(description="Index of the explained class, `output:INDEX` for a value, or `box:N`.")
    methods: tuple[str, str]
    rank_correlation: float | None = Field(
        description="Spearman's correlation over the finer of the two grids, in [-1, 1]; null if a map is constant."
    )


class ExplainAnswer(WorkAnswer):
    """Answer of POST /explain with format=json."""

    method: MethodIdentity = Field(description="The first method.")
    methods: list[MethodIdentity] = Field(description="All methods, with their options.")
    agreement: list[AgreementAnswer] = Field(description="One per pair of methods and class.")
    layers: list[str]
    predictions: list[AnyPrediction]
    explanations: list[ExplanationAnswer]


class PatchMapAnswer(BaseModel):
    """The contribution of each place in a picture to a likeness."""

    shape: tuple[int, int] = Field(description="Height and width of the upload.")
    min: float = Field(description="Smallest value of the map, laid onto the upload.")
    max: float = Field(description="Largest value of the map, laid onto the upload.")
    signed: bool = Field(description="Whether either picture has places that reduce the similarity.")
    box: InputBox
    map: list[list[float]] = Field(
        description="Rows of the layer's cells over `box`: the contribution of each to the score."
    )
    proof: Proof | None = Field(None, description="How far the map can be trusted; with `proof`.")


class PairAnswer(BaseModel):
    """A patch of each picture."""

    image: Box = Field(description="Left, top, right, bottom in pixels of the picture.")
    reference: Box = Field(description="Left, top, right, bottom in pixels of the reference.")
    contribution: float = Field(description="Contribution of the pair to the score.")


class MethodValuesAnswer(MethodIdentity):
    """The values of metrics for a method's map."""

    control: bool = Field(
        description="Whether it is a control that does not depend on the class, which any useful method should beat."
    )
    values: dict[str, float | None] = Field(description="Values by the names of `metrics`; null if undefined.")
    reasons: dict[str, str] = Field(description="For metrics that cannot measure the method: the reason.")


class EvaluateAnswer(WorkAnswer):
    """Answer of POST /evaluate."""

    target: AnyTarget
    metrics: list[Column] = Field(description="The metrics, and which values are better.")
    left_out: list[str] = Field(
        description="Metrics whose values should not count in means over pictures: shares of a probability under 30 %."
    )
    methods: list[MethodValuesAnswer]


class SimilarAnswer(WorkAnswer):
    """Answer of POST /similar with format=json."""

    score: float = Field(description="Cosine of the embeddings of both pictures, in [-1, 1].")
    embedding: str | None = Field(description="The layer whose input is the embedding; null for the model's outputs.")
    layer: str = Field(description="The layer whose cells form the patches.")
    exact: bool = Field(
        description="Whether all pairs, and each of the maps, sum to the score; otherwise they are estimated."
    )
    image: PatchMapAnswer
    reference: PatchMapAnswer
    pairs: list[PairAnswer] = Field(
        description="The pairs of patches with the largest contributions, the largest first."
    )
    diagnostics: list[Diagnostic]
    drawing: str = Field(description="Both pictures with maps and pairs, as a data URL (PNG).")


class SegmentsAnswer(WorkAnswer):
    """Answer of POST /segment with format=json."""

    classes: list[SegmentAnswer] = Field(description="The predicted classes, the largest first.")
    shape: tuple[int, int] = Field(description="Height and width of the upload, and of the mask.")
    box: Box = Field(description="Left, top, right, bottom of the part that the model saw, in the upload's pixels.")
    void: int = Field(description="The value of the mask where the model saw nothing: 255, or 65535.")
    mask: str = Field(
        description="The class index of each pixel of the upload, as a data URL: a grey PNG of 8 bits, or of 16 for "
        "more than 255 classes."
    )


class ProgressAnswer(BaseModel):
    """The progress of an explanation in an event stream."""

    done: int = Field(description="Work done, out of `total`.")
    total: int = Field(description="1000 once the model is running; 0 while the request is queued.")
    elapsed_ms: float = Field(description="Milliseconds since the stream began.")
    preview: str | None = Field(
        None,
        description="Preview of the first class's map, drawn like the final one, at most 512 pixels, as a data URL.",
    )


class TraceAnswer(WorkAnswer):
    """Answer of POST /hooks/trace with format=json."""

    target: AnyTarget
    summary: Summary
    events: list[Event]


class CapturedAnswer(BaseModel):
    """One captured tensor."""

    key: str = Field(description="LAYER/KIND/CALL, as in npz and safetensors.")
    layer: str
    kind: Kind
    call: int | None = Field(description="0 for the layer's first call; null for a parameter.")
    name: str | None = Field(description="Name of the parameter; or the index, if a call has several tensors.")
    statistics: Statistics | None = Field(description="Null if no gradient flows.")


class CaptureAnswer(WorkAnswer):
    """Answer of POST /hooks/capture with format=json."""

    target: AnyTarget
    tensors: list[CapturedAnswer]


class SideAnswer(BaseModel):
    """The model's answer without or with the edits."""

    target: AnyTarget
    predictions: list[AnyPrediction]
    heatmap: HeatmapAnswer
    diagnostics: list[Diagnostic]


class DifferenceAnswer(BaseModel):
    """The values with the edits minus those without."""

    score: float = Field(description="Change of the target's logit or value.")
    probability: float | None = Field(description="Change of its probability; null for a value.")
    heatmap: HeatmapAnswer


class InterveneAnswer(WorkAnswer):
    """Answer of POST /hooks/intervene with format=json. All three heatmaps are divided by the same number."""

    method: MethodIdentity
    layers: list[str]
    target: AnyTarget = Field(description="The target before the edits.")
    edits: list[AnyEdit]
    before: SideAnswer
    after: SideAnswer
    difference: DifferenceAnswer
    applied: list[EditEffect] = Field(description="The effect of each edit at each call of its layer.")
    panel: str = Field(description="The heatmaps before, after and their difference as a data URL (PNG).")


class SweepAnswer(WorkAnswer):
    """Answer of POST /hooks/intervene with each_channel and format=json."""

    layer: str
    edit: AnyEdit
    target: AnyTarget = Field(description="The target without any edit.")
    predictions: list[AnyPrediction]
    channels: list[ChannelEffect] = Field(description="The channel whose edit lowers the score most comes first.")


class HealthAnswer(BaseModel):
    """Answer of GET /healthz, GET /readyz and TorchServe's GET /ping."""

    status: str

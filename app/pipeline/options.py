"""Schemas of requests: they validate options from every source, and describe them.

This imports no PyTorch, because commands validate their options before they load it; `edit_options` has the schema that
needs it.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

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

from seewhy.app.pipeline.choices import (
    CAPTURE_FORMATS,
    EXPLAIN_FORMATS,
    FORMATS,
    TRACE_FORMATS,
    CaptureFormat,
    ExplainFormat,
    Format,
    TraceFormat,
)
from seewhy.app.pipeline.option_table import (
    CAPTURE,
    DRAWING,
    EVALUATE,
    EXPLAIN,
    HEATMAP,
    METHOD,
    METRICS,
    PREDICT,
    PROOF,
    SEGMENT,
    SIMILAR,
    SOURCE,
    TRACE,
    Option,
)
from seewhy.explainers.core.choices import AREAS, Extent, Fill
from seewhy.explainers.hooks.kinds import Kind
from seewhy.explainers.imaging.choices import Rank, Scale, SegmentView, View
from seewhy.explainers.tasks.choices import Part
from seewhy.models.sources import Source

if TYPE_CHECKING:
    from seewhy.explainers.imaging.render import Style

MEDIA_TYPES: dict[str, str] = {
    "png": "image/png",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "json": "application/json",
    "npz": "application/x-npz",
    "safetensors": "application/x-safetensors",
    "svg": "image/svg+xml",
    "report": "text/html",
}


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [] if value is None else [value]


def _names(value: Any) -> Any:
    """Parse names that are repeated or separated by commas."""
    texts = _listed(value)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return texts
    names = [part.strip().lower() for text in texts for part in text.split(",")]
    if len(names) > 1 and "" in names:
        raise ValueError("has an empty name beside a comma; remove the comma")
    return [name for name in names if name]


def _single(value: Any) -> Any:
    if isinstance(value, list):  # pydantic expects a ValueError, not a TypeError
        raise ValueError("give it once")  # noqa: TRY004
    return value


def _ends(value: Any) -> Any:
    """Parse ``image``, ``robust``, ``lo,hi`` or a pair."""
    if value in (None, "image"):
        return None
    if value == "robust" or isinstance(value, list | tuple):
        return value
    parts = value.split(",") if isinstance(value, str) else []
    if len(parts) != 2:
        raise ValueError("it must be 'image', 'robust' or two numbers lo,hi")
    return tuple(parts)


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
"""A name of a model, a layer or a class, short enough to search for near matches."""


_Scalar = StrictName | StrictInt | StrictFloat | StrictBool | None


def option_field(option: Option, **settings: Any) -> Any:
    """Return a field with the help and the default of an option; `settings` are those of pydantic's `Field`."""
    return Field(**{"default": option.default, "description": option.text, **settings})


def format_field(forms: tuple[str, ...]) -> Any:
    """Return the field of an answer's format."""
    return Field(None, description=f"The default is the format in Accept, or {forms[0]}.")


class Options(BaseModel):
    """Options of all routes that take a picture. Unlisted ones belong to the method."""

    model: Name | None = Field(None, description="A name from GET /models; by default the service's default model.")

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoOptions(BaseModel):
    """Options of routes without options."""

    model_config = ConfigDict(extra="forbid")


class ModelsOptions(NoOptions):
    """Options of GET /models."""

    source: Source | None = option_field(SOURCE)


class MethodsOptions(NoOptions):
    """Options of GET /methods."""

    model: Name | None = Field(None, description="A model, to get its default and recommended methods.")


class PredictOptions(Options):
    """Options of POST /predict."""

    top: int = option_field(PREDICT["top"], ge=1, le=1000)


Ends = Annotated[Scale, BeforeValidator(_ends), _SCALE_SCHEMA]


class DrawingOptions(Options):
    """Options of routes that draw maps over the picture."""

    view: View = option_field(DRAWING["view"])
    colormap: Name | None = option_field(DRAWING["colormap"])
    alpha: float = option_field(DRAWING["alpha"], ge=0, le=1)
    scale: Ends = option_field(DRAWING["scale"], validate_default=True)

    def style(self, max_side: int) -> "Style":
        """Return how to draw the answer.

        Raises:
            OptionError: a value is invalid.
        """
        # NumPy and the colour maps: commands import this module for their help.
        from seewhy.explainers.imaging.render import Style

        return Style(**{name: getattr(self, name) for name in DRAWING}, max_side=max_side)


Layers = Annotated[list[StrictName], BeforeValidator(_listed)]
Target = Annotated[StrictInt | StrictName | None, BeforeValidator(_single)]


class MethodOptions(Options):
    """Options of routes that run methods; GET /methods lists those of the methods themselves."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, _Scalar | list[_Scalar]] = Field(init=False)

    layer: Layers = option_field(HEATMAP["layer"])

    @property
    def method_options(self) -> dict[str, Any]:
        """The options of the methods."""
        return dict(self.model_extra or {})


class HeatmapOptions(DrawingOptions, MethodOptions):
    """Options of routes that explain."""

    method: Name | None = Field(None, description=f"A name from GET /methods. {METHOD}")
    values: bool = option_field(HEATMAP["values"])


class ProofOptions(Options):
    """Options of routes that prove maps."""

    proof: Extent = option_field(PROOF["proof"])
    proof_area: float = option_field(PROOF["proof_area"], ge=AREAS[0], le=AREAS[1])
    proof_fill: Fill = option_field(PROOF["proof_fill"])


class ExplainOptions(ProofOptions, HeatmapOptions):
    """Options of POST /explain."""

    method: Annotated[list[StrictName], BeforeValidator(_names)] = Field(  # type: ignore[assignment]
        default=[],
        min_length=1,
        description="A name from GET /methods, or several, repeated or separated by commas; methods that need the "
        f"same forward and backward pass share it. {METHOD}",
    )
    against: Target = option_field(EXPLAIN["against"])
    target: Annotated[list[StrictInt | StrictName], BeforeValidator(_listed)] = option_field(EXPLAIN["target"])
    values: bool | Literal["map"] = Field(  # type: ignore[assignment]
        False,
        description="Include the heatmap's values in JSON; `map` for those of the method's own, coarser grid.",
    )
    region: Part | None = option_field(EXPLAIN["region"])
    top: int | None = option_field(EXPLAIN["top"], ge=1)
    attribute: Name | None = option_field(EXPLAIN["attribute"])
    label: Target = option_field(EXPLAIN["label"])
    format: ExplainFormat | None = format_field(EXPLAIN_FORMATS)


class EvaluateOptions(MethodOptions):
    """Options of POST /evaluate. Those of metrics have their names before them: `road.imputation=exact`."""

    method: Annotated[list[StrictName], BeforeValidator(_names)] = Field(
        default=[],
        min_length=1,
        description=f"A name from GET /methods, or several, repeated or separated by commas. {METHOD}",
    )
    metrics: Annotated[list[StrictName], BeforeValidator(_names)] = option_field(METRICS, min_length=1)
    target: Target = option_field(EVALUATE["target"])
    controls: bool = option_field(EVALUATE["controls"])

    @property
    def method_options(self) -> dict[str, Any]:
        """The options of the methods, without those of metrics."""
        return {name: value for name, value in super().method_options.items() if "." not in name}

    @property
    def metric_options(self) -> dict[str, Any]:
        """The options of metrics, such as ``road.imputation``."""
        return {name: value for name, value in super().method_options.items() if "." in name}


class SegmentOptions(Options):
    """Options of POST /segment."""

    view: SegmentView = option_field(SEGMENT["view"])
    alpha: float = option_field(SEGMENT["alpha"], ge=0, le=1)
    format: Format | None = format_field(FORMATS)


class SimilarOptions(ProofOptions, DrawingOptions):
    """Options of POST /similar."""

    scale: Ends = option_field(SIMILAR["scale"], validate_default=True)
    top: int = option_field(SIMILAR["top"], ge=1, le=100)
    format: Format | None = format_field(FORMATS)


class TraceOptions(Options):
    """Options of POST /hooks/trace."""

    target: Target = option_field(TRACE["target"])
    layer: Layers = option_field(TRACE["layer"])
    format: TraceFormat | None = format_field(TRACE_FORMATS)


class CaptureOptions(DrawingOptions):
    """Options of POST /hooks/capture."""

    layer: Layers = option_field(CAPTURE["layer"], default=..., min_length=1)
    kind: Annotated[list[Kind], BeforeValidator(_listed)] = option_field(CAPTURE["kind"], min_length=1)
    target: Target = option_field(CAPTURE["target"])
    top: int = option_field(CAPTURE["top"], ge=1, le=100)
    rank: Rank = option_field(CAPTURE["rank"])
    format: CaptureFormat | None = format_field(CAPTURE_FORMATS)

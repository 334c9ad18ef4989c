"""What a request may ask for: these schemas validate options, whichever way they come, and describe them."""

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

from seewhy.app.pipeline.choices import CaptureFormat, Format, InterveneFormat, Rank, TraceFormat
from seewhy.app.pipeline.option_texts import CAPTURE, DRAWING, EXPLAIN, HEATMAP, INTERVENE, PREDICT, SOURCE, TRACE
from seewhy.app.pipeline.strict_json import RepeatedMemberError, loads
from seewhy.explainers.hooks.kinds import Kind
from seewhy.explainers.imaging.choices import Scale, View
from seewhy.explainers.inspection.edits import MAX_EDITS, AnyEdits
from seewhy.models.sources import Source

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
    texts = _listed(value)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return texts
    names = [part.strip().lower() for text in texts for part in text.split(",")]
    return list(dict.fromkeys(name for name in names if name))


def _single(value: Any) -> Any:
    if isinstance(value, list):  # as pydantic wants it: no TypeError
        raise ValueError("give it once")  # noqa: TRY004
    return value


def _json(value: Any) -> Any:
    try:
        edits = loads(value) if isinstance(value, str) else value
    except RepeatedMemberError:
        raise
    except json.JSONDecodeError as error:
        raise ValueError(f"it must be a JSON list of edits, and is not JSON: {error}") from None
    except (ValueError, RecursionError):
        raise ValueError("it must be a JSON list of edits") from None
    # One too many is refused; validating the rest would only take time.
    return edits[: MAX_EDITS + 1] if isinstance(edits, list) else edits


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

    source: Source | None = Field(None, description=SOURCE)


class PredictOptions(Options):
    """Options of POST /predict."""

    top: int = Field(5, ge=1, le=1000, description=PREDICT["top"])


class DrawingOptions(Options):
    """Options of all routes that draw maps over the picture."""

    view: View = Field("overlay", description=DRAWING["view"])
    colormap: Name | None = Field(None, description=DRAWING["colormap"])
    alpha: float = Field(0.5, ge=0, le=1, description=DRAWING["alpha"])
    scale: Annotated[Scale, BeforeValidator(_ends), _SCALE_SCHEMA] = Field(None, description=DRAWING["scale"])


Layers = Annotated[list[StrictName], BeforeValidator(_listed)]
Target = Annotated[StrictInt | StrictName | None, BeforeValidator(_single)]


class HeatmapOptions(DrawingOptions):
    """Options of all routes that explain; further ones belong to the method and are listed by GET /methods."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, _Scalar | list[_Scalar]] = Field(init=False)

    method: Name = Field("gradcam", description="A name of GET /methods.")
    layer: Layers = Field(default=[], description=HEATMAP["layer"])
    values: bool = Field(False, description=HEATMAP["values"])

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
    against: Target = Field(None, description=EXPLAIN["against"])
    target: Annotated[list[StrictInt | StrictName], BeforeValidator(_listed)] = Field(
        default=[], description=EXPLAIN["target"]
    )
    values: bool | Literal["map"] = Field(  # type: ignore[assignment]
        False,
        description="Include the heatmap's numbers in a JSON answer; `map` for those of the method's own, coarser "
        "grid.",
    )
    top: int | None = Field(None, ge=1, description=EXPLAIN["top"])
    format: Format | None = Field(None, description="By default what Accept asks for, or else png.")


class TraceOptions(Options):
    """Options of POST /hooks/trace."""

    target: Target = Field(None, description=TRACE["target"])
    layer: Layers = Field(default=[], description=TRACE["layer"])
    format: TraceFormat | None = Field(None, description="By default what Accept asks for, or else json.")


class CaptureOptions(DrawingOptions):
    """Options of POST /hooks/capture."""

    layer: Layers = Field(min_length=1, description=CAPTURE["layer"])
    kind: Annotated[list[Kind], BeforeValidator(_listed)] = Field(
        default=["output"], min_length=1, description=CAPTURE["kind"]
    )
    target: Target = Field(None, description=CAPTURE["target"])
    top: int = Field(16, ge=1, le=100, description=CAPTURE["top"])
    rank: Rank = Field("activation", description=CAPTURE["rank"])
    format: CaptureFormat | None = Field(None, description="By default what Accept asks for, or else json.")


class InterveneOptions(HeatmapOptions):
    """Options of POST /hooks/intervene."""

    edits: Annotated[AnyEdits, BeforeValidator(_json)] = Field(
        description="What to edit, in this order; in a form or a query string as JSON text."
    )
    each_channel: bool = Field(False, description=INTERVENE["each_channel"])
    target: Target = Field(None, description=INTERVENE["target"])
    top: int = Field(16, ge=1, le=100, description=INTERVENE["top"])
    format: InterveneFormat | None = Field(None, description="By default what Accept asks for, or else json.")

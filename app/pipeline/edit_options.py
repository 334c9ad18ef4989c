"""Schema of the requests that edit activations and gradients; see `options`."""

import json
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from seewhy.app.pipeline.choices import INTERVENE_FORMATS, InterveneFormat
from seewhy.app.pipeline.option_table import INTERVENE
from seewhy.app.pipeline.options import HeatmapOptions, Target, format_field, option_field
from seewhy.app.pipeline.strict_json import RepeatedMemberError, loads
from seewhy.explainers.inspection.edits import MAX_EDITS, AnyEdits


def _json(value: Any) -> Any:
    try:
        edits = loads(value) if isinstance(value, str) else value
    except RepeatedMemberError:
        raise
    except json.JSONDecodeError as error:
        raise ValueError(f"it must be a JSON list of edits, but it is not JSON: {error}") from None
    except (ValueError, RecursionError):
        raise ValueError("it must be a JSON list of edits") from None
    # One too many is refused; validating the others would only take time.
    return edits[: MAX_EDITS + 1] if isinstance(edits, list) else edits


class InterveneOptions(HeatmapOptions):
    """Options of POST /hooks/intervene."""

    edits: Annotated[AnyEdits, BeforeValidator(_json)] = Field(
        description="Edits, applied in this order; as JSON text in a form or a query string."
    )
    each_channel: bool = option_field(INTERVENE["each_channel"])
    target: Target = option_field(INTERVENE["target"])
    top: int = option_field(INTERVENE["top"], ge=1, le=100)
    format: InterveneFormat | None = format_field(INTERVENE_FORMATS)

"""Formats that a request can choose from.

Imports neither PyTorch nor pydantic: the help and completion of commands use them.
"""

from typing import Literal, get_args

Drawing = Literal["png", "jpeg", "webp"]
Format = Literal["png", "jpeg", "webp", "json", "npz"]
ExplainFormat = Literal["png", "jpeg", "webp", "json", "npz", "report"]
TraceFormat = Literal["json", "svg", "png"]
CaptureFormat = Literal["json", "npz", "safetensors", "png", "jpeg", "webp"]
InterveneFormat = Literal["json", "png", "jpeg", "webp"]

DRAWINGS: tuple[Drawing, ...] = get_args(Drawing)
FORMATS: tuple[Format, ...] = get_args(Format)
EXPLAIN_FORMATS: tuple[ExplainFormat, ...] = get_args(ExplainFormat)
TRACE_FORMATS: tuple[TraceFormat, ...] = get_args(TraceFormat)
CAPTURE_FORMATS: tuple[CaptureFormat, ...] = get_args(CaptureFormat)
INTERVENE_FORMATS: tuple[InterveneFormat, ...] = get_args(InterveneFormat)

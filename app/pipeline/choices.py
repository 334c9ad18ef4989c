"""The choices that a request has among formats and ranks.

Without PyTorch and pydantic: the help and the completion of commands name them.
"""

from typing import Literal, get_args

Drawing = Literal["png", "jpeg", "webp"]
Format = Literal["png", "jpeg", "webp", "json", "npz"]
TraceFormat = Literal["json", "svg", "png"]
CaptureFormat = Literal["json", "npz", "safetensors", "png", "jpeg", "webp"]
InterveneFormat = Literal["json", "png", "jpeg", "webp"]
Rank = Literal["activation", "effect"]

DRAWINGS: tuple[Drawing, ...] = get_args(Drawing)
FORMATS: tuple[Format, ...] = get_args(Format)
TRACE_FORMATS: tuple[TraceFormat, ...] = get_args(TraceFormat)
CAPTURE_FORMATS: tuple[CaptureFormat, ...] = get_args(CaptureFormat)
INTERVENE_FORMATS: tuple[InterveneFormat, ...] = get_args(InterveneFormat)
RANKS: tuple[Rank, ...] = get_args(Rank)

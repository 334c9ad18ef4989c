"""Choices of batch runs. It imports neither PyTorch nor Parquet, because the command line uses it."""

from typing import Literal, get_args

MapType = Literal["float16", "float32"]
"""Dtype of maps in shards. Values in float16 differ by up to 0.00025 of the map's largest value."""

MAP_TYPES: tuple[MapType, ...] = get_args(MapType)

Engine = Literal["local", "ray"]

ENGINES: tuple[Engine, ...] = get_args(Engine)
"""What runs a batch."""

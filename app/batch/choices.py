"""Choices of batch runs; without PyTorch and Parquet, because the command line uses them."""

from typing import Literal, get_args

MapType = Literal["float16", "float32"]
"""Dtype of maps in shards. Values in float16 differ by up to 0.00025 of the map's largest value."""

MAP_TYPES: tuple[MapType, ...] = get_args(MapType)

Engine = Literal["local", "ray"]

ENGINES: tuple[Engine, ...] = get_args(Engine)
"""The engines that run a batch."""

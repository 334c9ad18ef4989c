"""Measurements of networks: included ones, which `python -m tools.trust.calibrate` writes, and a model's own."""

import json
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from pydantic import TypeAdapter

from seewhy.explainers.core.calibration import Calibration
from seewhy.explainers.core.model import Model
from seewhy.explainers.trust.sanity import Sanity


def calibration_of(model: Model, area: float, fill: str) -> Calibration | None:
    """Return the model's own calibration, or the included one, for an area and a fill; None if there is none."""
    rows = model.calibrations + _calibrations(model.sha256, model.preprocess.size)
    return next((row.trials[area, fill] for row in rows if (area, fill) in row.trials), None)


def sanity_of(digest: str | None, size: Sequence[int], method: str) -> Sanity | None:
    """Return the included sanity of a method with default options on a network; None if there is none."""
    row = _entry(digest, tuple(size)).get("sanity", {}).get(method)
    return None if row is None else Sanity(**row)


def ships_sanity(digest: str | None, size: Sequence[int]) -> bool:
    """Whether the sanity of methods on a network is included."""
    return bool(_entry(digest, tuple(size)).get("sanity"))


_ROWS = TypeAdapter(tuple[Calibration, ...])


@lru_cache(maxsize=16)
def _calibrations(digest: str | None, size: tuple[int, ...]) -> tuple[Calibration, ...]:
    rows = _entry(digest, size).get("calibrations", ())
    return _ROWS.validate_python(rows)


def _entry(digest: str | None, size: tuple[int, ...]) -> dict[str, Any]:
    entry: dict[str, Any] = _table().get(digest or "", {})
    return entry if tuple(entry.get("size", ())) == size else {}


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(files(__package__).joinpath("embedded.json").read_text(encoding="utf-8"))
    return table

"""Hooks of Schemathesis for this service: readable pictures and existing names are frequent enough to reach the code
behind the checks. The runs of `tools/hostile/contract.py` load them.
"""

import base64
import json
import zlib
from typing import Any

import schemathesis
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode
from schemathesis.generation.meta import ComponentInfo

from tools.hostile.pictures import encoded, photograph

PICTURES = [
    encoded(photograph(width, height, mode), kind)
    for kind in ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF")
    for width, height in ((1, 1), (7, 5), (40, 24))
    for mode in ("RGB", "L")
]
_real = st.sampled_from(PICTURES)

for _name in ("jpeg", "png", "webp", "avif", "gif", "bmp", "tiff"):
    # Usually a picture, whatever its type is; sometimes the start of one, or any bytes.
    _cut = st.tuples(_real, st.integers(1, 200)).map(lambda pair: pair[0][: pair[1]])
    schemathesis.openapi.media_type(
        f"image/{_name}", st.one_of(_real, _real, _real, _real, _cut, st.binary(min_size=1))
    )

EDITS: list[dict[str, Any]] = [
    {"op": "zero", "layer": "blocks.6", "channels": [0, 1]},
    {"op": "noise", "layer": "bn2", "value": 0.5},
    {"op": "mean", "layer": "blocks.6", "over": "channel", "region": [0, 0, 3, 3]},
    {"op": "scale", "layer": "bn2", "at": "grad_output", "value": -1},
]

NAMES: dict[str, list[Any]] = {
    "against": [None, None, "tiger cat", 3],
    "alpha": [None, 0.25],
    "colormap": [None, "viridis"],
    "each_channel": [None],
    "format": [None, "json"],
    "kind": [None, "output", "grad_output"],
    "layer": ["bn2", "blocks.6", ["bn2", "blocks.6"]],
    "method": [None, "layercam", "gradcam,hirescam"],
    "model": [None, "efficientnet_lite0"],
    "scale": [None, "robust", "0,1"],
    "target": [None, "tabby", 281],
    "top": [None],
    "values": [None, "true"],
    "view": [None, "side-by-side"],
}
"""Values that the service can answer; None leaves the option out, like options that are not named here."""


CARRIED = ("image", "reference", "data", "instances", "inputs")
"""Members and fields that carry the pictures of a request."""


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Give most valid requests a readable picture, and most of these existing names."""
    meta = case.meta
    if meta is None or not meta.generation.mode.is_positive or meta.phase.name.name == "COVERAGE":
        return
    place = zlib.crc32(repr((case.query, case.body)).encode("utf-8", "replace"))
    if case.method not in ("POST", "PUT"):
        return
    if isinstance(case.body, dict) and place % 8:
        case.body = _with_pictures(case, place)
    elif case.media_type == "application/octet-stream" and place % 8 and "/v2/" not in case.operation.path:
        case.body = PICTURES[place % len(PICTURES)]
    if place % 4:
        _name_what_exists(case, place)
    if place % 4 and "version" in (case.path_parameters or {}):
        case.path_parameters["version"] = "1"
    # Schemathesis cannot check bytes against a schema, and treats unchecked values as invalid.
    case.meta.generation.mode = GenerationMode.POSITIVE
    for location in case.meta.components:
        case.meta.components[location] = ComponentInfo(mode=GenerationMode.POSITIVE)


def _with_pictures(case: Any, place: int) -> dict[str, Any]:
    picture = PICTURES[place % len(PICTURES)]
    text = base64.b64encode(picture).decode()
    if "instances" in case.body:
        return {**case.body, "instances": [text, {"b64": text}][: 1 + place % 2]}
    if "inputs" in case.body:
        tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [text]}
        return {**case.body, "inputs": [tensor]}
    content = text if case.media_type == "application/json" else picture
    return {
        name: content if name in ("image", "other", "reference", "data") else value for name, value in case.body.items()
    }


def _name_what_exists(case: Any, place: int) -> None:
    """Reduce a request to its pictures and the options that can be answered."""
    path = case.operation.path
    body = {name: value for name, value in case.body.items() if name in CARRIED} if isinstance(case.body, dict) else {}
    query = {name: _chosen(name, place) for name in case.query or {} if name in NAMES}
    if path == "/hooks/capture":
        query["layer"] = _chosen("layer", place)
    case.query = {name: value for name, value in query.items() if value is not None}
    if path == "/hooks/intervene":
        case.query["edits"] = json.dumps([EDITS[place % len(EDITS)]])
    if "explain" in path and path.startswith("/v"):
        named = {name: _chosen(name, place) for name in ("layer", "method", "target")}
        body["parameters"] = {name: value for name, value in named.items() if value is not None}
    if body:
        case.body = body


def _chosen(name: str, place: int) -> Any:
    return NAMES[name][place // 4 % len(NAMES[name])]

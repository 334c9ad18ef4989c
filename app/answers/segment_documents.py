"""Bodies of answers about the class of each pixel."""

from seewhy.app.answers.documents import drawn_bytes, encode, encoded, head_of
from seewhy.app.answers.schemas import SegmentsAnswer
from seewhy.app.answers.stream import Body, file_parts
from seewhy.app.memory.account import current as account
from seewhy.app.memory.budget import ANSWER
from seewhy.app.pipeline.choices import DRAWINGS, Drawing, Format
from seewhy.app.pipeline.results import SegmentResult
from seewhy.app.settings import Settings
from seewhy.explainers.results.array_files import ArrayFile

_COPIES = (3, 7)
"""Maximum number of copies of a mask's bytes in an answer: themselves, rows and file of a PNG; in JSON, texts."""


def segment_body(result: SegmentResult, form: Format, settings: Settings) -> Body:
    """Return the body of segments in a format."""
    segments = result.segments
    place = segments.geometry
    if form in DRAWINGS and result.options.view != "mask":
        return _drawing(result, form, settings.max_side)
    account().take(_COPIES[form == "json"] * place.width * place.height * segments.map.itemsize, ANSWER)
    if form == "npz":
        with result.timings.stage("encode"):
            return file_parts(ArrayFile("npz", segments.arrays()))
    with result.timings.stage("encode"):
        if form != "json":
            return encode(segments.overlay("mask"), form)
        document = segments.document()
    return SegmentsAnswer(**head_of(result), **document).model_dump_json().encode()


def _drawing(result: SegmentResult, form: Drawing, max_side: int) -> bytes:
    view, alpha = result.options.view, result.options.alpha
    size = drawn_bytes(*result.segments.drawn_size(view))
    return encoded(lambda: result.segments.overlay(view, alpha, max_side), form, result.timings, size)

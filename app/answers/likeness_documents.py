"""Bodies of answers about two pictures."""

from seewhy.app.answers.documents import drawn_bytes, encoded, head_of, take_values
from seewhy.app.answers.schemas import SimilarAnswer
from seewhy.app.answers.stream import Body, file_parts
from seewhy.app.pipeline.choices import Drawing, Format
from seewhy.app.pipeline.results import SimilarResult
from seewhy.app.settings import Settings
from seewhy.explainers.imaging.png import data_url
from seewhy.explainers.results.array_files import ArrayFile

_REMEDY = "ask for a drawing"


def similar_body(result: SimilarResult, form: Format, settings: Settings) -> Body:
    """Return the body of a likeness in a format."""
    likeness = result.likeness
    if form == "npz":
        take_values([place.width * place.height for place in likeness.geometries], settings.max_values, _REMEDY)
        with result.timings.stage("encode"):
            return file_parts(ArrayFile("npz", likeness.arrays()))
    if form != "json":
        return _drawing(result, form)
    take_values([values.size for values in likeness.maps], settings.max_json_values, _REMEDY)
    drawing = data_url(_drawing(result, "png"))
    answer = SimilarAnswer(**head_of(result), drawing=drawing, **likeness.document())
    return answer.model_dump_json(exclude_unset=True).encode()


def _drawing(result: SimilarResult, form: Drawing) -> bytes:
    size = drawn_bytes(*result.likeness.drawn_size(result.style))
    return encoded(lambda: result.likeness.draw(result.style), form, result.timings, size)

"""Bodies of answers about two pictures."""

from collections.abc import Sequence

from seewhy.app.answers.documents import data_url, drawn_bytes, encode, model_identity
from seewhy.app.answers.schemas import SimilarAnswer
from seewhy.app.answers.stream import Body, file_parts
from seewhy.app.errors import AnswerTooLargeError
from seewhy.app.memory.account import current as account
from seewhy.app.memory.budget import ANSWER
from seewhy.app.pipeline.ask import VERSIONS
from seewhy.app.pipeline.choices import Drawing, Format
from seewhy.app.pipeline.results import SimilarResult
from seewhy.app.settings import Settings
from seewhy.explainers.results.array_files import ArrayFile


def similar_body(result: SimilarResult, form: Format, settings: Settings) -> Body:
    """Return the body of a likeness in a format.

    Raises:
        AnswerTooLargeError: there are more values than allowed, or than ever fit into memory.
        OutOfMemoryError: there is no memory for them or for the drawing at present.
    """
    likeness = result.likeness
    if form == "npz":
        _take_values([place.width * place.height for place in likeness.geometries], settings.max_values)
        with result.timings.stage("encode"):
            return file_parts(ArrayFile("npz", likeness.arrays()))
    if form != "json":
        return _drawing(result, form)
    _take_values([values.size for values in likeness.maps], settings.max_json_values)
    drawing = data_url(_drawing(result, "png"))
    answer = SimilarAnswer(
        model=model_identity(result.model),
        drawing=drawing,
        timings_ms=result.timings.milliseconds,
        versions=VERSIONS,
        **likeness.document(),
    )
    return answer.model_dump_json().encode()


def _drawing(result: SimilarResult, form: Drawing) -> bytes:
    """Draw a likeness and encode the drawing, counting time and memory of both."""
    with account().holding(drawn_bytes(*result.likeness.drawn_size(result.style)), ANSWER):
        with result.timings.stage("render"):
            picture = result.likeness.draw(result.style)
        with result.timings.stage("encode"):
            return encode(picture, form)


def _take_values(counts: Sequence[int], limit: int) -> None:
    """Take memory for the values of two maps, as they are and as they are scaled.

    Raises:
        AnswerTooLargeError: there are more values than `limit`, or than ever fit into memory.
        OutOfMemoryError: there is no memory for them at present.
    """
    if sum(counts) > limit:
        raise AnswerTooLargeError(
            f"The maps have {sum(counts):,} values, more than the {limit:,} allowed in one answer; send smaller "
            "pictures, or ask for a drawing."
        )
    account().take(4 * 3 * sum(counts), ANSWER)

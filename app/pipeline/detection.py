"""The path of requests for the boxes of detectors."""

from collections.abc import Sequence

from seewhy.app.pipeline.ask import Service
from seewhy.app.pipeline.decode import Source
from seewhy.app.pipeline.options import Options
from seewhy.app.pipeline.results import DetectResult
from seewhy.explainers.detect import detected, must_detect
from seewhy.explainers.errors import UnsuitableModelError


def detect(service: Service, sources: Sequence[Source], options: Options) -> list[DetectResult]:
    """Return the boxes that a detector shows in each picture.

    Args:
        service: models, pictures and the engine.
        sources: the pictures, which share passes of the model.
        options: the validated options.

    Raises:
        UnsuitableModelError: the model is no detector; `field` is ``model``.
        Exception: errors as `Service.explain`.
    """
    model = service.models.model(options.model, service.deadline())
    try:
        must_detect(model)
    except UnsuitableModelError as error:
        error.field = "model"
        raise
    return [
        DetectResult(model, detected(model, outcome.result.outputs[0], place.picture.geometry), place.timings)
        for place, outcome in service.outcomes(sources, options.model)
    ]

"""The path of requests about two pictures: how alike they are to a model."""

from seewhy.app.pipeline.ask import Service
from seewhy.app.pipeline.computation import SoloComputation
from seewhy.app.pipeline.options import SimilarOptions
from seewhy.app.pipeline.plan import Plan, drawing_style
from seewhy.app.pipeline.record import current
from seewhy.app.pipeline.results import SimilarResult
from seewhy.explainers.core.ask import DEFAULT_ASK
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.errors import LayerError, at_fault
from seewhy.explainers.likeness.decomposition import decompose
from seewhy.explainers.likeness.embedding import anatomy_of
from seewhy.explainers.likeness.similar import likeness

PASSES = Passes(2, 2)
"""Both pictures forward, and back from what they share."""


def similar(
    service: Service, upload: bytes, reference: bytes, options: SimilarOptions, drawn: bool = True
) -> SimilarResult:
    """Compare two pictures.

    Args:
        service: models, pictures and the engine.
        upload, reference: the bytes of the pictures.
        options: the validated options.
        drawn: whether the answer will be drawn.

    Raises:
        LayerError: the model has no layer with cells of the picture; `field` is ``model``.
        PictureError: a picture cannot be read, or is too large; `field` is ``reference`` if it is the second one.
        Exception: errors as `Service.explain`.
    """
    style = drawing_style(options, service.settings)
    deadline = service.deadline()
    model = service.models.model(options.model, deadline)
    timings = current().timed()
    with at_fault("model", LayerError):  # the request names no layer
        anatomy_of(model)  # which refuses a model without cells, before any picture is decoded
        first = service.decode(upload, model, timings, deadline, drawn)
        with at_fault("reference"):
            second = service.decode(reference, model, timings, deadline, drawn)
        computation = SoloComputation(
            lambda model, images, _, progress: decompose(model, images, second.image[None], options.top, progress),
            PASSES,
        )
        service.spend(model, computation, 1, deadline)
        plan = Plan(model, computation, (DEFAULT_ASK,), deadline, "compare")
        parts = service.run(plan, first, timings)
    return SimilarResult(model, timings, likeness(model, parts, (first, second)), style)

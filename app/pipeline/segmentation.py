"""The path of requests for the class of each pixel of a picture."""

from seewhy.app.pipeline.ask import Service
from seewhy.app.pipeline.computation import PredictComputation
from seewhy.app.pipeline.options import SegmentOptions
from seewhy.app.pipeline.plan import Plan
from seewhy.app.pipeline.record import current
from seewhy.app.pipeline.results import SegmentResult
from seewhy.app.pipeline.ticket import Submission
from seewhy.explainers.core.ask import DEFAULT_ASK
from seewhy.explainers.segment import segmentation_of, segments_of


def segment(service: Service, upload: bytes, options: SegmentOptions, drawn: bool = True) -> SegmentResult:
    """Segment a picture.

    Args:
        service: models, pictures and the engine.
        upload: the bytes of the picture.
        options: the validated options.
        drawn: whether the answer will be drawn.

    Raises:
        OptionError: the model does not segment.
        Exception: errors as `Service.explain`.
    """
    deadline = service.deadline()
    model = service.models.model(options.model, deadline)
    segmentation_of(model)  # which refuses other models, before any picture is decoded
    computation = PredictComputation()
    service.spend(model, computation, 1, deadline)
    timings = current().timed()
    view = service.decode(upload, model, timings, deadline, drawn)
    plan = Plan(model, computation, (DEFAULT_ASK,), deadline, "segment")
    ((outcome,),) = service.submit([Submission(plan, view, timings)]).result()
    return SegmentResult(model, segments_of(model, outcome.result.outputs[0], view), options, timings)

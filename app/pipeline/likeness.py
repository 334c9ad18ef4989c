"""The path of requests about the similarity of two pictures."""

from collections.abc import Sequence

from torch import Tensor

from seewhy.app.pipeline.ask import Service
from seewhy.app.pipeline.computation import SoloComputation
from seewhy.app.pipeline.null_scores import LIKENESS
from seewhy.app.pipeline.options import SimilarOptions
from seewhy.app.pipeline.plan import Plan
from seewhy.app.pipeline.record import current
from seewhy.app.pipeline.results import SimilarResult
from seewhy.explainers.core.ask import DEFAULT_ASK, Ask
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.core.faithfulness import Faithfulness
from seewhy.explainers.errors import LayerError, at_fault
from seewhy.explainers.execution.progress import Progress
from seewhy.explainers.likeness.decomposition import Decomposition, decompose
from seewhy.explainers.likeness.embedding import anatomy_of
from seewhy.explainers.likeness.proof import prove
from seewhy.explainers.likeness.similar import likeness
from seewhy.explainers.trust.faithfulness import STRANGER
from seewhy.explainers.trust.trial import trial_of
from seewhy.models import LoadedModel

PASSES = Passes(2, 2)
"""Forward passes of both pictures, and a backward pass from their product."""


def similar(
    service: Service,
    upload: bytes,
    reference: bytes,
    options: SimilarOptions,
    drawn: bool = True,
    collects: bool = True,
) -> SimilarResult:
    """Compare two pictures.

    Args:
        service: has the model.
        upload, reference: files of the pictures.
        options: options of the request.
        drawn: whether the answer is a drawing, or has one.
        collects: whether proofs are graded by the scores of earlier requests, and collect some for later ones.

    Raises:
        LayerError: the model has no embedding, or no layer with cells of the picture; `field` is ``model``.
        PictureError: a picture cannot be read, or is too large; `field` is ``reference`` if it is the second one.
        Exception: errors as in `Service.explain`.
    """
    style = options.style(service.settings.max_side)
    deadline = service.deadline()
    model = service.models.model(options.model, deadline)
    timings = current().timed()
    with at_fault("model", LayerError):  # the request names no layer
        anatomy_of(model)  # which refuses a model without cells, before any picture is decoded
        first = service.decode(upload, model, timings, deadline, drawn)
        with at_fault("reference"):
            second = service.decode(reference, model, timings, deadline, drawn)
        trial, null = trial_of(options.proof, options.proof_area, options.proof_fill), service.null
        strangers = null.strangers(model, trial, LIKENESS) if trial and collects else None

        def do(
            model: LoadedModel, images: Tensor, _: Ask, progress: Progress
        ) -> tuple[Decomposition, Sequence[Faithfulness]]:
            pictures = images, second.images(model.device)
            parts = decompose(model, *pictures, options.top, progress)
            if trial is None:
                return parts, ()
            faithfulness = prove(model, pictures, parts, trial, progress.unseen, strangers)
            for part in faithfulness if collects else ():
                null.add(model, part.rows(), LIKENESS)
            return parts, faithfulness

        passes = PASSES
        if trial is not None:
            passes += (trial.passes + STRANGER * (strangers is not None)) * 2
        computation = SoloComputation(do, passes)
        service.spend(model, computation, 1, deadline)
        plan = Plan(model, computation, (DEFAULT_ASK,), deadline, "compare")
        parts, faithfulness = service.run(plan, first, timings)
    calibration = null.calibration(model, faithfulness[0], LIKENESS) if faithfulness and collects else None
    return SimilarResult(model, timings, likeness(model, parts, (first, second), faithfulness, calibration), style)

"""Several methods at once: CAMs that need the same forward and backward pass share it."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from seewhy.explainers.core.explainer import Attribution, Explainer, Question, asked, checked_maps, part_of
from seewhy.explainers.execution.chunks import Report, Show, unreported, unshown
from seewhy.explainers.methods.cam.base import CAM, LayerTensors, collect


def explain_together(
    explainers: Sequence[Explainer],
    model: Any,
    images: Tensor,
    targets: Tensor | None = None,
    against: Tensor | None = None,
    report: Report = unreported,
    show: Show = unshown,
) -> list[Attribution]:
    """Explain the same images by several methods.

    CAMs of the same layers and score that are not augmented share one forward and one backward pass. All methods
    explain the same classes: without targets, those that the first method finds.

    Args:
        explainers: the methods.
        model, images, targets, against, report: as for `Explainer.explain`.
        show: as for `Explainer.explain`; used only where there is one method.

    Returns:
        One attribution per method.

    Raises:
        ExplainerError, ValueError: as `Explainer.explain`.
    """
    attributions: list[Attribution] = []
    shared: dict[Any, LayerTensors] = {}
    with asked(model, images, targets, against) as question:
        for number, explainer in enumerate(explainers):
            if len(explainers) > 1:
                report(number, len(explainers))
            part = Question(
                question.model,
                question.module,
                question.images,
                attributions[0].targets if attributions else question.targets,
                against,
                part_of(report, number, len(explainers)),
                show if len(explainers) == 1 else unshown,
            )
            # A CAM that is more than `combine` of what `collect` returns has an `attribute` of its own.
            if isinstance(explainer, CAM) and explainer.smooth != "tta" and type(explainer).attribute is CAM.attribute:
                key = (explainer.layers_of(part), explainer.uses_gradients, explainer.score_key)
                if key not in shared:
                    shared[key] = collect(part, key[0], explainer.scores if explainer.uses_gradients else None)
                attribution = explainer.combine(shared[key])
            else:
                attribution = explainer.attribution(part)
            attributions.append(checked_maps(attribution))
    return attributions

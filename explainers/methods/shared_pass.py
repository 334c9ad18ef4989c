"""Several methods at once: CAMs that need the same forward and backward pass share it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from seewhy.explainers.core.attribution import Attribution, checked_maps
from seewhy.explainers.core.explainer import Explainer
from seewhy.explainers.core.model import AnyModel
from seewhy.explainers.core.question import pose
from seewhy.explainers.core.task import DEFAULT_ASK, Ask
from seewhy.explainers.execution.progress import SILENT, Progress
from seewhy.explainers.methods.cam.base import CAM, LayerTensors, collect


def explain_together(
    explainers: Sequence[Explainer],
    model: AnyModel,
    images: Tensor,
    ask: Ask = DEFAULT_ASK,
    progress: Progress = SILENT,
) -> list[Attribution]:
    """Explain the same images by several methods.

    CAMs of the same layers and score that are not augmented share one forward and one backward pass. All methods
    explain the same targets: where none are named, those that the first method finds.

    Args:
        explainers: the methods.
        model, images: as for `Explainer.explain`.
        ask: what is to be explained.
        progress: as `Explainer.explain`; maps so far are shown where there is one method.

    Returns:
        One attribution per method.

    Raises:
        ExplainerError, ValueError: as `Explainer.explain`.
    """
    attributions: list[Attribution] = []
    shared: dict[Any, LayerTensors] = {}
    rounds = len(explainers)
    with pose(model, images, ask) as question:
        for number, explainer in enumerate(explainers):
            part = replace(question, progress=progress)
            if rounds > 1:
                progress.at(number, rounds)
                part = replace(question, progress=progress.part(number, rounds).unseen)
            if attributions:
                part = replace(part, ask=replace(ask, targets=attributions[0].targets))
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

"""Shared passes: several methods at once, where CAMs of the same passes run them once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from seewhy.explainers.core.ask import DEFAULT_ASK, Ask
from seewhy.explainers.core.attribution import Attribution, require_finite
from seewhy.explainers.core.model import AnyModel
from seewhy.explainers.execution.progress import SILENT, Progress
from seewhy.explainers.methods.cam.base import CAM
from seewhy.explainers.methods.cam.layer_tensors import LayerTensors, collect
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.tasks.pose import pose


def explain_jointly(
    explainers: Sequence[Explainer],
    model: AnyModel,
    images: Tensor,
    ask: Ask = DEFAULT_ASK,
    progress: Progress = SILENT,
) -> list[Attribution]:
    """Explain the same images by several methods.

    CAMs of the same layers and score share one forward and one backward pass, unless they are augmented. All methods
    explain the same targets: the given ones, or those of the first method.

    Args:
        explainers: the methods.
        model, images: as for `Explainer.explain`.
        ask: the targets.
        progress: as for `Explainer.explain`; intermediate maps are shown only if there is one method.

    Returns:
        One attribution per method.

    Raises:
        ExplainerError, ValueError: as in `Explainer.explain`.
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
            # Without given targets, later passes could disagree with the first one on the most probable class.
            if attributions:
                part = replace(part, ask=replace(ask, targets=attributions[0].targets))
            # A CAM with its own `attribute` is more than `combine` of `collect`; an augmented one needs other passes.
            if isinstance(explainer, CAM) and explainer.smooth != "tta" and type(explainer).attribute is CAM.attribute:
                key = (explainer.layers_of(part), explainer.uses_gradients, explainer.score_key)
                if key not in shared:
                    shared[key] = collect(part, key[0], explainer.scores if explainer.uses_gradients else None)
                attribution = explainer.combine(shared[key])
            else:
                attribution = explainer.attribution(part)
            require_finite(attribution.maps)
            attributions.append(attribution)
    return attributions

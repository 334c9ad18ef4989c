"""Interventions: what a model says, and where it looks, when what passes through its layers is edited."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.explainer import Explainer
from seewhy.explainers.core.model import AnyModel, Model, task_of
from seewhy.explainers.core.question import finite_outputs, ready
from seewhy.explainers.core.task import Ask
from seewhy.explainers.errors import EditError, NonFiniteError
from seewhy.explainers.execution.progress import SILENT, Progress
from seewhy.explainers.explain import prepare
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.imaging.choices import Scale, View
from seewhy.explainers.imaging.decode import PictureSource
from seewhy.explainers.imaging.render import Style
from seewhy.explainers.inspection.editor import GRADIENTS, Applied, Editor, check_layers, must_swap, swapped_tensors
from seewhy.explainers.inspection.edits import Edit, not_finite, parse_edits
from seewhy.explainers.inspection.sheets import intervention_panel
from seewhy.explainers.methods.cam.base import LayerExplainer
from seewhy.explainers.methods.catalogue import get_method
from seewhy.explainers.results.display import Shown
from seewhy.explainers.results.explanation import Explanation, explanations


@dataclass(frozen=True, eq=False)
class EditedPair:
    """An attribution of one picture without and with edits, for the same target.

    Attributes:
        before, after: N = 1.
        applied: what each edit did, in one forward and, for edits of gradients, one backward pass to the input.
    """

    before: Attribution
    after: Attribution
    applied: tuple[Applied, ...]


@dataclass(frozen=True, eq=False)
class Intervention(Shown):
    """What edits changed for one picture and one class.

    Attributes:
        edits: as they were applied, in this order.
        before, after: the explanations without and with them.
        applied: what each edit did at each call.
    """

    edits: tuple[Edit, ...]
    before: Explanation
    after: Explanation
    applied: tuple[Applied, ...]

    @property
    def logit_change(self) -> float:
        """Logit of the target after the edits less that before."""
        return self.after.target.logit - self.before.target.logit

    @property
    def probability_change(self) -> float:
        """Probability of the target after the edits less that before."""
        return self.after.target.probability - self.before.target.probability

    @property
    def map_change(self) -> NDArray[np.float32]:
        """(h, w) float32: the raw map after the edits less that before."""
        change: NDArray[np.float32] = self.after.map - self.before.map
        return change

    def panel(
        self,
        view: View = "overlay",
        colormap: str | None = None,
        alpha: float = 0.5,
        scale: Scale = None,
        max_side: int | None = None,
    ) -> Image.Image:
        """Return the heatmaps before, after and their difference side by side, RGB; see `Style`.

        Raises:
            OptionError: a value out of bounds, or an unknown name.
        """
        return intervention_panel(self.before, self.after, Style(view, colormap, alpha, scale, max_side))

    def _saved(self, **style: Any) -> Image.Image:
        return self.panel(**style)

    def _shown(self) -> Image.Image:
        return self.panel(max_side=1200)

    def __repr__(self) -> str:
        before, after = self.before.target, self.after.target
        return (
            f"Intervention({len(self.edits)} edits; {before.label}: {before.probability:.2%} before, "
            f"{after.probability:.2%} after)"
        )


def intervene(
    model: Model,
    picture: PictureSource,
    edits: Iterable[Edit | dict[str, Any]],
    target: int | str | None = None,
    other: PictureSource | None = None,
    method: str = "gradcam",
    layer: str | Sequence[str] | None = None,
    **options: Any,
) -> Intervention:
    """Edit what passes through the layers of a model, and see what it says and where it looks.

    Args:
        model: a `LoadedModel`.
        picture: a path, bytes, PIL image or array; see `read_picture`.
        edits: applied in this order; `Edit` objects, or the same as mappings.
        target: class index or label; None for the class that is most probable before the edits.
        other: the picture that ``swap`` takes activations or gradients from.
        method, layer, options: of the heatmaps, as in `explain`.

    Raises:
        EditError: an edit that is none, or does not fit; `field` names it.
        PictureError, OptionError, LayerError, TargetError: as `explain`.
    """
    checked = parse_edits(edits)
    must_swap(checked, other is not None)
    entry = get_method(method)
    if layer is not None:
        options["layers"] = (layer,) if isinstance(layer, str) else tuple(layer)
    explainer = entry.build(options)
    view = prepare(model, picture)
    swapped = None if other is None else prepare(model, other).images
    targets = None if target is None else torch.tensor([model.task.target(target)], device=model.device)
    sides = edit_images(model, view.images, checked, explainer, targets, swapped)
    (before,) = explanations(model, entry.name, view.picture, view.geometry, sides.before)
    (after,) = explanations(model, entry.name, view.picture, view.geometry, sides.after)
    return Intervention(checked, before, after, sides.applied)


def edit_images(
    model: AnyModel,
    images: Tensor,
    edits: tuple[Edit, ...],
    explainer: Explainer,
    targets: Tensor | None = None,
    other: Tensor | None = None,
    progress: Progress = SILENT,
) -> EditedPair:
    """Explain a normalised picture without and with edits.

    Args:
        model: an `nn.Module` that returns logits (1, K), or a `LoadedModel`; left as it was.
        images: (1, C, H, W) floating, on the model's device.
        edits: applied in this order.
        explainer: makes the maps.
        targets: (1,) int64; None for the class that is most probable before the edits.
        other: (1, C, H, W), the picture that ``swap`` takes from.
        progress: told of each pass; its `cancel` is called before each edit of a tensor too.

    Raises:
        EditError: an edit that does not fit the model; or that makes its output infinite.
        LayerError, TargetError, ModelOutputError: as `Explainer.explain`.
    """
    applied: list[Applied] = []
    task = task_of(model)
    with ready(model, images) as (module, inputs):
        check_layers(module, edits, other is not None)
        before = explainer.explain(model, inputs, targets, progress=progress.part(0, 2))
        if isinstance(explainer, LayerExplainer) and not explainer.layers:
            # The same layers again, without another look for them, which would run an empty picture through the edits.
            explainer = replace(explainer, layers=before.layers)
        objective = task.objective(before.outputs, Ask(before.targets))
        swapped = (
            swapped_tensors(task, module, other.detach().to(inputs, copy=True), edits, objective)
            if other is not None
            else {}
        )
        try:
            with torch.enable_grad(), HookSession(module) as hooks:
                editor = Editor(
                    hooks, edits, swapped, (inputs.shape[2], inputs.shape[3]), applied, check=progress.cancel
                )
                editor.hook(("input", "output", *GRADIENTS))
                outputs = finite_outputs(task, module(inputs.clone()))
                if any(edit.at in GRADIENTS for edit in edits) and outputs.requires_grad:
                    hooks.backward(objective.scores(outputs).sum())
            editor.check_applied()
            with HookSession(module) as hooks, ExitStack() as last:
                # The gradients of parameters have no part in a map.
                Editor(hooks, edits, swapped, editor.image_size, last=last, check=progress.cancel).hook(
                    ("input", "output", "grad_input", "grad_output")
                )
                after = explainer.explain(model, inputs, before.targets, progress=progress.part(1, 2))
        except NonFiniteError as error:
            raise _too_large(edits, applied) from error
    return EditedPair(before, after, tuple(applied))


def _too_large(edits: tuple[Edit, ...], applied: list[Applied]) -> EditError:
    """Return what is wrong with edits after which the logits or the map hold NaN or infinity."""
    broken = [call for call in applied if call.after.nan + call.after.inf > call.before.nan + call.before.inf]
    likely = broken[0] if broken else max(applied, key=lambda call: call.after.norm, default=None)
    index = likely.edit if likely else 0
    only = "" if broken or len(edits) == 1 else ", of which this one leaves the largest numbers,"
    return not_finite(f"With these edits{only} the logits or the map", index, edits[index])

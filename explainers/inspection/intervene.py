"""Interventions: a model's prediction and heatmap with edited activations and gradients."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from seewhy.explainers.core.ask import DEFAULT_ASK, Ask
from seewhy.explainers.core.attribution import Attribution
from seewhy.explainers.core.model import AnyModel, Model, must_know_pictures
from seewhy.explainers.core.question import checked_finite, ready
from seewhy.explainers.core.task import probability_change
from seewhy.explainers.errors import EditError, NonFiniteError, counted
from seewhy.explainers.execution.accelerated import TOLERANCE
from seewhy.explainers.execution.progress import SILENT, Progress
from seewhy.explainers.explain import explained, explainers_of
from seewhy.explainers.hooks.kinds import CALL_KINDS, GRADIENTS, KINDS
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.imaging.choices import Scale, View
from seewhy.explainers.imaging.decode import PictureSource
from seewhy.explainers.imaging.render import Style, enlarged, fit, magnitude, panel
from seewhy.explainers.inspection.editor import EditEffect, Editor, check_layers, must_swap, swapped_tensors
from seewhy.explainers.inspection.edits import Edit, not_finite, parse_edits
from seewhy.explainers.methods.cam.base import LayerExplainer
from seewhy.explainers.methods.cam.votes import Votes, counts_votes, drawn_alike
from seewhy.explainers.methods.catalogue import get_method
from seewhy.explainers.methods.explainer import Explainer
from seewhy.explainers.results.display import Figure
from seewhy.explainers.results.explanation import Explanation
from seewhy.explainers.tasks.pose import named_ask, pose, task_of
from seewhy.explainers.view import prepare

_LEAST, _MOST = 200, 640
"""Width that small pictures are enlarged to in a drawing, and the longest side that they may get, in pixels."""


@dataclass(frozen=True, eq=False)
class EditedPair:
    """An attribution of one picture without and with edits, for the same target.

    Attributes:
        before, after: N = 1.
        applied: effects of the edits in one forward pass and, if gradients are edited, one backward pass to the input.
    """

    before: Attribution
    after: Attribution
    applied: tuple[EditEffect, ...]


@dataclass(frozen=True, eq=False)
class Intervention(Figure):
    """The effect of edits for one picture and one class.

    Attributes:
        edits: in the order of application.
        before, after: the explanations without and with the edits.
        applied: the effect of each edit at each call.
    """

    edits: tuple[Edit, ...]
    before: Explanation
    after: Explanation
    applied: tuple[EditEffect, ...]

    @property
    def score_change(self) -> float:
        """Change of the target's logit, or value, by the edits."""
        return self.after.target.score - self.before.target.score

    @property
    def probability_change(self) -> float | None:
        """Change of the target's probability by the edits; None for a value."""
        return probability_change(self.before.target, self.after.target)

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

    def _file_picture(self, **drawing: Any) -> Image.Image:
        return self.panel(**drawing)

    def _preview(self) -> Image.Image:
        return self.panel(max_side=1200)

    def __repr__(self) -> str:
        before, after = self.before.target, self.after.target
        edits = counted(len(self.edits), "edit")
        return f"Intervention({edits}; {before.label}: {before.text} before, {after.text} after)"


def intervene(
    model: Model,
    picture: PictureSource,
    edits: Iterable[Edit | dict[str, Any]],
    target: int | str | None = None,
    other: PictureSource | None = None,
    method: str | None = None,
    layer: str | Sequence[str] | None = None,
    **options: Any,
) -> Intervention:
    """Edit the activations and gradients of a model's layers, and compare predictions and heatmaps.

    Both maps are by one method: if votes can be counted in only one of them, Grad-CAM draws both, and a diagnostic says
    so.

    Args:
        model: a `LoadedModel`; left unchanged.
        picture: a path, bytes, PIL image or array; see `read_picture`.
        edits: applied in this order; `Edit` objects, or mappings of the same fields.
        target: class index or label; None for the most probable class before the edits.
        other: the source picture of ``swap``.
        method, layer, options: as in `explain`, for the heatmaps.

    Returns:
        The explanations before and after, and the effect of each edit.

    Raises:
        EditError: an invalid edit, or one that does not fit the model; `field` names it.
        PictureError, OptionError, LayerError, TargetError: as in `explain`.
    """
    checked = parse_edits(edits)
    must_swap(checked, other is not None)
    must_know_pictures(model, picture)
    entry = get_method(model.task.default_method if method is None else method)
    (explainer,) = explainers_of([entry], layer, options, model.module, intervene)
    view = prepare(model, picture)
    swapped = None if other is None else prepare(model, other).images(model.device)
    ask = named_ask(model.task, target).placed(view.geometry)
    sides = edit_images(model, view.images(model.device), checked, explainer, ask, swapped)
    (before,) = explained(model, entry, explainer, view, sides.before, ask)
    (after,) = explained(model, entry, explainer, view, sides.after, ask, is_edited=True)
    return Intervention(checked, before, after, sides.applied)


def edit_images(
    model: AnyModel,
    images: Tensor,
    edits: tuple[Edit, ...],
    explainer: Explainer,
    ask: Ask = DEFAULT_ASK,
    other: Tensor | None = None,
    progress: Progress = SILENT,
) -> EditedPair:
    """Explain a normalised picture without and with edits, by one method; see `intervene`.

    Args:
        model: an `nn.Module` that returns logits (1, K), or a `LoadedModel`; left unchanged.
        images: (1, C, H, W) floating, on the model's device.
        edits: applied in this order.
        explainer: makes the maps.
        ask: the explained target; by default the most probable one before the edits.
        other: (1, C, H, W), the picture that ``swap`` takes from.
        progress: notified of each pass; its `cancel` is called before each edit of a tensor too.

    Raises:
        EditError: an edit that does not fit the model, or makes its output infinite.
        LayerError, TargetError, ModelOutputError: as in `Explainer.explain`.
    """
    pair = _edited_pair(model, images, edits, explainer, ask, other, progress)
    if not isinstance(explainer, Votes) or counts_votes(pair.before) == counts_votes(pair.after):
        return pair
    # One map is of another method than the other: draw both by the method that can.
    rest = Progress(cancel=progress.cancel)
    pair = _edited_pair(model, images, edits, explainer.substitute, ask, other, rest)
    return replace(pair, before=drawn_alike(pair.before), after=drawn_alike(pair.after))


def _edited_pair(
    model: AnyModel,
    images: Tensor,
    edits: tuple[Edit, ...],
    explainer: Explainer,
    ask: Ask,
    other: Tensor | None,
    progress: Progress,
) -> EditedPair:
    """Return both attributions by one explainer; see `edit_images`."""
    applied: list[EditEffect] = []
    task = task_of(model)
    with ready(model, images) as (module, inputs):
        check_layers(module, edits, other is not None)
        before = explainer.explain(model, inputs, ask, progress=progress.part(0, 2))
        if isinstance(explainer, LayerExplainer) and before.layers:
            # The default layers now: a survey that finds them later would run an empty picture through the edits.
            with pose(model, inputs, ask, progress) as question:
                explainer = replace(explainer, layers=explainer.layers_of(question))
        ask = replace(ask, targets=before.targets)
        objective = task.objective(before.outputs, ask)
        swapped = swapped_tensors(task, module, other, edits, objective, like=inputs)
        try:
            with torch.enable_grad(), HookSession(module) as hooks:
                editor = Editor(
                    hooks, edits, swapped, (inputs.shape[2], inputs.shape[3]), applied, check=progress.cancel
                )
                editor.hook(KINDS)
                outputs = checked_finite(task.outputs(module(inputs.clone())))
                if any(edit.at in GRADIENTS for edit in edits) and outputs.requires_grad:
                    hooks.backward(objective.scores(outputs).sum())
            editor.check_applied()
            with HookSession(module) as hooks, ExitStack() as last:
                # No map depends on gradients of parameters.
                Editor(hooks, edits, swapped, editor.image_size, last=last, check=progress.cancel).hook(CALL_KINDS)
                after = explainer.explain(model, inputs, ask, progress=progress.part(1, 2))
        except NonFiniteError as error:
            raise _too_large(edits, applied) from error
    return EditedPair(before, after, tuple(applied))


def _too_large(edits: tuple[Edit, ...], applied: list[EditEffect]) -> EditError:
    """Return the error of edits that cause NaN or infinity in the logits or the map."""
    non_finite = [call for call in applied if call.after.nan + call.after.inf > call.before.nan + call.before.inf]
    likely = non_finite[0] if non_finite else max(applied, key=lambda call: call.after.norm, default=None)
    index = likely.edit if likely else 0
    only = "" if non_finite or len(edits) == 1 else ", of which this one leaves the largest numbers,"
    return not_finite(f"With these edits{only} the logits or the map", index, edits[index])


def intervention_panel(before: Explanation, after: Explanation, style: Style) -> Image.Image:
    """Draw the heatmaps before and after edits to one scale, and their difference.

    Unless `style` has a scale of its own, the largest magnitude of both maps is that of the first two, and the
    difference, blue where the map fell and red where it rose, over the picture in grey, is drawn stronger by the factor
    in its caption. A difference is not drawn if it is smaller than those between the ways to run a model. Small
    pictures are enlarged, so that there is room for the captions.
    """
    tile = style.of_tiles(3)
    picture = enlarged(before.picture, _LEAST, min(_MOST, tile.max_side or _MOST))
    before, after = (replace(side, picture=picture) for side in (before, after))
    grey = picture.convert("L").convert("RGB")
    change = replace(after, map=after.map - before.map, signed=True, picture=grey)
    largest = max(_magnitude(explanation, style) for explanation in (before, after)) or 1.0
    if (rise := _magnitude(change, style)) <= TOLERANCE * largest:
        change, rise = replace(change, map=np.zeros_like(change.map)), 1.0
    fixed = style.scale if isinstance(style.scale, tuple) else None
    maps = replace(tile, scale=fixed or (0.0, largest))
    difference = replace(tile, scale=fixed or (-rise, rise), colormap=None)
    name = "no difference"
    if np.any(change.map):
        name = "difference" if fixed else f"difference x{largest / rise:.3g}"
    label = before.target.label
    drawing = panel(
        [before.draw_map(maps), after.draw_map(maps), change.draw_map(difference)],
        [
            f"before: {label} {before.target.text}",
            f"after: {label} {after.target.text}",
            f"{name}: {after.target.change(before.target)}",
        ],
        columns=3,
        wraps=True,
    )
    return fit(drawing, style.max_side)  # captions of many lines make it higher


def _magnitude(explanation: Explanation, style: Style) -> float:
    """Return the largest magnitude of a map on the picture; of a robust scale that of the map itself."""
    values = explanation.map if style.scale == "robust" else explanation.geometry.lay(explanation.map)
    return magnitude(values, style.scale)

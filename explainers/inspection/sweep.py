"""Sweeps: one edit on each channel of a layer in turn, ranked by its effect on the target.

Only the part of the model after the layer runs for each batch of channels; see `replay`.
"""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, fields, replace
from functools import partial
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from seewhy.explainers.core.ask import DEFAULT_ASK, Ask
from seewhy.explainers.core.attribution import Answered
from seewhy.explainers.core.costs import Passes
from seewhy.explainers.core.model import AnyModel, Model
from seewhy.explainers.core.question import checked_finite, ready
from seewhy.explainers.core.task import probability_change
from seewhy.explainers.errors import EditError, LayerError, counted
from seewhy.explainers.execution.progress import SILENT, Progress
from seewhy.explainers.execution.replay import Replay, UnreplayableError
from seewhy.explainers.hooks.gradient_tap import is_differentiable
from seewhy.explainers.hooks.selection import first_names, match_modules
from seewhy.explainers.imaging.decode import PictureSource
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.imaging.render import Style
from seewhy.explainers.imaging.sheets import sheet
from seewhy.explainers.inspection.edit_parts import MisfitError, Part, edit_errors, part_of, sole_place
from seewhy.explainers.inspection.editor import Place, check_layers, must_swap, swapped_tensors
from seewhy.explainers.inspection.edits import Edit, Mean, Normalize, PermuteChannels, not_finite, parse_edits
from seewhy.explainers.layers.feature_maps import FeatureMaps, GridMaps, grid_axes
from seewhy.explainers.layers.survey import Survey
from seewhy.explainers.layers.survey_cache import maps_at
from seewhy.explainers.results.display import Canvas, Result, must_show, picture_of
from seewhy.explainers.tasks.pose import named_ask, task_of
from seewhy.explainers.view import prepare

BATCH = 32
"""Maximum number of channels in one pass; fewer if the picture or the layer is large."""

_BATCH_VALUES = 2**25


@dataclass(frozen=True)
class ChannelEffect:
    """The effect of an edit of one channel on the target.

    Attributes:
        channel: its index.
        score, probability: the target's logit, or its value, which has no probability, with this channel edited.
        score_change, probability_change: value with the edit minus the value without it; negative if the unedited
            channel speaks for the target.
    """

    channel: int
    score: float
    probability: float | None
    score_change: float
    probability_change: float | None


@dataclass(frozen=True, eq=False)
class Sweep(Result, Answered):
    """The channels of a layer, ranked by the effect of an edit of each on the target.

    `save` writes a ``.csv`` file, the `table`, and pictures of a `sheet`.

    Attributes:
        layer: path.
        edit: edit that is applied to each channel.
        target: class index, or a place in the picture.
        outputs: (K, ...) float32, as the model's task reads them, without any edit.
        probability: probability of the target without any edit; None for a value.
        channels: the channel whose edit lowers the score most comes first.
        maps: (C, h, w) float32, the layer's feature maps without any edit; None if they are not a grid.
        canvas: the picture and its geometry, for `sheet`; None in a sweep of a tensor.
    """

    layer: str
    edit: Edit
    target: Any
    outputs: Tensor
    probability: float | None
    channels: tuple[ChannelEffect, ...]
    maps: Tensor | None
    canvas: Canvas | None = None

    def sheet(self, top: int = 16, **style: Any) -> Image.Image:
        """Draw the feature maps of the first channels, with the change of the score, over the model's input.

        Args:
            top: maximum number of maps to draw, at least 1.
            style: see `render.Style`.

        Returns:
            The sheet, RGB.

        Raises:
            LayerError: the layer's output is not a grid over the picture.
            OptionError: a value out of bounds, or an unknown name.
            PictureError: the sweep is of a tensor.
        """
        must_show(top)
        drawing = sweep_sheet(self, top, *picture_of(self.canvas), Style(**style))
        if drawing is None:
            raise LayerError(f"{self.layer or '.'!r} has no grid of features to draw; save a .csv.")
        return drawing

    def table(self) -> bytes:
        """Return `channels` as CSV: a row for each, and a column for each attribute of a `ChannelEffect`."""
        file = io.StringIO(newline="")
        table = csv.writer(file)
        table.writerow(field.name for field in fields(ChannelEffect))
        table.writerows(map(astuple, self.channels))
        return file.getvalue().encode()

    def _file_picture(self, **drawing: Any) -> Image.Image:
        return self.sheet(**drawing)

    @property
    def _number_files(self) -> dict[str, Callable[[], list[bytes]]]:
        return {".csv": lambda: [self.table()]}

    def __repr__(self) -> str:
        ends = [f"{end.score_change:+z.4f} (channel {end.channel})" for end in (self.channels[0], self.channels[-1])]
        action = f"{type(self.edit).__name__} of {counted(len(self.channels), 'channel')} of {self.layer!r}"
        return f"Sweep({action}; target {self.target}: {' to '.join(ends)})"


def sweep_channels(
    model: Model,
    picture: PictureSource,
    edit: Edit | dict[str, Any],
    target: int | str | None = None,
    other: PictureSource | None = None,
) -> Sweep:
    """Edit each channel of a layer, and rank the channels by the effect on a class.

    Args:
        model: a `LoadedModel`; left unchanged.
        picture: a path, bytes, PIL image or array; see `read_picture`.
        edit: an edit of one layer's input or output, applied to each channel, or each of its `channels`, separately.
        target: class index or label; None for the most probable class.
        other: the source picture of ``swap``.

    Returns:
        The ranked channels.

    Raises:
        EditError: the edit is invalid, does not fit, or cannot be swept.
        PictureError, TargetError: as in `explain`.
    """
    (checked,) = parse_edits([edit])
    must_swap((checked,), other is not None)
    view = prepare(model, picture)
    swapped = None if other is None else prepare(model, other).images(model.device)
    sweep = sweep_images(
        model, view.images(model.device), checked, named_ask(model.task, target).placed(view.geometry), swapped
    )
    return replace(sweep, canvas=(view.picture, view.geometry))


def sweep_images(
    model: AnyModel,
    images: Tensor,
    edit: Edit,
    ask: Ask = DEFAULT_ASK,
    other: Tensor | None = None,
    progress: Progress = SILENT,
) -> Sweep:
    """Sweep the channels of a layer for a normalised picture.

    Args:
        model: an `nn.Module` that returns logits (1, K), or a `LoadedModel`; left unchanged.
        images: (1, C, H, W) floating, on the model's device.
        edit: edit of one layer's input or output.
        ask: the observed target; the gradients that ``swap`` takes are those of its score, including its contrast.
        other: (1, C, H, W), the picture that ``swap`` takes from.
        progress: notified of each batch.

    Raises:
        EditError: an edit that does not fit, cannot be swept, or makes the logits infinite.
        TargetError, ModelOutputError: as in `Explainer.explain`.
    """
    with ready(model, images) as (module, inputs), torch.no_grad():
        check_layers(module, (edit,), other is not None)
        path, image_size = _swept_layer(module, edit), (inputs.shape[2], inputs.shape[3])
        task = task_of(model)
        outputs = checked_finite(task.outputs(module(inputs.clone()))).float()
        objective = task.objective(outputs, ask)
        swapped = swapped_tensors(task, module, other, (edit,), objective, like=inputs)
        at: Literal["input", "output"] = "input" if edit.at == "input" else "output"
        with closing(Replay(module, inputs, path, at, min(edit.calls or (0,)))) as replay:
            values = _edited_tensor(replay, path, edit)
            channels = _channels(edit, path, values, image_size)
            size = max(1, min(BATCH, _BATCH_VALUES // max(inputs.numel(), values.numel())))

            def batches() -> Iterator[list[int]]:
                for start in range(0, len(channels), size):
                    progress.at(start, len(channels))
                    yield channels[start : start + size]

            # One channel per row, and an unedited row first, which shows whether the replay is right.
            change = partial(_edit_rows, edit.model_copy(update={"channels": None}), path, swapped, image_size)
            rows = torch.cat([batch[1:] for batch in replay.outputs(task.outputs, batches, change)])
    view: FeatureMaps | None
    if at == "output":
        view = maps_at(model, path, tuple(values.shape), (images.shape[1], *image_size), task.outputs)
    else:
        axes = grid_axes(tuple(values.shape), image_size)
        view = axes and GridMaps(axes)
    maps = None if view is None else view.of(values)[0].float().cpu()
    if not bool(torch.isfinite(rows).all()):
        raise not_finite("With this edit the logits", 0, edit)
    target = objective.first
    before, *after = (task.describe(row, [target], top=0)[0] for row in (outputs[0].cpu(), *rows.cpu()))
    effects = [
        ChannelEffect(channel, new.score, new.probability, new.score - before.score, probability_change(before, new))
        for channel, new in zip(channels, after, strict=True)
    ]
    effects.sort(key=lambda effect: (effect.score_change, effect.channel))
    return Sweep(path, edit, target, outputs[0].cpu(), before.probability, tuple(effects), maps)


def passes_of_sweep(module: nn.Module, survey: Survey, image_size: tuple[int, int], edit: Edit) -> Passes | None:
    """Return the maximum number of passes of a sweep: one, and one from the layer on for each channel.

    Args:
        module: as for `sweep_images`.
        survey: survey of its layers.
        image_size: (H, W) of its input.
        edit: edit of one layer's input or output.

    Returns:
        The passes; None if the layer's shape is unknown before it runs.

    Raises:
        EditError: an edit that cannot be swept.
    """
    path = _swept_layer(module, edit)
    layer = next((layer for layer in survey.layers if layer.path == path), None)
    shape = None if layer is None else layer.input_shape if edit.at == "input" else layer.output_shape
    if shape is None:
        return None
    try:
        return Passes(1 + len(_channels(edit, path, torch.empty(shape, device="meta"), image_size)))
    except EditError:  # the survey knows only the first call, and the edit may apply to another
        return None


def _swept_layer(module: nn.Module, edit: Edit) -> str:
    """Return the path of the edit's only layer.

    Raises:
        EditError: the edit cannot be swept, or names several layers.
    """
    if edit.at not in ("input", "output"):
        raise EditError("A sweep edits inputs or outputs: gradients do not change logits.", field="edits[0].at")
    if isinstance(edit, PermuteChannels | Normalize) or (isinstance(edit, Mean) and edit.over == "channel"):
        raise EditError("This op does not work on a single channel; choose another op.", field="edits[0].op")
    modules = dict(module.named_modules(remove_duplicate=False))
    paths = first_names(modules, match_modules(modules, [edit.layer]))
    if len(paths) > 1:
        raise EditError(
            f"{edit.layer!r} matches {len(paths)} layers, {', '.join(paths[:5])} and so on; name one.",
            field="edits[0].layer",
        )
    return paths[0]


def _edited_tensor(replay: Replay, path: str, edit: Edit) -> Tensor:
    """Return the only tensor at the layer that the edit can change, in its first edited call."""
    if replay.value is None or replay.calls <= max(edit.calls or (0,)):
        name = repr(path) if path else "The model"
        times = {0: "never", 1: "once"}.get(replay.calls, f"{replay.calls} times")
        raise EditError(
            f"{name} runs {times} for this picture; choose a layer and calls that run.",
            field="edits[0].calls" if replay.calls else "edits[0].layer",
        )
    leaves = tree_flatten(replay.value)[0]
    tensor: Tensor = leaves[sole_place(leaves, edit.at, path)]
    return tensor


def _channels(edit: Edit, path: str, values: Tensor, image_size: tuple[int, int]) -> list[int]:
    """Return the channels of the layer's tensor to sweep."""
    with edit_errors(path):
        count = values.shape[_channel_axis(part_of(values, image_size, None, edit.region), values)]
        channels = list(range(count)) if edit.channels is None else sorted(set(edit.channels))
        if channels[-1] >= count:
            raise MisfitError("channels", f"Channel {channels[-1]} is out of range: there are 0 to {count - 1}.")
    return channels


def _edit_rows(
    edit: Edit,
    path: str,
    swapped: dict[Place, Tensor],
    image_size: tuple[int, int],
    value: Any,
    channels: Sequence[int],
    call: int,
) -> Any:
    """Return a layer's value with one channel edited in each row but the first.

    Args:
        edit: edit that applies to all channels.
        path, call: path and call of the layer.
        swapped: the other picture's tensors.
        image_size: (H, W) of the model's input.
        value: the layer's arguments or output, 1 + R rows.
        channels: R of them.
    """
    if edit.calls is not None and call not in edit.calls:
        return value
    leaves, spec = tree_flatten(value)
    place = next(place for place, leaf in enumerate(leaves) if is_differentiable(leaf))
    # A container may change the batch size, as windows of a transformer do: then rows are not pictures.
    first, values = leaves[place][:1], leaves[place][1:]
    if len(values) != len(channels):
        raise UnreplayableError
    with edit_errors(path):
        part = edit.part(values, image_size, swapped.get((path, edit.at, call, None)))
        axis = _channel_axis(part, values)
        if channels[-1] >= values.shape[axis]:
            raise MisfitError(
                "channels",
                f"Channel {channels[-1]} is out of range in call {call}: there are 0 to {values.shape[axis] - 1}.",
            )
        rows = torch.zeros((len(channels), values.shape[axis]), dtype=torch.bool, device=values.device)
        rows[range(len(channels)), channels] = True
        rows = rows.reshape([len(channels), *(-1 if other == axis else 1 for other in range(1, values.ndim))])
        leaves[place] = torch.cat([first, edit.apply(values, replace(part, mask=part.mask & rows))])
    return tree_unflatten(leaves, spec)


def _channel_axis(part: Part, values: Tensor) -> int:
    if part.channel is None:
        raise MisfitError("layer", f"A tensor of shape {tuple(values.shape)} has no known axis of channels.")
    return part.channel


def sweep_sheet(sweep: Sweep, count: int, picture: Image.Image, geometry: Geometry, style: Style) -> Image.Image | None:
    """Draw the feature maps of a sweep's first channels, with the change of the target's score.

    Returns:
        The sheet; None where the layer's output is not a grid over the picture.
    """
    if sweep.maps is None:
        return None
    ranked = sweep.channels[:count]
    captions = [
        f"{rank}. ch {effect.channel}: {effect.score_change:+z.3f}" for rank, effect in enumerate(ranked, start=1)
    ]
    title = f"{sweep.layer or '.'}: {counted(len(ranked), 'channel')} by the change of the score"
    return sheet([sweep.maps[effect.channel].numpy() for effect in ranked], captions, title, picture, geometry, style)

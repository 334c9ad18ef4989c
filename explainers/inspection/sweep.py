"""A sweep: one edit on each channel of a layer in turn, ranked by what it does to the target.

Only what lies after the layer runs again and again, in batches; see `replay`.
"""

import csv
import io
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from seewhy.explainers.core.costs import Passes
from seewhy.explainers.core.model import AnyModel, Model, task_of
from seewhy.explainers.core.question import finite_outputs, ready
from seewhy.explainers.core.task import Ask, Task
from seewhy.explainers.errors import EditError, LayerError
from seewhy.explainers.execution.progress import SILENT, Progress
from seewhy.explainers.execution.replay import Replay, UnreplayableError, checked_rows
from seewhy.explainers.explain import prepare
from seewhy.explainers.hooks.gradient_tap import is_differentiable
from seewhy.explainers.hooks.selection import first_names, match_modules
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.imaging.decode import PictureSource
from seewhy.explainers.imaging.render import Style
from seewhy.explainers.inspection.edit_parts import MisfitError, part_of
from seewhy.explainers.inspection.editor import Place, check_layers, must_swap, swapped_tensors
from seewhy.explainers.inspection.edits import Edit, Mean, Normalize, PermuteChannels, not_finite, parse_edits
from seewhy.explainers.inspection.sheets import sweep_sheet
from seewhy.explainers.layers.layout import grid_axes
from seewhy.explainers.layers.survey import Survey
from seewhy.explainers.layers.survey_cache import axes_at
from seewhy.explainers.results.display import Seen, must_be_plain, must_show, picture_of, save_picture

BATCH = 32
"""Most channels in one pass; fewer where the picture or the layer is large."""

_BATCH_VALUES = 2**25


@dataclass(frozen=True)
class ChannelEffect:
    """What the edit of one channel does to the target.

    Attributes:
        channel: its index.
        logit, probability: of the target with this channel edited.
        logit_change, probability_change: from what they are without the edit; negative where the channel as it was
            speaks for the target.
    """

    channel: int
    logit: float
    probability: float
    logit_change: float
    probability_change: float


@dataclass(frozen=True, eq=False)
class Sweep:
    """The channels of a layer, ranked by what an edit of each does to the target.

    Attributes:
        layer: path.
        edit: what was done to each channel.
        target: class index.
        logits: (K,) float32, without any edit.
        probability: of the target without any edit.
        channels: the one whose edit lowers the logit most comes first.
        maps: (C, h, w) float32, the layer's feature maps without any edit; None where they are no grid.
        seen: the picture and where the model saw it, for `sheet`; None in a sweep of a tensor.
    """

    layer: str
    edit: Edit
    target: int
    logits: Tensor
    probability: float
    channels: tuple[ChannelEffect, ...]
    maps: Tensor | None
    seen: Seen | None = None

    def sheet(self, top: int = 16, **style: Any) -> Image.Image:
        """Draw the feature maps of the first channels, with the change of the logit, over what the model saw.

        Args:
            top: how many, at most.
            style: see `render.Style`.

        Raises:
            LayerError: the layer's output is no grid over the picture.
            OptionError: a value out of bounds, or an unknown name.
            PictureError: the sweep is of a tensor.
        """
        must_show(top)
        drawn = sweep_sheet(self, top, *picture_of(self.seen), Style(**style))
        if drawn is None:
            raise LayerError(f"{self.layer or '.'!r} has no grid of features that could be drawn; save a .csv.")
        return drawn

    def table(self) -> bytes:
        """Return `channels` as CSV: a row for each, and a column for each attribute of a `ChannelEffect`."""
        file = io.StringIO(newline="")
        table = csv.writer(file)
        table.writerow(field.name for field in fields(ChannelEffect))
        table.writerows(map(astuple, self.channels))
        return file.getvalue().encode()

    def save(self, path: str | os.PathLike[str], **sheet: Any) -> Path:
        """Write a file whose suffix names the format, and return its path.

        Args:
            path: ``.csv`` for a `table`; or the suffix of a picture for a `sheet`.
            sheet: what `sheet` takes; for a picture only.

        Raises:
            OptionError: another suffix, or options of a sheet for a table.
            LayerError, PictureError: as `sheet`.
        """
        path = Path(path)
        if path.suffix.lower() != ".csv":
            return save_picture(path, lambda: self.sheet(**sheet), ".csv")
        must_be_plain(path, sheet)
        path.write_bytes(self.table())
        return path

    def __repr__(self) -> str:
        first, last = self.channels[0], self.channels[-1]
        change = (
            f"{first.logit_change:+.4f} (channel {first.channel}) to {last.logit_change:+.4f} (channel {last.channel})"
        )
        done = f"{type(self.edit).__name__} of {len(self.channels)} channels of {self.layer!r}"
        return f"Sweep({done}; target {self.target}: {change})"


def sweep_channels(
    model: Model,
    picture: PictureSource,
    edit: Edit | dict[str, Any],
    target: int | str | None = None,
    other: PictureSource | None = None,
) -> Sweep:
    """Rank the channels of a layer by what an edit of each does to a class.

    Args:
        model: a `LoadedModel`.
        picture: a path, bytes, PIL image or array; see `read_picture`.
        edit: of one layer's input or output; applied to each channel (or to each of its `channels`) by itself.
        target: class index or label; None for the most probable class.
        other: the picture that ``swap`` takes from.

    Raises:
        EditError: an edit that is none, does not fit, or cannot be swept.
        PictureError, TargetError: as `explain`.
    """
    (checked,) = parse_edits([edit])
    must_swap((checked,), other is not None)
    view = prepare(model, picture)
    swapped = None if other is None else prepare(model, other).images
    sweep = sweep_images(model, view.images, checked, None if target is None else model.task.target(target), swapped)
    return replace(sweep, seen=(view.picture, view.geometry))


def sweep_images(
    model: AnyModel,
    images: Tensor,
    edit: Edit,
    target: int | None = None,
    other: Tensor | None = None,
    progress: Progress = SILENT,
) -> Sweep:
    """Sweep the channels of a layer for a normalised picture.

    Args:
        model: an `nn.Module` that returns logits (1, K), or a `LoadedModel`; left as it was.
        images: (1, C, H, W) floating, on the model's device.
        edit: of one layer's input or output.
        target: class index; None for the most probable class.
        other: (1, C, H, W), the picture that ``swap`` takes from.
        progress: told of each batch.

    Raises:
        EditError: an edit that does not fit, cannot be swept, or makes the logits infinite.
        TargetError, ModelOutputError: as `Explainer.explain`.
    """
    with ready(model, images) as (module, inputs), torch.no_grad():
        check_layers(module, (edit,), other is not None)
        path = _swept_layer(module, edit)
        task = task_of(model)
        outputs = finite_outputs(task, module(inputs.clone())).float()
        objective = task.objective(outputs, Ask(None if target is None else torch.tensor([target])))
        swapped = (
            {}
            if other is None
            else swapped_tensors(task, module, other.detach().to(inputs, copy=True), (edit,), objective)
        )
        at: Literal["input", "output"] = "input" if edit.at == "input" else "output"
        with closing(Replay(module, inputs, path, at, min(edit.calls or (0,)))) as replay:
            values = _edited_tensor(replay, path, edit)
            sweeper = _Sweeper(task, edit, path, swapped, (inputs.shape[2], inputs.shape[3]))
            channels = _channels(edit, path, values, (inputs.shape[2], inputs.shape[3]))
            size = max(1, min(BATCH, _BATCH_VALUES // max(inputs.numel(), values.numel())))

            def batches() -> Iterator[list[int]]:
                for start in range(0, len(channels), size):
                    progress.at(start, len(channels))
                    yield channels[start : start + size]

            batches_of_rows = checked_rows(
                replay, outputs, batches, lambda run, batch: sweeper.run(run, replay.module, batch)
            )
    rows = torch.cat([batch[1:] for batch in batches_of_rows])
    channels_in, height, width = images.shape[1:]
    if at == "output":
        axes = axes_at(model, path, tuple(values.shape), (channels_in, height, width))
    else:
        axes = grid_axes(tuple(values.shape), (height, width))
    maps = None if axes is None else values.permute(0, *axes)[0].float().cpu()
    sweep = Sweep(path, edit, int(objective.targets[0]), outputs[0].cpu(), 0.0, (), maps)
    return _ranked(sweep, task, channels, rows.cpu())


def passes_of_sweep(module: nn.Module, survey: Survey, image_size: tuple[int, int], edit: Edit) -> Passes | None:
    """Return how many passes a sweep takes, at most: one, and one for each channel from the layer on.

    Args:
        module: as for `sweep_images`.
        survey: of its layers.
        image_size: rows and columns of what it sees.
        edit: of one layer's input or output.

    Returns:
        None where the layer's shape is not known before it runs.

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
    except EditError:  # other calls may have other shapes; the sweep itself says so
        return None


def _ranked(sweep: Sweep, task: Task, channels: list[int], rows: Tensor) -> Sweep:
    """Return the sweep with its channels; the rows are the outputs after the edit of each."""
    if not bool(torch.isfinite(rows).all()):
        raise not_finite("With this edit the logits", 0, sweep.edit)
    before, *after = (task.describe(outputs, [sweep.target], top=0)[0] for outputs in (sweep.logits, *rows))
    effects = [
        ChannelEffect(
            channel,
            target.logit,
            target.probability,
            target.logit - before.logit,
            target.probability - before.probability,
        )
        for channel, target in zip(channels, after, strict=True)
    ]
    effects.sort(key=lambda effect: (effect.logit_change, effect.channel))
    return replace(sweep, probability=before.probability, channels=tuple(effects))


def _swept_layer(module: nn.Module, edit: Edit) -> str:
    """Return the path of the only layer that the edit means, if it can be swept."""
    if edit.at not in ("input", "output"):
        raise EditError("A sweep edits inputs or outputs: gradients do not change logits.", field="edits[0].at")
    if isinstance(edit, PermuteChannels | Normalize) or (isinstance(edit, Mean) and edit.over == "channel"):
        raise EditError("One channel alone cannot be edited so; choose another op.", field="edits[0].op")
    modules = dict(module.named_modules(remove_duplicate=False))
    paths = first_names(modules, match_modules(modules, [edit.layer]))
    if len(paths) > 1:
        raise EditError(
            f"{edit.layer!r} means {len(paths)} layers, {', '.join(paths[:5])} and so on; name one.",
            field="edits[0].layer",
        )
    return paths[0]


def _edited_tensor(replay: Replay, path: str, edit: Edit) -> Tensor:
    """Return the layer's only tensor that the edit can mean, in its first edited call."""
    if replay.value is None or replay.calls <= max(edit.calls or (0,)):
        named, times = (
            repr(path) if path else "The model",
            {0: "never", 1: "once"}.get(replay.calls, f"{replay.calls} times"),
        )
        raise EditError(
            f"{named} runs {times} for this picture; choose a layer and calls that run.",
            field="edits[0].calls" if replay.calls else "edits[0].layer",
        )
    tensors = [leaf for leaf in tree_flatten(replay.value)[0] if is_differentiable(leaf)]
    if len(tensors) != 1:
        raise EditError(
            f"The {edit.at} of {path!r} holds {len(tensors)} tensors that can be edited, where one is expected; "
            "choose a layer inside or around it.",
            field="edits[0].layer",
        )
    sole: Tensor = tensors[0]
    return sole


def _channels(edit: Edit, path: str, values: Tensor, image_size: tuple[int, int]) -> list[int]:
    """Return the channels to sweep of the layer's tensor."""
    with _named(path):
        axis = part_of(edit.model_copy(update={"channels": None}), values, image_size).channel
        if axis is None:
            raise MisfitError("layer", f"A tensor of shape {tuple(values.shape)} has no known axis of channels.")
        count = values.shape[axis]
        channels = list(range(count)) if edit.channels is None else sorted(set(edit.channels))
        if channels[-1] >= count:
            raise MisfitError("channels", f"Channel {channels[-1]} is out of range: there are 0 to {count - 1}.")
    return channels


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Name the layer of an edit that does not fit."""
    try:
        yield
    except MisfitError as error:
        raise EditError(f"At {path or 'the model'!r}: {error}", field=f"edits[0].{error.field}") from None


class _Sweeper:
    """Edits one channel in each row of a batch but the first, which stays as it is."""

    def __init__(
        self, task: Task, edit: Edit, path: str, swapped: dict[Place, Tensor], image_size: tuple[int, int]
    ) -> None:
        self._task = task
        self._edit = edit.model_copy(update={"channels": None})
        self._path = path
        self._swapped = swapped
        self._image_size = image_size

    def run(self, run: Callable[[int], Any], module: nn.Module, channels: list[int]) -> Tensor | None:
        """Return the outputs of an unedited row and of one row per channel; None if the batch is no such batch."""
        reached = False

        def edited(value: Any) -> Any:
            nonlocal reached
            reached = True
            call = hooks.current.number if hooks.current else 0
            return self._edited(value, call, channels)

        with HookSession(module) as hooks:
            if self._edit.at == "input":
                hooks.before_forward(
                    lambda _, args, kwargs: edited((args, kwargs)), self._path, with_kwargs=True, shared=True
                )
            else:
                hooks.after_forward(lambda _, args, output: edited(output), self._path)
            outputs = self._task.outputs(run(len(channels) + 1)).float()
        return outputs if reached and len(outputs) == len(channels) + 1 else None

    def _edited(self, value: Any, call: int, channels: list[int]) -> Any:
        if self._edit.calls is not None and call not in self._edit.calls:
            return value
        leaves, spec = tree_flatten(value)
        place = next(place for place, leaf in enumerate(leaves) if is_differentiable(leaf))
        first, values = leaves[place][:1], leaves[place][1:]
        if len(values) != len(channels):
            raise UnreplayableError
        with _named(self._path):
            part = part_of(
                self._edit, values, self._image_size, self._swapped.get((self._path, self._edit.at, call, None))
            )
            axis, count = part.channel, values.shape[part.channel or 0]
            if axis is None:
                raise MisfitError("layer", f"A tensor of shape {tuple(values.shape)} has no known axis of channels.")
            if channels[-1] >= count:
                raise MisfitError(
                    "channels", f"Channel {channels[-1]} is out of range in call {call}: there are 0 to {count - 1}."
                )
            rows = torch.zeros((len(channels), values.shape[axis]), dtype=torch.bool, device=values.device)
            rows[range(len(channels)), channels] = True
            rows = rows.reshape([len(channels), *(-1 if other == axis else 1 for other in range(1, values.ndim))])
            changed = self._edit.apply(values, replace(part, mask=part.mask & rows))
        leaves[place] = torch.cat([first, changed])
        return tree_unflatten(leaves, spec)

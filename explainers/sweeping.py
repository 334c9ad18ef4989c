"""A sweep: one edit on each channel of a layer in turn, ranked by what it does to the target.

Only what lies after the layer runs again and again, in batches. A private copy of the model's structure, which shares
its weights, stands in for the model; in it, modules that had returned before the layer did return what they returned
then. No graph of the model is needed. Every batch holds one unedited row, and where that does not come out as it
should, because a model does more than its modules' outputs tell, the whole model runs for each batch instead.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from explainers.base import checked_logits, prepared
from explainers.edits import Edit, EditError, Mean, MisfitError, Normalize, PermuteChannels, parse_edits, part_of
from explainers.errors import ModelOutputError
from explainers.explanation import Model
from explainers.goals import goal_of
from explainers.hooks import HookSession
from explainers.intervention import Place, check_layers, swapped_tensors
from explainers.layers import grid_axes
from explainers.modules import first_names, logits_of, match_modules
from explainers.picture import PictureSource, read_picture
from explainers.taps import copied, is_differentiable
from explainers.targets import class_index

BATCH = 32
"""Most channels in one pass; fewer where the picture or the layer is large."""

_BATCH_VALUES = 2**25
_TOLERANCE = 1e-4
"""Largest difference of an unedited row's logits, over the largest logit, that a batch may have; more in half
precision."""


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
    """

    layer: str
    edit: Edit
    target: int
    logits: Tensor
    probability: float
    channels: tuple[ChannelEffect, ...]
    maps: Tensor | None

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
    images = model.preprocess(read_picture(picture))[None].to(model.device)
    swapped = None if other is None else model.preprocess(read_picture(other))[None].to(model.device)
    index = None if target is None else class_index(target, model.labels)
    return sweep_images(model, images, checked, index, swapped)


def sweep_images(
    model: Any,
    images: Tensor,
    edit: Edit,
    target: int | None = None,
    other: Tensor | None = None,
    check: Callable[[], None] = lambda: None,
) -> Sweep:
    """Sweep the channels of a layer for a normalised picture.

    Args:
        model: an `nn.Module` that returns logits (1, K), or a `LoadedModel`; left as it was.
        images: (1, C, H, W) floating, on the model's device.
        edit: of one layer's input or output.
        target: class index; None for the most probable class.
        other: (1, C, H, W), the picture that ``swap`` takes from.
        check: called before each batch; what it raises ends the sweep.

    Raises:
        EditError: an edit that does not fit, cannot be swept, or makes the logits infinite.
        TargetError, ModelOutputError: as `Explainer.explain`.
    """
    with prepared(model, images) as (module, inputs), torch.no_grad():
        check_layers(module, (edit,), other is not None)
        path = _swept_layer(module, edit)
        logits = checked_logits(module(inputs.clone())).float()
        goal = goal_of(logits, None if target is None else torch.tensor([target]))
        swapped = {} if other is None else swapped_tensors(module, other.detach().to(inputs, copy=True), (edit,), goal)
        with closing(_Replay(module, inputs, path, edit)) as replay:
            sweeper = _Sweeper(edit, path, swapped, (inputs.shape[2], inputs.shape[3]))
            channels = sweeper.channels(replay.values)
            size = max(1, min(BATCH, _BATCH_VALUES // max(inputs.numel(), replay.values.numel())))
            batches = [channels[start : start + size] for start in range(0, len(channels), size)]
            rows = None
            for run in (replay.run, replay.run_copying, replay.run_all):
                rows = rows if rows is not None else _rows(sweeper, run, replay.module, batches, logits, check)
    if rows is None:
        raise ModelOutputError(
            "The model answers differently when the picture is one of a batch, so no sweep is possible."
        )
    axes = grid_axes(tuple(replay.values.shape), (images.shape[2], images.shape[3]))
    maps = None if axes is None else replay.values.permute(0, *axes)[0].float().cpu()
    return _ranked(Sweep(path, edit, int(goal.targets[0]), logits[0].cpu(), 0.0, (), maps), channels, rows.cpu())


def _rows(
    sweeper: "_Sweeper",
    run: Callable[[int], Any],
    module: nn.Module,
    batches: list[list[int]],
    logits: Tensor,
    check: Callable[[], None],
) -> Tensor | None:
    """Return the logits of every channel's row, or None where an unedited row is not what it should be."""
    rows = []
    dtypes = {value.dtype for value in module.parameters() if value.is_floating_point()}
    tolerance = max(_TOLERANCE, *(8 * torch.finfo(dtype).eps for dtype in dtypes), 0)
    for batch in batches:
        check()
        try:
            found = sweeper.run(run, module, batch)
        except (EditError, torch.OutOfMemoryError):
            raise
        except Exception:  # of PyTorch or the model: a batch where one picture was expected
            return None
        if found is None or not (found[:1] - logits).abs().max() <= tolerance * logits.abs().max():
            return None
        rows.append(found[1:])
    return torch.cat(rows)


def _ranked(sweep: Sweep, channels: list[int], rows: Tensor) -> Sweep:
    """Return the sweep with its channels, of whose edits the logits are the rows."""
    if not bool(torch.isfinite(rows).all()):
        raise EditError("With this edit the logits hold NaN or infinity; use a smaller value.", field="edits[0]")
    logit = float(sweep.logits[sweep.target])
    probability = float(sweep.logits.double().softmax(dim=0)[sweep.target])
    logits = rows[:, sweep.target].tolist()
    probabilities = rows.double().softmax(dim=1)[:, sweep.target].tolist()
    found = [
        ChannelEffect(channel, one, likely, one - logit, likely - probability)
        for channel, one, likely in zip(channels, logits, probabilities, strict=True)
    ]
    found.sort(key=lambda effect: (effect.logit_change, effect.channel))
    return replace(sweep, probability=probability, channels=tuple(found))


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


class _Sweeper:
    """Edits one channel in each row of a batch but the first, which stays as it is."""

    def __init__(self, edit: Edit, path: str, swapped: dict[Place, Tensor], image_size: tuple[int, int]) -> None:
        self._edit = edit.model_copy(update={"channels": None})
        self._wanted = edit.channels
        self._path = path
        self._swapped = swapped
        self._image_size = image_size

    def channels(self, values: Tensor) -> list[int]:
        """Return the channels to sweep of the layer's tensor."""
        with self._named():
            part = part_of(self._edit, values, self._image_size)
            if part.channel is None:
                raise MisfitError("layer", f"A tensor of shape {tuple(values.shape)} has no known axis of channels.")
            count = values.shape[part.channel]
            wanted = list(range(count)) if self._wanted is None else sorted(set(self._wanted))
            if wanted[-1] >= count:
                raise MisfitError("channels", f"Channel {wanted[-1]} is out of range: there are 0 to {count - 1}.")
        return wanted

    def run(self, run: Callable[[int], Any], module: nn.Module, channels: list[int]) -> Tensor | None:
        """Return the logits of an unedited row and of one row per channel; None if the batch is no such batch."""
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
            logits = logits_of(run(len(channels) + 1)).float()
        return logits if reached and len(logits) == len(channels) + 1 else None

    def _edited(self, value: Any, call: int, channels: list[int]) -> Any:
        if self._edit.calls is not None and call not in self._edit.calls:
            return value
        leaves, spec = tree_flatten(value)
        place = next(place for place, leaf in enumerate(leaves) if is_differentiable(leaf))
        first, values = leaves[place][:1], leaves[place][1:]
        if len(values) != len(channels):
            raise _UnreplayableError
        with self._named():
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

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except MisfitError as error:
            raise EditError(f"At {self._path or 'the model'!r}: {error}", field=f"edits[0].{error.field}") from None


class _UnreplayableError(Exception):
    """What was noted cannot be repeated for a batch."""


class _Replay:
    """Runs a model for batches of one picture; what returned before the layer did is not computed again.

    Attributes:
        module: the copy, in which hooks see the replay.
        values: the layer's tensor that is to be edited, in its first edited call.
    """

    def __init__(self, module: nn.Module, images: Tensor, path: str, edit: Edit) -> None:
        try:
            self.module = _structure_of(module)
            copied_it = True
        except Exception:  # of whatever it holds: a lock, a file
            self.module, copied_it = module, False
        self._images = images
        self._size, self._copying = 0, False
        self._replayed: Counter[nn.Module] = Counter()
        self._noted: dict[nn.Module, list[Any]] = {}
        self.values = self._note(path, edit)
        self._noted_version = self._version()
        if not copied_it:
            self._noted.clear()  # others use it
        for part in self._noted:
            part.forward = self._stand_in(part)

    def run(self, size: int, copying: bool = False) -> Any:
        """Return the model's output for a batch of that many copies of the picture."""
        if self._version() != self._noted_version:
            raise _UnreplayableError
        self._size, self._copying = size, copying
        self._replayed.clear()
        output = self.module(_repeated(self._images, size).contiguous())
        if self._version() != self._noted_version:  # writing by a mask into memory that rows share is no error
            raise _UnreplayableError
        return output

    def run_copying(self, size: int) -> Any:
        """Do the same for models that modify in place what a module returned."""
        return self.run(size, copying=True)

    def run_all(self, size: int) -> Any:
        """Do the same with every module computed again."""
        self.close()
        return self.module(_repeated(self._images, size).contiguous())

    def close(self) -> None:
        """Take the stand-ins away, and with them the references to this object."""
        for part in self._noted:
            vars(part).pop("forward", None)
        self._noted.clear()

    def _stand_in(self, part: nn.Module) -> Callable[..., Any]:
        compute, outputs = part.forward, self._noted[part]

        def forward(*args: Any, **kwargs: Any) -> Any:
            call = self._replayed[part]
            self._replayed[part] += 1
            if call < len(outputs):
                return tree_map_only(Tensor, self._row_by_row, outputs[call])
            return compute(*args, **kwargs)

        return forward

    def _row_by_row(self, tensor: Tensor) -> Tensor:
        rows = _repeated(tensor, self._size)
        return rows.contiguous() if self._copying else rows

    def _version(self) -> int:
        leaves = tree_flatten(list(self._noted.values()))[0]
        return sum(leaf._version for leaf in leaves if isinstance(leaf, Tensor))

    def _note(self, path: str, edit: Edit) -> Tensor:
        """Run the model once, and note what returns before the layer's first edited call, outermost modules only."""
        finished: list[tuple[nn.Module, Any]] = []
        marks: list[int] = []
        target, wanted = self.module.get_submodule(path), min(edit.calls or (0,))
        # What holds the layer runs again, for calls of the layer are counted in the replay too.
        holders = {part for part in self.module.modules() if part is not target and target in set(part.modules())}
        calls, found = 0, None
        with HookSession(self.module) as hooks:

            def before(part: nn.Module, args: Any, kwargs: Any) -> None:
                nonlocal found
                marks.append(len(finished))
                if part is target and calls == wanted and edit.at == "input" and found is None:
                    found = copied((args, kwargs))

            def after(part: nn.Module, _args: Any, output: Any) -> None:
                nonlocal calls, found
                mark = marks.pop()
                if found is None and part not in holders:
                    del finished[mark:]
                    finished.append((part, copied(output)))
                if part is target:
                    if calls == wanted and edit.at == "output":
                        found = copied(output)
                    calls += 1

            hooks.before_forward(before, nn.Module, with_kwargs=True)
            hooks.after_forward(after, nn.Module)
            self.module(self._images.clone())
        if found is None or calls <= max(edit.calls or (0,)):
            named, times = repr(path) if path else "The model", {0: "never", 1: "once"}.get(calls, f"{calls} times")
            raise EditError(
                f"{named} runs {times} for this picture; choose a layer and calls that run.",
                field="edits[0].calls" if calls else "edits[0].layer",
            )
        tensors = [leaf for leaf in tree_flatten(found)[0] if is_differentiable(leaf)]
        if len(tensors) != 1:
            raise EditError(
                f"The {edit.at} of {path!r} holds {len(tensors)} tensors that can be edited, where one is expected; "
                "choose a layer inside or around it.",
                field="edits[0].layer",
            )
        for part, output in finished:
            self._noted.setdefault(part, []).append(output)
        sole: Tensor = tensors[0]
        return sole


def _structure_of(module: nn.Module) -> nn.Module:
    """Return a copy of a module that shares its parameters, buffers and hooks."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    for part in module.modules():
        for hooks in (
            part._forward_hooks,
            part._forward_pre_hooks,
            part._forward_hooks_with_kwargs,
            part._forward_pre_hooks_with_kwargs,
            part._forward_hooks_always_called,
        ):
            shared[id(hooks)] = OrderedDict(hooks)  # at once: other threads add and remove theirs
    return deepcopy(module, shared)


def _repeated(tensor: Tensor, size: int) -> Tensor:
    """Return a batch of one as a batch of `size` that shares its memory."""
    if tensor.ndim == 0:
        return tensor
    if len(tensor) != 1:
        raise _UnreplayableError
    return tensor.expand(size, *tensor.shape[1:])

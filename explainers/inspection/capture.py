"""Capturing: what passes through chosen layers for one picture, forward and backward, as named tensors."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from seewhy.explainers.core.model import AnyModel, Model, task_of
from seewhy.explainers.core.question import finite_outputs, ready
from seewhy.explainers.core.task import Ask
from seewhy.explainers.errors import CaptureTooLargeError, LayerError, OptionError
from seewhy.explainers.execution.progress import SILENT, Progress
from seewhy.explainers.explain import prepare
from seewhy.explainers.hooks.gradient_tap import is_differentiable
from seewhy.explainers.hooks.kinds import KINDS, Kind
from seewhy.explainers.hooks.selection import Where
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.imaging.decode import PictureSource
from seewhy.explainers.imaging.render import Style
from seewhy.explainers.inspection.sheets import contact_sheet
from seewhy.explainers.layers.layout import grid_axes
from seewhy.explainers.layers.survey_cache import surveyed_axes
from seewhy.explainers.results.array_files import ArrayFile, ArrayForm
from seewhy.explainers.results.display import Seen, must_be_plain, must_show, picture_of, save_picture

Rank = Literal["activation", "effect"]


@dataclass(frozen=True, eq=False)
class CapturedTensor:
    """One tensor of a layer.

    Attributes:
        layer: path; empty for the model itself.
        kind: input, output, grad_input, grad_output or parameter_grad.
        call: 0 for the layer's first call; None for a parameter, whose gradient is that of all calls.
        name: of the parameter; or the index, where a call has several arguments or outputs.
        tensor: on the CPU; None where no gradient flowed.
    """

    layer: str
    kind: Kind
    call: int | None
    name: str | None
    tensor: Tensor | None

    @property
    def key(self) -> str:
        """LAYER/KIND/CALL, LAYER/KIND/CALL/INDEX or LAYER/parameter_grad/NAME; the model itself is the layer ``.``."""
        parts = (self.layer or ".", self.kind, self.call, self.name)
        return "/".join(str(part) for part in parts if part is not None)


@dataclass(frozen=True, eq=False)
class Capture:
    """What passed through chosen layers.

    Attributes:
        tensors: by layer in module order, kind and call.
        target: class index whose logit the gradients are of.
        logits: (K,) float32.
        image_size: (H, W) of the model's input, by whose proportions a feature map is told from other tensors.
        axes: of channels, rows and columns in what layers return, where the model's survey tells.
        seen: the picture and where the model saw it, for `sheet`; None in a capture of a tensor.
    """

    tensors: tuple[CapturedTensor, ...]
    target: int
    logits: Tensor
    image_size: tuple[int, int]
    axes: Mapping[str, tuple[int, int, int] | None] = field(default_factory=dict)
    seen: Seen | None = None

    @property
    def arrays(self) -> dict[str, Tensor]:
        """The tensors by key, without gradients that did not flow."""
        return {one.key: one.tensor for one in self.tensors if one.tensor is not None}

    def file(self, form: ArrayForm) -> ArrayFile:
        """Return `arrays` as an npz or safetensors file, to be written piece by piece.

        Numpy has no bfloat16; in an npz file such a tensor is float32.
        """
        return ArrayFile(form, self.arrays)

    def encoded(self, form: ArrayForm) -> bytes:
        """Return the bytes of `file`."""
        return b"".join(self.file(form).pieces())

    @property
    def nbytes(self) -> int:
        """Bytes that the tensors keep in memory: each storage once, also where tensors are parts of it."""
        storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in self.arrays.values()}
        return sum(storages.values())

    def sheet(self, top: int = 16, rank: Rank = "activation", **style: Any) -> Image.Image:
        """Draw the strongest feature maps, ranked and labelled, over what the model saw of the picture.

        Args:
            top: how many, at most.
            rank: by mean magnitude, or by effect (see `strongest`).
            style: see `render.Style`.

        Raises:
            LayerError: nothing that was captured is a feature map.
            OptionError: a value out of bounds, or an unknown name; or the kinds for `rank` were not captured.
            PictureError: the capture is of a tensor.
        """
        must_show(top)
        if rank not in ("activation", "effect"):
            raise OptionError(f"There is no rank {rank!r}; choose activation or effect.", field="rank")
        by_effect = rank == "effect"
        if by_effect and not {"output", "grad_output"} <= {one.kind for one in self.tensors}:
            raise OptionError("The rank by effect needs the kinds output and grad_output; capture both.", field="rank")
        picture, geometry = picture_of(self.seen)
        return contact_sheet(strongest(self, top, by_effect), picture, geometry, Style(**style), by_effect)

    def save(self, path: str | os.PathLike[str], **sheet: Any) -> Path:
        """Write a file whose suffix names the format, and return its path.

        Args:
            path: ``.npz`` or ``.safetensors`` for `arrays`, or the suffix of a picture for a `sheet`.
            sheet: what `sheet` takes; for a picture only.

        Raises:
            OptionError: another suffix, or options of a sheet for arrays.
            LayerError, PictureError: as `sheet`.
        """
        path = Path(path)
        forms: dict[str, ArrayForm] = {".npz": "npz", ".safetensors": "safetensors"}
        form = forms.get(path.suffix.lower())
        if form is None:
            return save_picture(path, lambda: self.sheet(**sheet), *forms)
        must_be_plain(path, sheet)
        with path.open("wb") as written:
            written.writelines(self.file(form).pieces())
        return path

    def __repr__(self) -> str:
        keys = [one.key for one in self.tensors]
        named = ", ".join(keys[:5]) + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")
        return f"Capture({named}; target {self.target})"


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """One channel of a captured tensor.

    Attributes:
        source: the tensor that it is a channel of.
        channel: its index.
        strength: what it is ranked by.
        map: (h, w) float32.
    """

    source: CapturedTensor
    channel: int
    strength: float
    map: Tensor


def capture(
    model: Model,
    picture: PictureSource,
    layers: str | Iterable[Where],
    kinds: Kind | Iterable[Kind] = ("output",),
    target: int | str | None = None,
    max_bytes: int | None = None,
) -> Capture:
    """Capture what passes through layers for a picture.

    Args:
        model: a `LoadedModel`.
        picture: a path, bytes, PIL image or array; see `read_picture`.
        layers: paths, globs, types or predicates; or one path or glob.
        kinds: one or more of input, output, grad_input, grad_output, parameter_grad.
        target: class index or label that gradients are of; None for the most probable class.
        max_bytes: most bytes that the tensors may take.

    Raises:
        CaptureTooLargeError: they would take more; found out before any is kept.
        LayerError: a layer that the model lacks, or none of them runs.
        PictureError, TargetError: as `explain`.
    """
    view = prepare(model, picture)
    number = None if target is None else model.task.target(target)
    layers = (layers,) if isinstance(layers, str) else tuple(layers)
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    tensors = capture_images(model, view.images, layers, kinds, number, max_bytes)
    return replace(tensors, seen=(view.picture, view.geometry))


def capture_images(
    model: AnyModel,
    images: Tensor,
    layers: tuple[Where, ...],
    kinds: tuple[Kind, ...] = ("output",),
    target: int | None = None,
    max_bytes: int | None = None,
    progress: Progress = SILENT,
    claim: Callable[[int], None] = lambda size: None,
) -> Capture:
    """Capture what passes through layers for a normalised picture.

    Args:
        model: an `nn.Module` that returns logits (1, K), or a `LoadedModel`; left as it was.
        images: (1, C, H, W) floating, on the model's device.
        layers, kinds, target, max_bytes: as `capture`.
        progress: its `cancel` is called between two passes through the model.
        claim: called with how many bytes the tensors will take, before any is kept; what it raises ends the capture.

    Raises:
        CaptureTooLargeError, LayerError, TargetError, ModelOutputError: as `capture`.
    """
    image_size = (images.shape[2], images.shape[3])
    with ready(model, images) as (module, inputs):
        paths, size = _check_layers(module, inputs, layers, kinds, max_bytes)
        claim(size)
        progress.cancel()
        backward = any(kind not in ("input", "output") for kind in kinds)
        with torch.set_grad_enabled(backward), HookSession(module) as hooks:
            hooks.record(*paths, kinds=kinds)
            task = task_of(model)
            outputs = finite_outputs(task, module(inputs.clone()))
            objective = task.objective(outputs, Ask(None if target is None else torch.tensor([target])))
            if backward:
                progress.cancel()
                hooks.backward(objective.scores(outputs).sum())
    records = {
        "input": hooks.inputs,
        "output": hooks.outputs,
        "grad_input": hooks.grad_inputs,
        "grad_output": hooks.grad_outputs,
    }
    tensors: list[CapturedTensor] = []
    for path in paths:
        for kind in KINDS:
            for call, value in enumerate(records[kind].get(path, []) if kind in records else []):
                leaves = tree_flatten(value)[0]
                for index, leaf in enumerate(leaves):
                    # Numbers among the tensors count too: a gradient is named as the tensor that it belongs to.
                    name = None if len(leaves) == 1 else str(index)
                    if isinstance(leaf, Tensor) or (leaf is None and kind not in ("input", "output")):
                        tensors.append(CapturedTensor(path, kind, call, name, _on_cpu(leaf)))
        for name, gradient in hooks.parameter_grads.get(path, {}).items():
            tensors.append(CapturedTensor(path, "parameter_grad", None, name, _on_cpu(gradient)))
    axes = surveyed_axes(model)
    return Capture(tuple(tensors), int(objective.targets[0]), outputs[0].detach().float().cpu(), image_size, axes)


def strongest(captured: Capture, count: int, by_effect: bool = False) -> list[FeatureMap]:
    """Return the strongest feature maps of all captured grids.

    Args:
        captured: what was captured.
        count: how many to return, at most.
        by_effect: rank by the magnitude of the sum of activation times gradient, a first-order estimate of what
            the map does to the target's logit, which needs ``output`` and ``grad_output``; otherwise by the mean
            magnitude.

    Raises:
        LayerError: no captured tensor is a grid over the picture.
    """
    found: list[FeatureMap] = []
    gradients = {(one.layer, one.call, one.name): one.tensor for one in captured.tensors if one.kind == "grad_output"}
    for one in captured.tensors:
        axes = None if one.tensor is None else _axes(captured, one, tuple(one.tensor.shape))
        if one.tensor is None or one.kind == "parameter_grad" or axes is None or len(one.tensor) != 1:
            continue
        maps = one.tensor.permute(0, *axes)[0].float()
        strengths = maps.abs().mean(dim=(1, 2))
        if by_effect:
            gradient = gradients.get((one.layer, one.call, one.name))
            if one.kind != "output" or gradient is None:
                continue
            strengths = (maps * gradient.permute(0, *axes)[0].float()).sum(dim=(1, 2))
        found += [
            FeatureMap(one, channel, strength, maps[channel]) for channel, strength in enumerate(strengths.tolist())
        ]
    if not found:
        raise LayerError(
            "None of the captured tensors is a grid of features over the picture; choose a layer that `seewhy layers "
            "MODEL` or GET /models/NAME/layers marks as usable for a CAM, or another format."
        )
    found.sort(key=lambda one: -abs(one.strength))
    return found[:count]


def _axes(captured: Capture, one: CapturedTensor, shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Return the axes of channels, rows and columns of a captured tensor; None if it is no grid."""
    if len(shape) == 4 and one.kind in ("output", "grad_output") and one.layer in captured.axes:
        return captured.axes[one.layer]
    return grid_axes(shape, captured.image_size)


def _check_layers(
    module: nn.Module, inputs: Tensor, layers: tuple[Where, ...], kinds: tuple[Kind, ...], max_bytes: int | None
) -> tuple[tuple[str, ...], int]:
    """Run the model once without keeping anything; return the paths and the bytes that they hold, if not too many."""
    sizes: dict[nn.Module, int] = {}

    def add(module: nn.Module, value: Any, kind: Kind, gradient: Kind) -> None:
        sizes.setdefault(module, 0)
        for tensor in (leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, Tensor)):
            sizes[module] += tensor.nbytes * ((kind in kinds) + (gradient in kinds and is_differentiable(tensor)))

    with torch.no_grad(), HookSession(module) as hooks:
        handle = hooks.before_forward(
            lambda part, args, kwargs: add(part, (args, kwargs), "input", "grad_input"), *layers, with_kwargs=True
        )
        hooks.after_forward(lambda part, _, output: add(part, output, "output", "grad_output"), *layers)
        module(inputs.clone())
    paths = handle.paths
    modules = dict(module.named_modules(remove_duplicate=False))
    ran = {path for path in paths if modules[path] in sizes}
    own = [value for path in paths for value in modules[path].parameters(recurse=False)]
    if set(kinds) == {"parameter_grad"} and not any(is_differentiable(value) for value in own):
        named = ", ".join(path or "the model" for path in paths[:5])
        raise LayerError(f"{named} has no parameters of its own; name a layer that has, or capture another kind.")
    for path in paths if set(kinds) != {"parameter_grad"} else ():
        if path not in ran and ((path or ".") in layers or path in layers or not ran):
            raise LayerError(
                f"{path!r} never runs for this picture (or its `forward` is called directly, which bypasses hooks); "
                "choose a layer that runs, as GET /models/NAME/layers or `seewhy layers MODEL` list them."
            )
    total = sum(sizes.get(modules[path], 0) for path in paths)  # a module of several names has as many copies
    if "parameter_grad" in kinds:
        total += sum(value.nbytes for value in own if is_differentiable(value))
    if max_bytes is not None and total > max_bytes:
        raise CaptureTooLargeError(
            f"The capture would take {total:,} bytes, more than the {max_bytes:,} allowed; name fewer layers or kinds."
        )
    return paths, total


def _on_cpu(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.cpu()

"""Captures: the activations and gradients of chosen layers for one picture, as named tensors."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from seewhy.explainers.core.ask import DEFAULT_ASK, Ask
from seewhy.explainers.core.attribution import Answered
from seewhy.explainers.core.model import AnyModel, Model
from seewhy.explainers.core.question import checked_finite, ready
from seewhy.explainers.errors import LAYER_LIST, CaptureTooLargeError, LayerError, OptionError, never_runs
from seewhy.explainers.execution.progress import SILENT, Progress
from seewhy.explainers.hooks.gradient_tap import is_differentiable
from seewhy.explainers.hooks.kinds import GRADIENTS, Kind
from seewhy.explainers.hooks.selection import ModuleSelector
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.imaging.choices import Rank
from seewhy.explainers.imaging.decode import PictureSource
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.imaging.render import Style
from seewhy.explainers.imaging.sheets import sheet
from seewhy.explainers.inspection.statistics import Statistics, statistics
from seewhy.explainers.layers.feature_maps import FeatureMaps, GridMaps, grid_axes
from seewhy.explainers.layers.survey_cache import surveyed_maps
from seewhy.explainers.results.array_files import ArrayFile, ArrayForm
from seewhy.explainers.results.display import Canvas, Result, must_show, picture_of
from seewhy.explainers.tasks.pose import named_ask, task_of
from seewhy.explainers.view import prepare


@dataclass(frozen=True, eq=False)
class CapturedTensor:
    """One tensor of a layer.

    Attributes:
        layer: path; empty for the model itself.
        kind: input, output, grad_input, grad_output or parameter_grad.
        call: 0 for the layer's first call; None for a parameter, whose gradient is the sum over all calls.
        name: name of the parameter; or the index among several arguments or outputs.
        tensor: on the CPU; None if no gradient flowed.
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

    @property
    def statistics(self) -> Statistics | None:
        """Statistics of the tensor; None without one."""
        return None if self.tensor is None else statistics(self.tensor)


@dataclass(frozen=True, eq=False)
class Capture(Result, Answered):
    """Activations and gradients of chosen layers; `save` writes ``.npz``, ``.safetensors`` and pictures of a `sheet`.

    Attributes:
        tensors: ordered by layer in module order, kind and call.
        target: target of the gradients: a class index, or a place in the picture.
        outputs: (K, ...) float32, as the model's task reads them.
        image_size: (H, W) of the model's input, whose aspect ratio distinguishes feature maps from other tensors.
        views: how the outputs of layers hold feature maps, as far as the model's survey knows.
        canvas: the picture and its geometry, for `sheet`; None in a capture of a tensor.
    """

    tensors: tuple[CapturedTensor, ...]
    target: Any
    outputs: Tensor
    image_size: tuple[int, int]
    views: Mapping[str, FeatureMaps | None] = field(default_factory=dict)
    canvas: Canvas | None = None

    @property
    def arrays(self) -> dict[str, Tensor]:
        """The tensors by key, without missing gradients."""
        return {item.key: item.tensor for item in self.tensors if item.tensor is not None}

    def file(self, form: ArrayForm) -> ArrayFile:
        """Return `arrays` as an npz or safetensors file that can be written piece by piece.

        NumPy has no bfloat16; in an npz file such a tensor is float32.
        """
        return ArrayFile(form, self.arrays)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the tensors keep: each storage once, even if several tensors share it."""
        storages = {item.untyped_storage().data_ptr(): item.untyped_storage().nbytes() for item in self.arrays.values()}
        return sum(storages.values())

    def sheet(self, top: int = 16, rank: Rank = "activation", **style: Any) -> Image.Image:
        """Draw the strongest feature maps, ranked and labelled, over the part of the picture that the model saw.

        Args:
            top: maximum number of maps to draw, at least 1.
            rank: ``activation`` for the mean magnitude, or ``effect`` (see `strongest`).
            style: see `render.Style`.

        Returns:
            The sheet, RGB.

        Raises:
            LayerError: no captured tensor is a feature map.
            OptionError: a value out of bounds, an unknown name, or the kinds for `rank` were not captured.
            PictureError: the capture is of a tensor.
        """
        must_show(top)
        if rank not in ("activation", "effect"):
            raise OptionError(f"There is no rank {rank!r}; choose activation or effect.", field="rank")
        by_effect = rank == "effect"
        if by_effect and not {"output", "grad_output"} <= {item.kind for item in self.tensors}:
            raise OptionError("The rank by effect needs the kinds output and grad_output; capture both.", field="rank")
        picture, geometry = picture_of(self.canvas)
        return contact_sheet(strongest(self, top, by_effect), picture, geometry, Style(**style), by_effect)

    def _file_picture(self, **drawing: Any) -> Image.Image:
        return self.sheet(**drawing)

    @property
    def _number_files(self) -> dict[str, Callable[[], Iterator[bytes]]]:
        return {".npz": self.file("npz").pieces, ".safetensors": self.file("safetensors").pieces}

    def __repr__(self) -> str:
        keys = [item.key for item in self.tensors]
        listing = ", ".join(keys[:5]) + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")
        return f"Capture({listing}; target {self.target})"


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """One channel of a captured tensor.

    Attributes:
        source: the tensor.
        channel: its index.
        strength: the value by which it is ranked.
        map: (h, w) float32.
    """

    source: CapturedTensor
    channel: int
    strength: float
    map: Tensor


def capture(
    model: Model,
    picture: PictureSource,
    layers: ModuleSelector | Iterable[ModuleSelector],
    kinds: Kind | Iterable[Kind] = ("output",),
    target: int | str | None = None,
    max_bytes: int | None = None,
) -> Capture:
    """Capture activations and gradients of layers for a picture.

    Args:
        model: a `LoadedModel`; left unchanged.
        picture: a path, bytes, PIL image or array; see `read_picture`.
        layers: one or more paths, globs, types, modules or predicates.
        kinds: one or more of input, output, grad_input, grad_output, parameter_grad.
        target: class index or label whose logit is differentiated; None for the most probable class.
        max_bytes: maximum size of all tensors together, in bytes; None for no limit.

    Returns:
        The tensors, on the CPU.

    Raises:
        CaptureTooLargeError: the tensors exceed `max_bytes`; raised before any tensor is stored.
        LayerError: the model does not have the layer, or no layer runs.
        PictureError, TargetError: as in `explain`.
    """
    view = prepare(model, picture)
    if isinstance(layers, str | nn.Module) or not isinstance(layers, Iterable):
        layers = (layers,)
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    tensors = capture_images(
        model,
        view.images(model.device),
        tuple(layers),
        kinds,
        named_ask(model.task, target).placed(view.geometry),
        max_bytes,
    )
    return replace(tensors, canvas=(view.picture, view.geometry))


def capture_images(
    model: AnyModel,
    images: Tensor,
    layers: tuple[ModuleSelector, ...],
    kinds: tuple[Kind, ...] = ("output",),
    ask: Ask = DEFAULT_ASK,
    max_bytes: int | None = None,
    progress: Progress = SILENT,
    claim: Callable[[int], None] = lambda size: None,
) -> Capture:
    """Capture activations and gradients of layers for a normalised picture.

    Args:
        model: an `nn.Module` that returns logits (1, K), or a `LoadedModel`; left unchanged.
        images: (1, C, H, W) floating, on the model's device.
        layers, kinds, max_bytes: as in `capture`.
        ask: the target whose score is differentiated, including its contrast.
        progress: its `cancel` is called between two passes through the model.
        claim: called with the bytes that the tensors will take, before any is kept; an exception ends the capture.

    Raises:
        CaptureTooLargeError, LayerError, TargetError, ModelOutputError: as in `capture`.
    """
    image_size = (images.shape[2], images.shape[3])
    with ready(model, images) as (module, inputs):
        paths, size = _check_layers(module, inputs, layers, kinds, max_bytes)
        claim(size)
        progress.cancel()
        backward = any(kind in GRADIENTS for kind in kinds)
        with torch.set_grad_enabled(backward), HookSession(module) as hooks:
            hooks.record(*paths, kinds=kinds)
            task = task_of(model)
            outputs = checked_finite(task.outputs(module(inputs.clone())))
            objective = task.objective(outputs, ask)
            if backward:
                progress.cancel()
                hooks.backward(objective.scores(outputs).sum())
    tensors = tuple(_captured(hooks, paths))
    views = surveyed_maps(model)
    return Capture(tensors, objective.first, outputs[0].detach().float().cpu(), image_size, views)


def _captured(hooks: HookSession, paths: Sequence[str]) -> Iterator[CapturedTensor]:
    """Yield what a session has recorded, by layer, kind and call."""
    records = hooks.records
    for path in paths:
        for kind, by_path in records.items():
            for call, value in enumerate(by_path.get(path, [])):
                leaves = tree_flatten(value)[0]
                for index, leaf in enumerate(leaves):
                    # Numbers among the tensors count, so that a gradient has the name of its tensor.
                    name = None if len(leaves) == 1 else str(index)
                    if isinstance(leaf, Tensor) or (leaf is None and kind in GRADIENTS):
                        yield CapturedTensor(path, kind, call, name, _on_cpu(leaf))
        for name, gradient in hooks.parameter_grads.get(path, {}).items():
            yield CapturedTensor(path, "parameter_grad", None, name, _on_cpu(gradient))


def strongest(captured: Capture, count: int, by_effect: bool = False) -> list[FeatureMap]:
    """Return the strongest feature maps of all captured grids.

    Args:
        captured: the tensors.
        count: maximum number of maps to return.
        by_effect: rank by the magnitude of the sum of activation times gradient, a first-order estimate of the map's
            effect on the target's logit, which needs ``output`` and ``grad_output``; otherwise by the mean magnitude.

    Raises:
        LayerError: no captured tensor is a grid over the picture.
    """
    features: list[FeatureMap] = []
    gradients = {
        (item.layer, item.call, item.name): item.tensor for item in captured.tensors if item.kind == "grad_output"
    }
    for item, tensor, view in _grids(captured):
        maps = view.of(tensor)[0].float()
        strengths = maps.abs().mean(dim=(1, 2))
        if by_effect:
            gradient = gradients.get((item.layer, item.call, item.name))
            if item.kind != "output" or gradient is None:
                continue
            strengths = (maps * view.of(gradient)[0].float()).sum(dim=(1, 2))
        features += [
            FeatureMap(item, channel, strength, maps[channel]) for channel, strength in enumerate(strengths.tolist())
        ]
    if not features:
        raise LayerError(
            f"No captured tensor is a grid of features over the picture; choose a layer that {LAYER_LIST} marks as "
            "usable for a CAM, or another format."
        )
    features.sort(key=lambda feature: -abs(feature.strength))
    return features[:count]


def _grids(captured: Capture) -> Iterator[tuple[CapturedTensor, Tensor, FeatureMaps]]:
    """Yield the captured tensors of one picture that hold feature maps, with their views."""
    for item in captured.tensors:
        if item.tensor is None or item.kind == "parameter_grad":
            continue
        shape = tuple(item.tensor.shape)
        surveyed = item.name is None and item.kind in ("output", "grad_output") and item.layer in captured.views
        likely = grid_axes(shape, captured.image_size)
        view = captured.views[item.layer] if surveyed else likely and GridMaps(likely)
        if view is not None and len(item.tensor) == 1:
            yield item, item.tensor, view


def _check_layers(
    module: nn.Module,
    inputs: Tensor,
    layers: tuple[ModuleSelector, ...],
    kinds: tuple[Kind, ...],
    max_bytes: int | None,
) -> tuple[tuple[str, ...], int]:
    """Run the model once without storing anything; return the paths, and the bytes of their tensors."""
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
    parameters = [value for path in paths for value in modules[path].parameters(recurse=False)]
    if set(kinds) == {"parameter_grad"} and not any(is_differentiable(value) for value in parameters):
        names = ", ".join(path or "the model" for path in paths[:5])
        raise LayerError(f"{names} has no parameters of its own; name a layer that does, or capture another kind.")
    for path in paths if set(kinds) != {"parameter_grad"} else ():
        if path not in ran and ((path or ".") in layers or path in layers or not ran):
            raise LayerError(never_runs(path))
    total = sum(sizes.get(modules[path], 0) for path in paths)  # a module of several names is recorded under each
    if "parameter_grad" in kinds:
        total += sum(value.nbytes for value in parameters if is_differentiable(value))
    if max_bytes is not None and total > max_bytes:
        raise CaptureTooLargeError(
            f"The capture would take {total:,} bytes, more than the {max_bytes:,} allowed; name fewer layers or kinds."
        )
    return paths, total


def _on_cpu(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.cpu()


def contact_sheet(
    maps: Sequence[FeatureMap], picture: Image.Image, geometry: Geometry, style: Style, by_effect: bool = False
) -> Image.Image:
    """Draw feature maps, each to its own maximum, over the part of the picture that the model saw.

    Args:
        maps: the first one is drawn first.
        picture: the upright upload, or a smaller copy of it.
        geometry: geometry of the upload.
        style: its `max_side` is that of the sheet.
        by_effect: whether the maps are ranked by effect, as in `strongest`.
    """
    sources = {(feature.source.layer, feature.source.kind, feature.source.call) for feature in maps}
    captions = []
    for rank, feature in enumerate(maps, start=1):
        where = f"{feature.source.key} " if len(sources) > 1 else ""
        captions.append(f"{rank}. {where}ch {feature.channel}: {feature.strength:.3g}")
    subject = maps[0].source.key if len(sources) == 1 else f"{len(sources)} captured tensors"
    measure = "effect on the logit" if by_effect else "mean magnitude"
    title = f"{subject}: {len(maps)} strongest by {measure}"
    return sheet([feature.map.numpy() for feature in maps], captions, title, picture, geometry, style)

"""Embeddings: the inputs of a network's head for two pictures, and the cells of the layers that they consist of."""

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from seewhy.explainers.core.model import Model
from seewhy.explainers.core.question import Question, checked_rows
from seewhy.explainers.errors import LayerError, UnsuitableModelError
from seewhy.explainers.hooks.session import HookSession
from seewhy.explainers.layers.survey import Layer, Survey
from seewhy.explainers.layers.survey_cache import survey_of

_TOKEN_LAYERS = 32
"""Maximum number of layers of tokens to look at: more than a block has, and few enough to keep their gradients."""


_OTHERWISE = "Choose a model that turns a picture into one vector, such as a classifier."

Pictures = tuple[Tensor, Tensor]
"""A tensor of each picture."""


class Anatomy(NamedTuple):
    """The place where a network makes its embedding.

    Attributes:
        head: path of the last linear layer, whose input is the embedding; None if the outputs are.
        layers: paths of the layers whose cells may make it, the likeliest last: grids, or else sequences of tokens.
    """

    head: str | None
    layers: tuple[str, ...]


class Cells(NamedTuple):
    """The cells of a layer for both pictures.

    Attributes:
        features: (C, h, w) float64 of each picture.
        gradients: likewise those of the embeddings' dot product; None if none flows.
    """

    features: Pictures
    gradients: tuple[Tensor | None, Tensor | None]


def anatomy_of(model: Model) -> Anatomy:
    """Return the place where a model makes its embedding.

    Raises:
        UnsuitableModelError: none of its layers has cells of the picture, or it makes no vector of a picture.
    """
    head = _head(model)
    whole = model.survey.layers[0].output_shape if model.survey.layers else None
    if head is None and whole is not None and not _length(whole):
        raise UnsuitableModelError(
            f"The model has no embedding: it has no linear head, and its outputs are {whole} instead of a vector. "
            f"{_OTHERWISE}"
        )
    size = len(model.labels) if head is None or head.input_shape is None else head.input_shape[1]
    layers = [layer for layer in model.survey.layers if layer.calls == 1 and layer.path]
    grids = [layer for layer in layers if layer.cam and size in _sizes(layer)]
    tokens = [layer for layer in layers if layer.tokens and layer.output_shape and layer.output_shape[2] == size]
    defaults = [layer for layer in layers if layer.default and layer.grid][-1:]
    if defaults:
        sources = defaults if defaults[0] in grids else [*grids[-1:], *defaults]
    else:
        sources = tokens[-_TOKEN_LAYERS:] or grids[-1:]
    if not sources:
        raise UnsuitableModelError(
            f"No layer has cells of the picture that the embedding could be computed from. {model.no_default_layer}"
        )
    return Anatomy(None if head is None else head.path, tuple(layer.path for layer in sources))


def _head(model: Model) -> Layer | None:
    """Return the last linear layer, or convolution of one cell, if it makes the outputs of one vector a picture."""
    modules = dict(model.module.named_modules())
    for layer in reversed(model.survey.layers):
        if isinstance(modules.get(layer.path), nn.Linear | nn.Conv2d):
            makes_outputs = _length(layer.output_shape) == len(model.labels)
            return layer if layer.calls == 1 and _length(layer.input_shape) and makes_outputs else None
    return None


def _length(shape: tuple[int, ...] | None) -> int:
    """Return the length of a vector (1, F) or (1, F, 1, 1); 0 for other shapes."""
    return shape[1] if shape is not None and len(shape) > 1 and math.prod(shape) == shape[1] else 0


def _sizes(layer: Layer) -> tuple[int, int]:
    """Return the sizes of two embeddings: the average of a grid's cells, and the list of them."""
    if layer.grid is None or layer.output_shape is None:
        return 0, 0
    channels = layer.output_shape[layer.grid.axes[0]]
    return channels, channels * layer.cells


def read(question: Question, model: Model, anatomy: Anatomy, pictures: Pictures) -> tuple[Pictures, dict[str, Cells]]:
    """Run a model on two pictures, one after the other, and back from the dot product of their embeddings.

    Args:
        question: question of the first picture.
        model: model of the question.
        anatomy: anatomy of the model.
        pictures: each (1, C, H, W).

    Returns:
        The embeddings, (F,) float64 of each picture; and the cells by path of the layer.

    Raises:
        LayerError: one of the layers does not run once for each picture, or the head reads no vector.
        ModelOutputError: the model returns no outputs, or NaN.
    """
    embeddings: list[Tensor] = []
    same_size = pictures[0].shape == pictures[1].shape
    module, run = question.host(anatomy.layers) if same_size else (question.module, question.run_copy)
    with torch.enable_grad(), HookSession(module) as hooks:
        if anatomy.head is not None:
            hooks.before_forward(partial(_keep_input, embeddings), anatomy.head, with_kwargs=True)
        hooks.record(*anatomy.layers, kinds=("output", "grad_output"))
        # One at a time, so that neither picture's numbers depend on the other's.
        for count, picture in enumerate(pictures):
            question.progress.at(count, len(pictures) + 1)
            outputs = question.outputs(run(picture))
            if anatomy.head is None:
                embeddings.append(outputs)
        first, second = _vectors(embeddings)
        question.progress.at(len(pictures), len(pictures) + 1)
        hooks.backward(_product(first, second))
        tensors, gradients = hooks.outputs, hooks.grad_outputs
    surveys = [_survey(question, model, picture) for picture in pictures]
    cells = {path: _cells(path, surveys, tensors[path], gradients[path]) for path in anatomy.layers}
    return (_exact(first), _exact(second)), cells


def embed(question: Question, anatomy: Anatomy, pictures: Tensor) -> Tensor:
    """Return the embeddings (R, F) of pictures (R, C, H, W) as large as those of the question, without a graph.

    Raises:
        ModelOutputError: the model returns no outputs, a wrong number of them, or NaN.
    """
    (module, run), embeddings = question.host(anatomy.layers), list[Tensor]()
    with torch.no_grad(), HookSession(module) as hooks:
        if anatomy.head is not None:
            hooks.before_forward(partial(_keep_input, embeddings), anatomy.head, with_kwargs=True)
        outputs = question.outputs(run(pictures))
    return checked_rows((embeddings or [outputs])[0], pictures).flatten(1)


def _keep_input(inputs: list[Tensor], _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Keep a copy of a module's only tensor, because the model may modify it in place."""
    inputs += [leaf.clone() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]


def _vectors(embeddings: list[Tensor]) -> Pictures:
    """Return the embeddings (F,) of two pictures.

    Raises:
        UnsuitableModelError: the tensors are not such vectors.
    """
    if [_length(tuple(tensor.shape)) > 0 for tensor in embeddings] != [True, True]:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in embeddings) or "nothing"
        raise UnsuitableModelError(f"Expected a vector for each picture before the head, got {shapes}. {_OTHERWISE}")
    return embeddings[0].flatten(), embeddings[1].flatten()


def _product(first: Tensor, second: Tensor) -> Tensor:
    """Return the cosine of two embeddings as a product, whose lengths have no gradient.

    The gradient of the cosine itself is orthogonal to each embedding: times the features it would sum to 0.
    """
    lengths = first.detach().float().norm() * second.detach().float().norm()
    return (first.float() * second.float()).sum() / torch.where(lengths > 0, lengths, 1.0)


def _survey(question: Question, model: Model, picture: Tensor) -> Survey:
    channels, height, width = picture.shape[1:]
    return survey_of(model, (channels, height, width), question.task.outputs, question.progress.cancel)


def _cells(path: str, surveys: list[Survey], tensors: list[Any], gradients: list[Any]) -> Cells:
    """Return the cells of a layer, given its outputs and their gradients of both pictures."""
    if len(tensors) != len(surveys) or not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise LayerError(f"Layer {path!r} did not run once for each picture, or did not return a single tensor.")
    layers = [next((layer for layer in survey.layers if layer.path == path), None) for survey in surveys]
    pairs = list(zip(layers, tensors, gradients, strict=True))
    first, second = (_grid(path, layer, tensor) for layer, tensor, _ in pairs)
    slopes = [None if gradient is None else _grid(path, layer, gradient) for layer, _, gradient in pairs]
    return Cells((first, second), (slopes[0], slopes[1]))


def _grid(path: str, layer: Layer | None, tensor: Tensor) -> Tensor:
    """Return a layer's output of one picture as (C, h, w) float64.

    Raises:
        LayerError: it is neither a grid nor a sequence of patches.
    """
    maps = None if layer is None else layer.maps
    if layer is None or maps is None or tuple(tensor.shape) != layer.output_shape:
        raise LayerError(f"The output of layer {path!r} is {tuple(tensor.shape)}, which has no cells of the picture.")
    return _exact(maps.of(tensor)[0])


def _exact(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()

"""A model from a module in memory, with its preprocessing and the labels of its classes."""

from collections.abc import Sequence

import torch
from torch import nn

from seewhy.explainers.errors import ExplainerError
from seewhy.explainers.execution.accelerators import choose
from seewhy.explainers.hooks.evaluation import evaluation_mode
from seewhy.explainers.hooks.registered import remove_leftovers
from seewhy.explainers.tasks.classification import Classification
from seewhy.explainers.tasks.pose import survey
from seewhy.models.errors import ModelError
from seewhy.models.preprocess import Interpolation, Preprocess
from seewhy.models.spec import LoadedModel, ModelSpec


def wrap_model(
    module: nn.Module,
    labels: Sequence[str] | None = None,
    input_size: int | tuple[int, int] = 224,
    resize: int | None = None,
    interpolation: Interpolation = "bilinear",
    mean: tuple[float, ...] = Preprocess.mean,
    std: tuple[float, ...] = Preprocess.std,
    default_layers: Sequence[str] = (),
    name: str | None = None,
    accelerator: str = "auto",
) -> LoadedModel:
    """Return a module as a model for `explain` and all other functions that take a picture.

    Give the preprocessing of its training: with another one, heatmaps explain mistakes of the preprocessing. The model
    uses the module itself, not a copy, switches it to evaluation mode while it runs, and leaves it as it was; the
    module may be trained in between.

    Args:
        module: a classifier: (N, 3, H, W) to logits (N, K), or to a tuple or dictionary that holds them.
        labels: K of them, in the order of the logits; None for ``class 0``, ``class 1`` and so on. Probabilities are
            the softmax of the logits, or the sigmoid of a single one.
        input_size: side of the input in pixels, or (height, width).
        resize: length of a picture's shorter side before the centre crop to `input_size`; None for `input_size`.
        interpolation: of the resize: nearest, bilinear, bicubic or lanczos.
        mean, std: of red, green and blue in [0, 1], for the normalisation; by default those of ImageNet.
        default_layers: paths of the layers that CAMs use by default; empty to find them.
        name: of the model; None for that of the module's class.
        accelerator: see `load_model`.

    Returns:
        The model; its `module` is the given one.

    Raises:
        ModelError: the module fails on a picture of this size, returns no logits, or not one for each label.
        OptionError: an accelerator that is unknown or not installed.
    """
    if not isinstance(module, nn.Module):
        raise ModelError(f"A torch.nn.Module is needed, not {type(module).__name__}; `load_model` takes names.")
    for part in module.modules():
        remove_leftovers(part)
    size = (input_size, input_size) if isinstance(input_size, int) else input_size
    preprocess = Preprocess(size, (resize, resize) if resize else size, "shorter", interpolation, mean, std)
    name = name or type(module).__name__
    first = next(module.parameters(), torch.empty(0))
    empty = torch.zeros((1, 3, *size), device=first.device, dtype=first.dtype)
    try:
        layers = survey(module, (3, *size), tuple(default_layers))
        with torch.no_grad(), evaluation_mode(module):
            classes = Classification().outputs(module(empty)).shape[1]
    except ExplainerError as error:
        raise ModelError(f"{name}: {error}") from error
    except Exception as error:
        raise ModelError(
            f"{name} raised {type(error).__name__} on a picture of (3, {size[0]}, {size[1]}): {error}"
        ) from error
    names = tuple(labels) if labels is not None else tuple(f"class {index}" for index in range(classes))
    if len(names) != classes:
        hint = " One logit has one label, that of the class whose probability is its sigmoid." if classes == 1 else ""
        raise ModelError(f"{name} has {classes} classes, but {len(names)} labels are given.{hint}")
    spec = ModelSpec(
        name=name,
        source="own",
        licence="own",
        preprocess=preprocess,
        labels=names,
        build=lambda: module,
        fill=lambda *_: None,
        weights=None,
        default_layers=tuple(default_layers),
    )
    return LoadedModel(spec, module, layers, first.device, None, None, choose(accelerator, first.device))

"""A model from a module in memory, with its preprocessing and the labels of its classes."""

from collections.abc import Sequence

import torch
from torch import nn

from seewhy.explainers.errors import ExplainerError
from seewhy.explainers.execution.accelerators import choose
from seewhy.explainers.hooks.evaluation import evaluation_mode
from seewhy.explainers.hooks.registered import remove_leftovers
from seewhy.explainers.tasks.heads import Head, guessed_head, head_fault, task_with
from seewhy.explainers.tasks.pose import survey
from seewhy.models.errors import ModelError
from seewhy.models.preprocess import Interpolation, Preprocess
from seewhy.models.spec import LoadedModel, ModelSpec
from seewhy.models.transforms import Transform, preprocess_of


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
    head: Head | None = None,
    units: str | Sequence[str] = (),
    transform: Transform | None = None,
) -> LoadedModel:
    """Return a module as a model for `explain` and all other functions that take a picture.

    Give the preprocessing of its training: with another one, heatmaps explain mistakes of the preprocessing. The model
    uses the module itself, not a copy, switches it to evaluation mode while it runs, and leaves it as it was; the
    module may be trained in between.

    Args:
        module: (N, C, H, W) to logits or values (N, K) or (N, K, H, W), or to a tuple or dictionary that holds them.
        labels: K of them, in the order of the outputs; None for ``class 0``, ``class 1`` and so on.
        input_size: side of the input in pixels, or (height, width).
        resize: length of a picture's shorter side before the centre crop to `input_size`; None for `input_size`.
        interpolation: of the resize: nearest, bilinear, bicubic or lanczos.
        mean, std: of each channel in [0, 1], for the normalisation; by default those of ImageNet. One number each for a
            network that sees grey; of other channels than one or three, `explain` takes tensors.
        default_layers: paths of the layers that CAMs use by default; empty to find them.
        name: of the model; None for that of the module's class.
        accelerator: see `load_model`.
        head: what the outputs are: logits, of which ``softmax`` makes probabilities where classes exclude each other,
            and ``sigmoid`` where several labels may apply; a ``value`` each, of a regression; or logits at each
            position, of a ``segmentation``. None for that where the module returns ``{"out": (N, K, H, W)}``, otherwise
            for the sigmoid of a single logit and the softmax of several.
        units: of the values, such as ``years``.
        transform: torchvision's or timm's transform of evaluation, instead of the five arguments about the input.

    Returns:
        The model; its `module` is the given one.

    Raises:
        ModelError: the module fails on a picture of this size, returns no logits, or not one for each label; or the
            head does not suit.
        OptionError: an accelerator that is unknown or not installed.
    """
    if not isinstance(module, nn.Module):
        raise ModelError(f"A torch.nn.Module is needed, not {type(module).__name__}; `load_model` takes names.")
    for part in module.modules():
        remove_leftovers(part)
    size = (input_size, input_size) if isinstance(input_size, int) else input_size
    preprocess = Preprocess(size, (resize, resize) if resize else size, "shorter", interpolation, mean, std)
    if len(mean) != len(std):
        raise ModelError(f"mean has {len(mean)} numbers and std {len(std)}; give one of each for every channel.")
    if transform is not None:
        if preprocess != Preprocess((224, 224), (224, 224)):
            raise ModelError("Give `transform`, or the size, interpolation, mean and std, not both.")
        preprocess = preprocess_of(transform)
    shape = (len(preprocess.mean), *preprocess.size)
    name = name or type(module).__name__
    first = next(module.parameters(), torch.empty(0))
    empty = torch.zeros((1, *shape), device=first.device, dtype=first.dtype)
    try:
        with torch.no_grad(), evaluation_mode(module):
            raw = module(empty)
        head = head or guessed_head(raw)
        task = task_with(head, ())
        count = task.outputs(raw).shape[1]
        layers = survey(module, shape, tuple(default_layers), task)
    except ExplainerError as error:
        raise ModelError(f"{name}: {error}") from error
    except Exception as error:
        raise ModelError(f"{name} raised {type(error).__name__} on a picture of {shape}: {error}") from error
    units = (units,) if isinstance(units, str) else tuple(units)
    names = _names(labels, count, head, name)
    if fault := head_fault(head, count, units):
        raise ModelError(f"{name}: {fault}")
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
        declared_head=head,
        units=units,
    )
    return LoadedModel(spec, module, layers, first.device, None, None, choose(accelerator, first.device))


def _names(labels: Sequence[str] | None, count: int, head: Head | None, model: str) -> tuple[str, ...]:
    """Return the names of all outputs.

    Args:
        labels: as given, or None.
        count: of the outputs.
        head, model: for the names and the message.

    Raises:
        ModelError: there is another number of labels.
    """
    kind, kinds = ("output", "values") if head == "value" else ("class", "classes")
    names = tuple(f"{kind} {index}" for index in range(count)) if labels is None else tuple(labels)
    if len(names) != count:
        is_sigmoid = count == 1 and head != "value"
        hint = " One logit has one label, that of the class whose probability is its sigmoid." if is_sigmoid else ""
        if head == "segmentation" and len(names) == 1:
            hint = " A single logit at each position has two, that of the rest first."
        raise ModelError(f"{model} has {count} {kinds}, but {len(names)} labels are given.{hint}")
    return names

"""A model from a module in memory, with its preprocessing and the labels of its classes."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from seewhy.explainers.errors import ExplainerError, counted, given
from seewhy.explainers.execution.accelerators import choose
from seewhy.explainers.hooks.evaluation import evaluation_mode
from seewhy.explainers.hooks.registered import remove_leftovers
from seewhy.explainers.tasks.heads import Head, declared_head, guessed_head, head_fault, task_with
from seewhy.explainers.tasks.pose import survey
from seewhy.models.box_head import BoxHead
from seewhy.models.detectors import DetectorParts, detector_parts, preprocess_of_detector, pyramid
from seewhy.models.errors import ModelError
from seewhy.models.preprocess import Interpolation, Preprocess, Resize, channels_hint, normalisation_fault
from seewhy.models.probabilities import ADVICE, returns_probabilities
from seewhy.models.spec import LoadedModel, ModelSpec
from seewhy.models.transforms import Transform, preprocess_of


def wrap_model(
    module: nn.Module,
    labels: Sequence[str] | None = None,
    input_size: int | tuple[int, int] | None = None,
    resize: int | tuple[int, int] | None = None,
    interpolation: Interpolation = "bilinear",
    mean: tuple[float, ...] = Preprocess.mean,
    std: tuple[float, ...] = Preprocess.std,
    default_layers: Sequence[str] = (),
    name: str | None = None,
    accelerator: str = "auto",
    head: Head | BoxHead | None = None,
    units: str | Sequence[str] = (),
    transform: Transform | None = None,
) -> LoadedModel:
    """Return a module as a model for `explain` and all other functions that take a picture.

    Pass the preprocessing that was used in training; with any other, heatmaps explain the wrong preprocessing. The
    model uses the module itself, not a copy, switches it to evaluation mode while it runs, and restores its state; the
    module may be trained in between.

    Args:
        module: (N, C, H, W) to logits or values (N, K) or (N, K, H, W), or to a tuple or dictionary that contains them.
        labels: K of them, in the order of the outputs; None for ``class 0``, ``class 1`` and so on.
        input_size: side of the input in pixels, or (height, width), as in training. Required, unless `transform` has it
            or the module is a detector of torchvision, which resizes pictures itself.
        resize: length of a picture's shorter side before the centre crop to `input_size`, which cuts off the ends of
            the longer one; or (height, width), which changes the proportions, and then cuts off nothing if it is
            `input_size`. None for `input_size` as the shorter side.
        interpolation: interpolation of the resize: nearest, bilinear, bicubic or lanczos.
        mean, std: mean and standard deviation of each channel in [0, 1], for the normalisation; by default those of
            ImageNet. One number each for a grayscale network. For other numbers of channels, `explain` takes tensors.
        default_layers: paths of the layers that CAMs use by default; empty to choose them automatically.
        name: name of the model; None for the name of the module's class.
        accelerator: see `load_model`.
        head: interpretation of the outputs: ``softmax`` of logits if classes exclude each other, ``sigmoid`` of logits
            if several labels may apply, ``value`` for regression, ``segmentation`` for logits at each position, or a
            `BoxHead` for a detector. None detects torchvision's detectors and modules that return
            ``{"out": (N, K, H, W)}``, and otherwise means the softmax; a single output needs one of the others.
        units: units of the values, such as ``years``.
        transform: the evaluation transform of torchvision or timm, instead of the five arguments about the input.

    Returns:
        The model; its `module` is the given one. (For a torchvision detector, it is a module with the same parts under
        the same paths, which returns all candidates with their logits.)

    Raises:
        ModelError: the size of the input is unknown, or the module fails on a picture of it, does not return one
            logit for each label, or does not match the head; or it has one output and no head.
        OptionError: the accelerator is unknown or not installed.
    """
    if not isinstance(module, nn.Module):
        raise ModelError(f"Expected a torch.nn.Module, got {type(module).__name__}; `load_model` takes names.")
    for part in module.modules():
        remove_leftovers(part)
    name = name or type(module).__name__
    detector = detector_parts(module)
    module = detector or module
    head = head or getattr(module, "box_head", None)
    preprocess = _preprocess(input_size, resize, interpolation, mean, std, transform, detector)
    shape = (len(preprocess.mean), *preprocess.size)
    first = next(module.parameters(), torch.empty(0))
    empty = torch.zeros((1, *shape), device=first.device, dtype=first.dtype)
    try:
        with torch.no_grad(), evaluation_mode(module):
            raw = module(empty)
        box_head = _box_head(head, raw, preprocess.size, detector)
        kind: Head | None = None if isinstance(head, BoxHead) else head or guessed_head(raw)
        task = task_with(kind, (), detector=box_head)
        outputs = task.outputs(raw)
        count = box_head.layout.classes if box_head else outputs.shape[1]
        default_layers = tuple(default_layers) or (pyramid(detector, shape) if detector else ())
        layers = survey(module, shape, default_layers, task)
        head_kind = "detection" if box_head else declared_head(kind, count)
        with evaluation_mode(module):
            is_normalised = returns_probabilities(module, task, head_kind, empty, outputs)
    except (ExplainerError, ModelError) as error:
        raise ModelError(f"{name}: {error}") from error
    except Exception as error:
        hint = channels_hint(module, shape[0])
        text = f"{name} raised {type(error).__name__} on a picture of {shape}: {str(error).rstrip('.')}. {hint}"
        raise ModelError(text.rstrip()) from error
    units = (units,) if isinstance(units, str) else tuple(units)
    names = _names(labels, count, kind, name)
    if fault := head_fault("detection" if box_head else kind, count, units):
        raise ModelError(f"{name}: {fault}")
    if is_normalised:
        warnings.warn(f"{name} {ADVICE}", UserWarning, stacklevel=2)
    spec = ModelSpec(
        name=name,
        source="own",
        licence="own",
        preprocess=preprocess,
        labels=names,
        build=lambda: module,
        fill=lambda *_: None,
        weights=None,
        default_layers=default_layers,
        declared_head=kind,
        units=units,
        box_head=box_head,
    )
    return LoadedModel(spec, module, layers, first.device, None, None, choose(accelerator, first.device))


def _preprocess(
    input_size: int | tuple[int, int] | None,
    resize: int | tuple[int, int] | None,
    interpolation: Interpolation,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    transform: Transform | None,
    detector: DetectorParts | None,
) -> Preprocess:
    """Return the preprocessing that arguments of `wrap_model` describe.

    Raises:
        ModelError: they contradict each other, or the preprocessing of a torchvision detector, which normalises
            pictures itself.
    """
    if input_size is None and transform is None and detector is None:
        raise ModelError("Give input_size, the side or (height, width) of the pictures in training, in pixels.")
    size = (224, 224) if input_size is None else _sides("input_size", input_size)
    scale = size if resize is None else _sides("resize", resize)
    kind: Resize = "exact" if isinstance(resize, tuple | list) else "shorter"
    for name, numbers in (("mean", mean), ("std", std)):
        if not isinstance(numbers, Sequence) or isinstance(numbers, str):
            raise ModelError(f"{name} is {numbers!r}; give a number for each channel, such as {name}=(0.5,).")
    if fault := normalisation_fault(mean, std):
        raise ModelError(fault)
    preprocess = Preprocess(size, scale, kind, interpolation, tuple(mean), tuple(std))
    default = Preprocess((224, 224), (224, 224))
    if transform is not None:
        if preprocess != default:
            raise ModelError("Give `transform`, or the size, interpolation, mean and std, not both.")
        return preprocess_of(transform)
    if detector is None:
        return preprocess
    if replace(preprocess, size=default.size, scale_size=default.scale_size) != default or resize is not None:
        raise ModelError("Torchvision's detectors resize and normalise pictures; pass only `input_size`.")
    base = preprocess_of_detector(detector)
    return base if input_size is None else replace(base, size=size, scale_size=size)


def _sides(name: str, value: Any) -> tuple[int, int]:
    """Return (height, width), given these or the side of a square, in pixels."""
    sides = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise ModelError(f"{name} is {value!r}; give the side, or (height, width), in pixels.")
    return sides


def _box_head(
    head: Head | BoxHead | None, raw: Any, size: tuple[int, int], detector: DetectorParts | None
) -> BoxHead | None:
    """Return the head of a detector; None for other modules.

    Raises:
        ModelError: a detector of torchvision with a head, or another detector without one.
    """
    if detector is not None:
        if head not in ("detection", detector.box_head):
            raise ModelError("SeeWhy knows the head of torchvision's detectors; omit `head`.")
        return detector.box_head
    if head == "detection":
        raise ModelError("A custom detector needs a function that reads its boxes; pass head=BoxHead(decode).")
    return head.fitted(raw, size) if isinstance(head, BoxHead) else None


def _names(labels: Sequence[str] | None, count: int, head: Head | None, model: str) -> tuple[str, ...]:
    """Return the names of all outputs.

    Args:
        labels: as given, or None.
        count: number of outputs.
        head, model: for the names and the message.

    Raises:
        ModelError: there is another number of labels.
    """
    kind = "output" if head == "value" else "class"
    counts = counted(count, "value") if head == "value" else counted(count, "class", "classes")
    if labels is not None and (isinstance(labels, str) or not isinstance(labels, Iterable)):
        raise ModelError(f"labels is {labels!r}; give a list with a name for each of the {counts}.")
    names = tuple(f"{kind} {index}" for index in range(count)) if labels is None else tuple(labels)
    if len(names) != count:
        is_sigmoid = count == 1 and head != "value"
        hint = " One logit has one label, that of the class whose probability is its sigmoid." if is_sigmoid else ""
        if head == "segmentation" and len(names) == 1:
            hint = " A single logit at each position needs two labels, the one for the rest first."
        raise ModelError(f"{model} has {counts}, but {given(len(names), 'label')}.{hint}")
    return names

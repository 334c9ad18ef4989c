"""The preprocessing of a transform of torchvision or timm, read from its steps and tried on a picture."""

from collections.abc import Callable, Iterator
from typing import Any, get_args

import torch
from PIL import Image
from torch import Tensor

from seewhy.models.errors import ModelError
from seewhy.models.preprocess import Interpolation, Preprocess

_LIBRARIES = ("torchvision.transforms", "timm.data")

_TO_TENSOR = {"ToTensor", "MaybeToTensor", "PILToTensor", "MaybePILToTensor", "ToImage", "ConvertImageDtype", "ToDtype"}
"""Steps that change the type of the picture, and scale it to [0, 1]."""

_NEAR = 2.5 / 255
"""Largest difference of an input from the transform's, in levels of [0, 1]: tensors are resized with other rounding."""

Transform = Callable[[Image.Image], Any]


def preprocess_of(transform: Transform) -> Preprocess:
    """Return the preprocessing of an evaluation transform: resize, centre crop, scale to [0, 1], normalise.

    Args:
        transform: a `Compose` of torchvision or timm, or the `transforms()` of torchvision's weights.

    Raises:
        ModelError: the transform has another or a random step, or no fixed size; or its result differs from that of its
            steps.
    """
    is_preset = all(hasattr(transform, name) for name in ("crop_size", "resize_size", "mean", "std", "interpolation"))
    preprocess = preset_of(transform) if is_preset else _from_steps(list(_steps(transform)))
    _try(transform, preprocess)
    return preprocess


def preset_of(preset: Any) -> Preprocess:
    """Return the preprocessing of `Weights.transforms()`; those of segmenters do not crop."""
    (resize,), (crop,) = preset.resize_size, getattr(preset, "crop_size", preset.resize_size)
    kind = _interpolation(preset.interpolation)
    return Preprocess((crop, crop), (resize, resize), "shorter", kind, tuple(preset.mean), tuple(preset.std))


def _steps(transform: Any) -> Iterator[Any]:
    inner = getattr(transform, "transforms", None)
    if inner is None:
        yield transform
        return
    for step in inner:
        yield from _steps(step)


def _from_steps(steps: list[Any]) -> Preprocess:
    size: tuple[int, int] | None = None
    scale: tuple[int, int] | None = None
    kind: Interpolation = "bilinear"
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    for step in steps:
        name = type(step).__name__
        if not type(step).__module__.startswith(_LIBRARIES):
            raise ModelError(f"The transform has a custom step, {name}; {_INSTEAD}")
        if name == "Resize" and step.max_size is None and size is None:
            sides = (step.size,) if isinstance(step.size, int) else tuple(step.size)
            scale = (sides[0], sides[-1])
            size = scale if len(sides) == 2 else None
            kind = _interpolation(step.interpolation)
        elif name == "CenterCrop" and scale is not None:
            sides = (step.size,) if isinstance(step.size, int) else tuple(step.size)
            exact, size = size, (sides[0], sides[-1])
            if exact not in (None, size):
                raise ModelError(f"The transform both changes proportions and crops; {_INSTEAD}")
        elif name == "Normalize":
            mean, std = (tuple(float(number) for number in numbers) for numbers in (step.mean, step.std))
        elif name == "Grayscale" and step.num_output_channels == 1:
            mean, std = mean[:1], std[:1]
        elif name.startswith("Random") or "Random" in name:
            raise ModelError(f"This is a training transform: {name} is random. Pass the transform for evaluation.")
        elif name not in _TO_TENSOR and name not in ("RGB", "Identity"):
            raise ModelError(f"Maps cannot be placed back on the picture through the step {name}; {_INSTEAD}")
    if size is None or scale is None:
        raise ModelError(_unsized(scale))
    exact_size = size == scale and not any(type(step).__name__ == "CenterCrop" for step in steps)
    return Preprocess(size, scale, "exact" if exact_size else "shorter", kind, mean, std)


def _unsized(scale: tuple[int, int] | None) -> str:
    """Return what is wrong with a transform without a fixed size; `scale` is that of its `Resize`, if it has one."""
    side = 224 if scale is None else scale[0]
    fault = "has no `Resize`" if scale is None else f"has `Resize({side})`, which sets only the shorter side"
    return (
        f"The transform {fault}, so its input has no fixed size. As in training, use "
        f"`Resize(({side}, {side}))`, or `Resize({side})` and `CenterCrop({side})`."
    )


_INSTEAD = "give `input_size`, `resize`, `interpolation`, `mean` and `std` instead."


def _interpolation(mode: Any) -> Interpolation:
    """Return the name of an interpolation of torchvision's or Pillow's enumeration."""
    name = str(getattr(mode, "value", mode)) if not isinstance(mode, int) else Image.Resampling(mode).name.lower()
    for interpolation in get_args(Interpolation):
        if name == interpolation:
            return interpolation  # type: ignore[no-any-return]
    raise ModelError(f"The transform's interpolation {name!r} is unknown; {_INSTEAD}")


def _try(transform: Transform, preprocess: Preprocess) -> None:
    """Compare the transform with the preprocessing read from it, on a picture of noise at two scales.

    Raises:
        ModelError: they give different inputs.
    """
    side = 2 * max(preprocess.scale_size)
    picture = Image.effect_noise((side, side * 3 // 4), 80).resize((side + 20, side)).convert("RGB")
    expected = transform(picture)
    result = preprocess(picture)
    if not isinstance(expected, Tensor):
        raise ModelError("The transform does not return a tensor; add `ToTensor()` after the resize.")
    if expected.shape != result.shape:
        if len(result) == 1 and len(expected) > 1:
            raise ModelError(
                "The transform gives a colour picture to a model that sees grey; begin it with `Grayscale()`."
            )
        raise ModelError(f"The transform does not return a tensor of shape {tuple(result.shape)}; {_INSTEAD}")
    std = torch.tensor(preprocess.std)[:, None, None]
    if ((expected.float() - result) * std).abs().max() > _NEAR:
        raise ModelError(f"The transform's numbers differ from those of its steps; {_INSTEAD}")

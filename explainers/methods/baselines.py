"""Baselines, to compare pictures with and to hide pixels; and Gaussian blur."""

import math
from typing import Annotated, Literal

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from seewhy.explainers.core.model import AnyModel
from seewhy.explainers.core.question import widened
from seewhy.explainers.errors import OptionError

PlainBaseline = Literal["zero", "black", "mean", "blur"]
Baseline = Literal["zero", "black", "mean", "blur", "given"]

PLAIN = (
    "`zero`: zeros of the normalised input, for most models the mean colour of their training pictures. `black`: "
    "black, for models with known normalisation. `mean`: the picture's mean colour. `blur`: the blurred picture."
)
BASELINES = f"Baseline to compare the picture with. {PLAIN} `given`: the colour in `value`."

BLUR = 0.1
"""Standard deviation of the blur of ``blur``, as a share of the picture's shorter side."""

_LEAST = 1e-4
"""Least share of a wave that a blur leaves; below it are the traces of the Gaussian's ends."""


def _as_list(value: object) -> object:
    """Return a list of one number, or of the numbers in a text from a form or command line."""
    if isinstance(value, str):
        return value.split(",")
    return [value] if isinstance(value, int | float) else value


Colour = Annotated[
    tuple[Annotated[float, Field(ge=-1e4, le=1e4, allow_inf_nan=False)], ...],
    BeforeValidator(_as_list),
    Field(
        max_length=64,
        description="Colour for `baseline=given` in normalised units: one number, or one per channel (`0.1,0.2,0.3`).",
    ),
]


def baseline_of(
    images: Tensor, baseline: Baseline, model: AnyModel | None = None, value: tuple[float, ...] = ()
) -> Tensor:
    """Return the baselines of pictures, (N, C, H, W), in float32 at least.

    Args:
        images: (N, C, H, W), normalised.
        baseline: see `BASELINES`.
        model: for ``black``: a model that knows the normalisation, such as a `LoadedModel`.
        value: only for ``given``: in normalised units, one number or one per channel.

    Raises:
        OptionError: a wrong number of values, or ``black`` for a model of unknown normalisation.
    """
    images = widened(images)
    if baseline != "given" and value:
        raise OptionError(f"`value` is the colour of `baseline=given`, not of {baseline!r}; leave out one.", "value")
    if baseline == "zero":
        return torch.zeros_like(images)
    if baseline == "mean":
        return images.mean(dim=(2, 3), keepdim=True).expand_as(images)
    if baseline == "blur":
        return blurred(images, BLUR * min(images.shape[2:]))
    if baseline == "black":
        return _of_colour(_black(model), images, "baseline")
    return _of_colour(value, images, "value")


def _black(model: AnyModel | None) -> tuple[float, ...]:
    if model is None or isinstance(model, nn.Module):
        raise OptionError(
            "A bare module does not say how its pictures are normalised, so black is unknown; pass a model from "
            "`load_model`, or `baseline=given` with the normalised `value` of black, (0 - mean) / std.",
            "baseline",
        )
    return tuple(-middle / spread for middle, spread in zip(model.preprocess.mean, model.preprocess.std, strict=True))


def _of_colour(colour: tuple[float, ...], images: Tensor, field: str) -> Tensor:
    channels = images.shape[1]
    if len(colour) not in (1, channels):
        raise OptionError(
            f"The baseline's colour has {len(colour)} values; give one, or one for each of the {channels} channels.",
            field,
        )
    return images.new_tensor(colour).view(1, -1, 1, 1).expand_as(images)


def blurred(images: Tensor, sigma: float) -> Tensor:
    """Return pictures (..., H, W) blurred by a Gaussian of `sigma` pixels, mirrored at their borders.

    Border pixels are mirrored too, as if heat could not leave the picture: blurring keeps the mean of each channel,
    adds no new extremes, and tends to the mean colour.
    """
    if sigma == 0:
        return images
    height, width = images.shape[-2:]
    rows = _waves(height, sigma, images)
    columns = rows if width == height else _waves(width, sigma, images)
    return rows.mT @ (rows @ images @ columns.mT) @ columns


def _waves(size: int, sigma: float, like: Tensor) -> Tensor:
    """Return (waves, size): the cosines that blur a line of pixels as ``waves.T @ waves``.

    The Gaussian reaches up to 4 sigma. Cosines (of DCT-II) are the eigenvectors of blurring with mirrored ends, and a
    wide blur leaves only a few low ones, so products with them are much cheaper than with a matrix (size, size).
    """
    reach = max(1, int(4 * sigma + 0.5))
    offsets = torch.arange(reach + 1).double()
    weights = torch.exp(-0.5 * (offsets / sigma) ** 2)
    weights[1:] *= 2  # to both sides
    frequencies = torch.arange(size).double()[:, None] * (math.pi / size)
    shares = torch.cos(frequencies * offsets) @ (weights / weights.sum())
    count = int((shares > _LEAST).nonzero().max()) + 1
    waves = torch.cos(frequencies[:count] * (torch.arange(size) + 0.5)) * math.sqrt(2 / size)
    waves[0] *= math.sqrt(0.5)
    return (waves * shares[:count, None].clamp_min(0).sqrt()).to(like)

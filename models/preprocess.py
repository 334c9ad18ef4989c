"""Preprocessing: from an upright RGB picture to the model's input, and which part of the picture that is."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from seewhy.explainers.errors import UnreadablePictureError, counted
from seewhy.explainers.imaging.geometry import Geometry

Resize = Literal["shorter", "longer", "exact"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]

_MODES = {1: "L", 3: "RGB"}
"""Pillow's mode of a picture, by its number of channels."""

# A strip of one pixel by a million would be resized to gigabytes. If the resized picture is this many times the crop,
# only the crop is computed, which differs by roundings of the box and of samples.
_LARGEST = 32

# A smaller copy has at least this many times the pixels of the resized picture, along either side.
_LEAST = 2


@dataclass(frozen=True)
class Preprocess:
    """Resize, centre crop, scale to [0, 1], normalise, with the same numbers as torchvision and timm.

    Attributes:
        size: (height, width) of the model's input, in pixels.
        scale_size: (height, width) to resize to before the crop.
        resize: ``shorter`` keeps the proportions and covers `scale_size`, so that the crop loses the ends of the longer
            side; ``longer`` keeps them and fits inside it, padded; ``exact`` changes the proportions.
        interpolation: interpolation of the resize, with antialiasing.
        mean, std: mean and standard deviation per channel, for values in [0, 1]: of red, green and blue, or of grey.
            Models with other channels take tensors, not pictures.
    """

    size: tuple[int, int]
    scale_size: tuple[int, int]
    resize: Resize = "shorter"
    interpolation: Interpolation = "bilinear"
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def __call__(self, picture: Image.Image, size: tuple[int, int] | None = None) -> Tensor:
        """Return (C, H, W) float32, normalised; C is 3, or 1 of a model that sees grey.

        Args:
            picture: upright.
            size: width and height of the upload, if `picture` is a smaller copy of it (see `least`). The model then
                sees the same part, and nearly all samples differ by at most one level of 255.
        """
        channels = len(self.mean)
        mode = _MODES.get(channels)
        if mode is None:
            raise UnreadablePictureError(
                f"The model takes {channels} channels, which no picture has; give a tensor ({channels}, H, W)."
            )
        upright = picture if picture.mode == mode else picture.convert(mode)
        samples = np.asarray(self._cropped(upright, size or picture.size)).reshape(*self.size, channels)
        levels = _levels(self.mean, self.std)
        normalized = np.empty((channels, *self.size), dtype=np.float32)
        for channel, values in enumerate(normalized):
            np.take(levels[channel], samples[:, :, channel], out=values, mode="clip")
        return torch.from_numpy(normalized)

    def least(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height of the smallest copy that makes as good an input as the picture itself."""
        if self.interpolation == "nearest":  # each sample is one pixel of the picture
            return width, height
        columns, rows = self._resized(width, height)
        return min(width, _LEAST * columns), min(height, _LEAST * rows)

    def geometry(self, width: int, height: int) -> Geometry:
        """Return the part of a picture of `width` by `height` pixels that the model sees."""
        resized_width, resized_height = self._resized(width, height)
        left, top = self._offset(resized_width, resized_height)
        across, down = width / resized_width, height / resized_height
        box = (left * across, top * down, (left + self.size[1]) * across, (top + self.size[0]) * down)
        return Geometry(width, height, box)

    def _cropped(self, picture: Image.Image, size: tuple[int, int]) -> Image.Image:
        width, height = self._resized(*size)
        left, top = self._offset(width, height)
        shape = (self.size[1], self.size[0])
        resampling = Image.Resampling[self.interpolation.upper()]
        if left >= 0 and top >= 0 and width * height > _LARGEST * shape[0] * shape[1]:
            box = self.geometry(*size).scaled(*picture.size).box
            return picture.resize(shape, resampling, box=box)
        # From a smaller copy the input is not exact anyway, so Pillow may average whole pixels first, which is faster.
        gap = None if size == picture.size else 3.0
        resized = picture.resize((width, height), resampling, reducing_gap=gap)
        if left < 0 or top < 0:
            cropped = Image.new(picture.mode, shape, self._fill)
            cropped.paste(resized, (-left, -top))
            return cropped
        return resized.crop((left, top, left + shape[0], top + shape[1]))

    @property
    def _fill(self) -> tuple[int, ...] | int:
        levels = tuple(round(255 * value) for value in self.mean)
        return levels if len(levels) > 1 else levels[0]

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        rows, columns = self.scale_size
        if self.resize == "exact":
            return columns, rows
        if self.resize == "shorter" and rows == columns:
            # torchvision truncates the longer side; timm, in the general case below, rounds it.
            if width <= height:
                return rows, int(rows * height / width)
            return int(rows * width / height), rows
        ratios = height / rows, width / columns
        ratio = max(ratios) if self.resize == "longer" else min(ratios)
        return max(1, round(width / ratio)), max(1, round(height / ratio))

    def _offset(self, width: int, height: int) -> tuple[int, int]:
        return _centred(width, self.size[1]), _centred(height, self.size[0])


def _centred(length: int, crop: int) -> int:
    # As in torchvision's centre crop: half to even for a crop, floor for padding.
    return round((length - crop) / 2) if length >= crop else -((crop - length) // 2)


def channels_hint(module: nn.Module, channels: int) -> str:
    """Return advice if a module takes another number of channels than it is given; an empty string otherwise."""
    expected = next((part.in_channels for part in module.modules() if isinstance(part, nn.Conv2d)), channels)
    if expected == channels:
        return ""
    channel, number = counted(expected, "channel"), counted(expected, "number")
    return f"Its first convolution takes {channel}, not {channels}: give `mean` and `std` with {number} each."


def normalisation_fault(mean: Sequence[float], std: Sequence[float]) -> str | None:
    """Return the fault of the mean and standard deviation of each channel; None if there is none."""
    if len(mean) != len(std):
        return f"mean has {counted(len(mean), 'number')} and std {len(std)}; give one of each for every channel."
    if any(number <= 0 for number in std):
        return f"std is {tuple(std)}; each of its numbers must be greater than 0."
    if any(number > 1 for number in (*mean, *std)):
        return "mean and std must be for levels from 0 to 1; divide those for levels up to 255 by 255."
    return None


@lru_cache(maxsize=32)
def _levels(mean: tuple[float, ...], std: tuple[float, ...]) -> NDArray[np.float32]:
    """Return (C, 256) float32: each of the 256 levels normalised, equal to torchvision's to the last bit."""
    levels = torch.arange(256, dtype=torch.float32).div_(255)
    return torch.stack([(levels - middle) / spread for middle, spread in zip(mean, std, strict=True)]).numpy()

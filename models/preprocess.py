"""From an upright RGB picture to the model's input, remembering which part of the picture that is."""

from dataclasses import dataclass
from typing import Literal

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import functional

from explainers.geometry import Geometry

Resize = Literal["shorter", "longer", "exact"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]

# A strip of one pixel by a million would be resized to gigabytes. Where the resized picture is this many
# times the crop, only the crop is computed: the same but for the rounding of the box and of samples.
_LARGEST = 32


@dataclass(frozen=True)
class Preprocess:
    """Resize, centre crop, scale to [0, 1], normalise: the same numbers as torchvision's and timm's own.

    Attributes:
        size: (height, width) of the model's input.
        scale_size: (height, width) to resize to before the crop.
        resize: "shorter" keeps the proportions and covers `scale_size`, so that the crop loses the ends of
            the longer side; "longer" keeps them and fits inside it, padding the rest; "exact" does not.
        interpolation: of the resize, with antialiasing.
        mean, std: per channel, for values in [0, 1].
    """

    size: tuple[int, int]
    scale_size: tuple[int, int]
    resize: Resize = "shorter"
    interpolation: Interpolation = "bilinear"
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def __call__(self, picture: Image.Image) -> Tensor:
        """Return (3, H, W) float32, normalised."""
        pixels = functional.pil_to_tensor(self._cropped(picture.convert("RGB"))).to(torch.float32).div_(255)
        normalized: Tensor = functional.normalize(pixels, list(self.mean), list(self.std), inplace=True)
        return normalized

    def geometry(self, width: int, height: int) -> Geometry:
        """Return which part of a picture of `width` by `height` pixels the model sees."""
        resized_width, resized_height = self._resized(width, height)
        left, top = self._offset(resized_width, resized_height)
        across, down = width / resized_width, height / resized_height
        box = (left * across, top * down, (left + self.size[1]) * across, (top + self.size[0]) * down)
        return Geometry(width, height, box)

    def _cropped(self, picture: Image.Image) -> Image.Image:
        width, height = self._resized(*picture.size)
        left, top = self._offset(width, height)
        wanted = (self.size[1], self.size[0])
        resampling = Image.Resampling[self.interpolation.upper()]
        if left >= 0 and top >= 0 and width * height > _LARGEST * wanted[0] * wanted[1]:
            box = self.geometry(*picture.size).box
            return picture.resize(wanted, resampling, box=box)
        resized = picture.resize((width, height), resampling)
        if left < 0 or top < 0:
            cropped = Image.new("RGB", wanted, self._fill)
            cropped.paste(resized, (-left, -top))
            return cropped
        return resized.crop((left, top, left + wanted[0], top + wanted[1]))

    @property
    def _fill(self) -> tuple[int, ...]:
        return tuple(round(255 * value) for value in self.mean)

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        rows, columns = self.scale_size
        if self.resize == "exact":
            return columns, rows
        if self.resize == "shorter" and rows == columns:
            # torchvision truncates the longer side, timm's general case below rounds it.
            if width <= height:
                return rows, int(rows * height / width)
            return int(rows * width / height), rows
        ratios = height / rows, width / columns
        ratio = max(ratios) if self.resize == "longer" else min(ratios)
        return max(1, round(width / ratio)), max(1, round(height / ratio))

    def _offset(self, width: int, height: int) -> tuple[int, int]:
        return _centred(width, self.size[1]), _centred(height, self.size[0])


def _centred(length: int, wanted: int) -> int:
    # round() to even where it crops, floor where it pads: as torchvision's centre crop does.
    return round((length - wanted) / 2) if length >= wanted else -((wanted - length) // 2)

"""Pictures on other servers' routes: encoded, as pixel levels, or as the model's input."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from seewhy.app.errors import FieldError
from seewhy.app.http.uploads import decode_base64
from seewhy.app.memory.account import current as account
from seewhy.app.memory.budget import PIXELS
from seewhy.app.pipeline.decode import Source
from seewhy.explainers.errors import PictureTooLargeError
from seewhy.explainers.imaging.levels import are_unit_levels, ends, levels_of
from seewhy.models.preprocess import Preprocess

Range = Literal["byte", "unit", "normalized"]
"""Meaning of an array's numbers: levels of 0 to 255, levels of 0 to 1, or the model's input."""

MEMBERS = ("b64", "image", "image_bytes", "data")
"""Members of a JSON object that may contain the picture."""

_BEYOND = 10
"""Maximum distance of a normalised value from grey, as a multiple of that of black and white."""

_LEVEL_BYTES, _NUMBER_BYTES = 4, 12
"""Bytes per number of an array, for its copies on the way to a picture or the model's input."""

_DEPTH = 8
"""Maximum nesting of lists of numbers."""

Numbers: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class PictureReader:
    """Reads pictures for a model.

    Attributes:
        range: meaning of numbers; None to infer it from their type: whole numbers are levels of 0 to 255.
    """

    preprocess: Preprocess
    max_pixels: int
    range: Range | None

    def from_json(self, value: Any, place: str) -> Source:
        """Return the picture in a JSON value.

        Args:
            value: base64, an object with base64 in it, or a nested list of numbers.

        Raises:
            FieldError: the value is not a picture.
        """
        if isinstance(value, str):
            return decode_base64(place, value)
        if isinstance(value, list):
            return self.from_array(numbers(value, place), place)
        if not isinstance(value, dict):
            raise FieldError(f"{place} must be base64, an object with it, or a nested list of numbers.", field=place)
        member, *extras = sorted(value, key=lambda name: name not in MEMBERS) or [""]
        if member not in MEMBERS:
            raise FieldError(f"{place} has no picture; add one of the members {', '.join(MEMBERS)}.", field=f"{place}")
        if extras:
            raise FieldError(
                f"{place} has an unknown member, {extras[0]!r}; a picture has one of {', '.join(MEMBERS)}, and options "
                "go in parameters, beside the pictures.",
                field=place,
            )
        if isinstance(value[member], dict):
            place = f"{place}.{member}"
            if set(value[member]) != {"b64"}:
                raise FieldError(f'{place} must be {{"b64": BASE64}}.', field=place)
            return decode_base64(f"{place}.b64", value[member]["b64"])
        return self.from_json(value[member], f"{place}.{member}")

    def from_array(self, array: Numbers, place: str) -> Source:
        """Return the picture in an array.

        Args:
            array: (H, W, C) or (C, H, W), integers or floats.

        Raises:
            FieldError: the array has another shape, or numbers outside its range.
            PictureTooLargeError: the picture has more pixels than allowed.
        """
        kind = self.range or ("normalized" if array.dtype.kind == "f" else "byte")
        is_byte = kind == "byte" and array.dtype.kind != "f"
        account().take(array.size * (_LEVEL_BYTES if is_byte else _NUMBER_BYTES), PIXELS)
        if kind == "normalized":
            with np.errstate(over="ignore"):
                return self._normalized(array.astype(np.float32), place)
        last = array if array.ndim == 3 and array.shape[2] == 3 else np.moveaxis(array, 0, -1)
        if last.ndim != 3 or last.shape[2] != 3 or last.size == 0:
            raise FieldError(
                f"{place} has the shape {list(array.shape)}; a picture is [H, W, 3] or [3, H, W].", field=place
            )
        if last.shape[0] * last.shape[1] > self.max_pixels:
            raise PictureTooLargeError(
                f"{place} has {last.shape[0] * last.shape[1]:,} pixels, more than the {self.max_pixels:,} allowed."
            )
        most = 255 if kind == "byte" else 1
        if not (last.min() >= 0 and last.max() <= most):  # NaN neither
            raise FieldError(
                f"{place} has numbers outside 0 to {most}; set range to their meaning: byte, unit or normalized.",
                field=place,
            )
        if array.dtype.kind == "f" or kind == "unit":
            last = last.astype(np.float64)
            last *= 255 / most
            last += 0.5
        return Image.fromarray(np.ascontiguousarray(last, dtype=np.uint8))

    def _normalized(self, array: NDArray[np.float32], place: str) -> Tensor:
        height, width = self.preprocess.size
        channels = len(self.preprocess.mean)
        if array.shape == (height, width, channels):
            array = np.moveaxis(array, -1, 0)
        if array.shape != (channels, height, width):
            raise FieldError(
                f"{place} has the shape {list(array.shape)}; a normalised input of this model is "
                f"[{channels}, {height}, {width}] or [{height}, {width}, {channels}]. Set range=byte or range=unit "
                "if the numbers are a picture, which may have any size.",
                field=place,
            )
        black, white = ends(self.preprocess.mean, self.preprocess.std)
        levels = levels_of(array, self.preprocess.mean, self.preprocess.std)
        if not np.abs(levels - 0.5).max() <= 0.5 * _BEYOND:  # NaN neither
            raise FieldError(
                f"{place} has numbers outside the range of a normalised input of this model: its black is {black:.2f}, "
                f"its white {white:.2f}. Set range=byte for levels from 0 to 255, or range=unit for levels from 0 to "
                "1.",
                field=place,
            )
        if self.range is None and (black < 0 or white > 1) and are_unit_levels(array):
            raise FieldError(
                f"{place} has only numbers from 0 to 1, which look like levels that are not normalised; in a "
                f"normalised input of this model black is {black:.2f} and white {white:.2f}. Send integers from 0 to "
                "255, or set range=unit for levels from 0 to 1; normalised values are (level - mean) / std with the "
                f"mean {list(self.preprocess.mean)} and the std {list(self.preprocess.std)}. Set range=normalized if "
                "the numbers are normalised.",
                field=place,
            )
        return torch.from_numpy(np.array(array, order="C"))


def numbers(values: Any, place: str) -> Numbers:
    """Return nested lists of numbers as an array.

    Raises:
        FieldError: the lists contain something else, or are ragged.
    """
    array = np.array(None)
    # NumPy would turn a list with one text into texts, each as long as the longest.
    if _is_numbers(values):
        with suppress(ValueError, OverflowError):  # lists of several lengths
            array = np.array(values)
    if array.dtype.kind not in "iuf":
        raise FieldError(f"{place} must contain only numbers, in nested lists of equal lengths.", field=place)
    return array


def _is_numbers(values: Any, depth: int = 0) -> bool:
    kinds = set(map(type, values)) if isinstance(values, list) else {None}
    if kinds == {list} and depth < _DEPTH:
        return all(_is_numbers(value, depth + 1) for value in values)
    return kinds <= {int, float}

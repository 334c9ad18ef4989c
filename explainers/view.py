"""Views: a picture, and the model's input made from it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from PIL import Image
from torch import Tensor

from seewhy.explainers.core.diagnostic import Diagnostic
from seewhy.explainers.core.model import Model, Preprocess, must_know_pictures
from seewhy.explainers.errors import OptionError, UnreadablePictureError
from seewhy.explainers.imaging.decode import PictureSource, Probe, named, read_file, read_picture
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.imaging.levels import are_unit_levels, ends, levels_of, picture_of
from seewhy.explainers.results.origin import FileIdentity, file_identity

_FIRST_FRAME = Diagnostic("first-frame", "The file has several frames or pages; only the first one is explained.")

ViewSource: TypeAlias = PictureSource | Tensor
"""A picture, or the model's input made from one: (C, H, W) float, normalised."""


@dataclass(frozen=True, eq=False)
class View:
    """A picture, and the model's input made from it.

    Attributes:
        picture: upright, RGB; or a smaller copy to draw on.
        image: (C, H, W) float32, normalised.
        geometry: the part of the whole picture that the model sees.
        file: the file of the picture, where Python read one; None otherwise.
        has_more: whether the file has further frames or pages.
    """

    picture: Image.Image
    image: Tensor
    geometry: Geometry
    file: FileIdentity | None = None
    has_more: bool = False

    @property
    def remarks(self) -> tuple[Diagnostic, ...]:
        """Remarks about the picture for the reader of a map."""
        return (_FIRST_FRAME,) if self.has_more else ()

    def images(self, device: torch.device) -> Tensor:
        """Return (1, C, H, W), on a device."""
        return self.image[None].to(device)


def check_series(model: object, pictures: object, batch_size: int, on_error: str = "raise", other: str = "") -> None:
    """Refuse pictures, or options, that `prepare` cannot be called with in turn.

    Raises:
        OptionError: one picture where several are needed, a pass without pictures, or an `on_error` that is neither
            ``raise`` nor the `other` choice.
        UnsupportedModuleError: the model is a bare module, whose preprocessing is unknown.
    """
    must_know_pictures(model, pictures)
    if isinstance(pictures, str | bytes | os.PathLike | Image.Image) or hasattr(pictures, "read"):
        raise OptionError(
            "Give several pictures, such as sorted(Path(folder).glob('*.jpg')); `explain` takes one.", field="pictures"
        )
    if batch_size < 1:
        raise OptionError(f"batch_size is {batch_size}; it must be 1 or more.", field="batch_size")
    if on_error not in ("raise", other):
        raise OptionError(f"on_error is {on_error!r}; it must be 'raise' or {other!r}.", field="on_error")


def prepare(model: Model, picture: ViewSource) -> View:
    """Read a picture and make the model's input from it.

    Raises:
        PictureError: the picture cannot be read.
        UnsupportedModuleError: the model is a bare module, whose preprocessing is unknown.
    """
    must_know_pictures(model, picture)
    if isinstance(picture, Tensor):
        return _view_of_input(model, picture)
    content = read_file(picture)
    with named(picture):
        probe = Probe(content) if isinstance(content, bytes) else None
        upright = probe.decode() if probe else read_picture(content)
    geometry = model.preprocess.geometry(upright.width, upright.height)
    name = Path(picture).name if isinstance(picture, str | os.PathLike) else ""
    file = file_identity(content, name) if isinstance(content, bytes) else None
    return View(upright, model.preprocess(upright), geometry, file, probe is not None and probe.has_more)


def _view_of_input(model: Model, image: Tensor) -> View:
    """Return an input (C, H, W) of the model, or a batch of one, and the picture that it shows.

    Raises:
        UnreadablePictureError: it is not a normalised input of this model.
    """
    mean, std = model.preprocess.mean, model.preprocess.std
    image = image[0] if image.ndim == 4 and len(image) == 1 else image
    if image.ndim != 3 or len(image) != len(mean) or not image.is_floating_point():
        raise UnreadablePictureError(
            f"A tensor must be the model's input ({len(mean)}, H, W), float and normalised, not {tuple(image.shape)} "
            f"of {image.dtype}; pass other pictures as an array (H, W, 3) or a file."
        )
    image = image.detach().float()
    numbers = image.cpu().numpy()
    black, white = ends(mean, std)
    if (black < 0 or white > 1) and are_unit_levels(numbers):
        raise UnreadablePictureError(
            "The tensor has only numbers from 0 to 1, which look like levels that are not normalised: this model's "
            "black is "
            f"{black:.2f}, its white {white:.2f}. Normalise with mean {list(mean)} and std {list(std)}, or give the "
            "picture as an array (H, W, 3)."
        )
    return view_of(image, model.preprocess)


def view_of(image: Tensor, preprocess: Preprocess) -> View:
    """Return a normalised input (C, H, W), and the picture that it shows."""
    height, width = image.shape[1:]
    picture = picture_of(levels_of(image.cpu().numpy(), preprocess.mean, preprocess.std))
    return View(picture, image, Geometry(width, height, (0.0, 0.0, float(width), float(height))))

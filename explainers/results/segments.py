"""Segments: the class of each pixel of a picture."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seewhy.explainers.errors import OptionError
from seewhy.explainers.imaging import render
from seewhy.explainers.imaging.choices import SEGMENT_VIEWS, SegmentView
from seewhy.explainers.imaging.classes import coloured, legend
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.imaging.png import data_url, encode_png
from seewhy.explainers.results.display import Document

if TYPE_CHECKING:
    from seewhy.explainers.tasks.segmentation import RegionPrediction

Indices = NDArray[np.uint8] | NDArray[np.uint16]

_LEAST = 240
"""Width and height that a legend may always take, in pixels, however small the picture is."""

_LOSSY = (".jpg", ".jpeg", ".webp")


@dataclass(frozen=True, eq=False)
class Segments(Document):
    """The class that a segmenter gives each pixel of a picture.

    `save` writes ``.json``, a `document`, ``.npz``, the `arrays`, and pictures.

    Attributes:
        classes: the classes that the model predicts, the largest first, each with its ``area``, the share of the
            model's input.
        map: (h, w) uint8, or uint16 for more than 255 classes: the class index of each position of the model's input.
        picture: the upright upload, RGB, or a smaller copy to draw on.
        geometry: the part of the upload that the model saw.
    """

    classes: "tuple[RegionPrediction, ...]"
    map: Indices
    picture: Image.Image
    geometry: Geometry

    @property
    def void(self) -> int:
        """The value of pixels that the model did not see, in `mask`: 255, or 65535."""
        return int(np.iinfo(self.map.dtype).max)

    @cached_property
    def mask(self) -> Indices:
        """(H, W), in the dtype of `map`: the class index of each pixel of the upload, `void` where it saw nothing.

        ``mask == index`` is the mask of one class, as `explain` takes it.
        """
        mask = np.full((self.geometry.height, self.geometry.width), self.void, self.map.dtype)
        mask[self.geometry.window] = self.geometry.labelled(self.map)
        return mask

    @property
    def caption(self) -> str:
        """One line: the largest classes with their areas."""
        return ", ".join(f"{row.label} {row.text}" for row in self.classes[:5])

    def overlay(self, view: SegmentView = "overlay", alpha: float = 0.5, max_side: int | None = None) -> Image.Image:
        """Return the classes in colours over the picture above a legend, RGB; or the mask.

        Args:
            view: ``overlay``; ``side-by-side`` with the bare picture; or ``mask`` for the class indices themselves, a
                grey picture of 8 or 16 bits as large as the upload.
            alpha: opacity of the colours, 0 to 1.
            max_side: longest side of the picture in pixels; None for its own. A mask is never reduced.

        Raises:
            OptionError: a value out of bounds, or an unknown view.
        """
        if view not in SEGMENT_VIEWS:
            raise OptionError(f"There is no view {view!r}; choose from {', '.join(SEGMENT_VIEWS)}.", field="view")
        if view == "mask":
            return Image.fromarray(self.mask)
        style = render.Style(view, alpha=alpha, max_side=max_side)
        small = render.fit(self.picture, style.max_side)
        placement = self.geometry.scaled(*small.size)
        drawing = render.compose(small, coloured(placement.labelled(self.map)), placement, view, alpha)
        width = max(drawing.width, _LEAST)
        names = [f"{row.label} {row.text.removeprefix('on ')}" for row in self.classes]
        key = legend(names, [row.index for row in self.classes], width, max(drawing.height, _LEAST))
        whole = Image.new("RGB", (width, drawing.height + key.height), "white")
        whole.paste(drawing, (0, 0))
        whole.paste(key, (0, drawing.height))
        return whole

    def drawn_size(self, view: SegmentView) -> tuple[int, int]:
        """Return the maximum width and height of `overlay`, except for a mask."""
        width, height = self.picture.size
        return max(_LEAST, width * (2 if view == "side-by-side" else 1)), height + max(height, _LEAST)

    def document(self) -> dict[str, Any]:
        """Return everything but the picture for JSON, with the mask as a PNG in a data URL."""
        return {
            "classes": [{"index": row.index, "label": row.label, "area": row.area} for row in self.classes],
            "shape": list(self.mask.shape),
            "box": list(self.geometry.box),
            "void": self.void,
            "mask": data_url(encode_png(Image.fromarray(self.mask))),
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that the service gives as npz: mask (H, W); indices, labels and areas of the classes."""
        return {
            "mask": self.mask,
            "indices": np.array([row.index for row in self.classes]),
            "labels": np.array([row.label for row in self.classes]),
            "areas": np.array([row.area for row in self.classes]),
        }

    def save(self, path: str | os.PathLike[str], **drawing: Any) -> Path:
        """Write a file; see `Result.save`. The arguments of a drawing are those of `overlay`.

        Raises:
            OptionError: as in `Result.save`, or a mask in a format that changes its indices.
        """
        if drawing.get("view") == "mask" and Path(path).suffix.lower() in _LOSSY:
            raise OptionError("JPEG and WebP change the indices of a mask; write it as .png or .npz.", field="path")
        return super().save(path, **drawing)

    def _file_picture(self, **drawing: Any) -> Image.Image:
        return self.overlay(**drawing)

    def _preview(self) -> Image.Image:
        return self.overlay(max_side=800)

    def __repr__(self) -> str:
        return f"Segments({self.caption}, {self.geometry.width}x{self.geometry.height})"

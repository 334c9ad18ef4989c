"""From an upload to what the model and a drawing need of it, and to no more pixels than that."""

import ctypes
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from PIL import Image, _imaging
from torch import Tensor

from seewhy.explainers.imaging.decode import Least, Reduced, Size
from seewhy.explainers.imaging.geometry import Geometry
from seewhy.explainers.imaging.render import fit, fitted
from seewhy.models.preprocess import Preprocess

Read = Callable[[bytes, Least], Reduced]
"""From the bytes of a picture, and what tells the least size that is enough for a given one, to the picture."""

_LEAST = 1.75
"""A copy that is made smaller for a drawing has at least this many pixels for each of the drawing's, along a side."""


@dataclass(frozen=True)
class Decoded:
    """An upload as the model and as a drawing need it.

    Attributes:
        image: (C, H, W) float32, normalised.
        geometry: which part of the upload the model sees.
        picture: the upright upload, or a smaller copy of it to draw on.
    """

    image: Tensor
    geometry: Geometry
    picture: Image.Image

    @property
    def size(self) -> int:
        """Bytes that it takes; Pillow keeps a pixel of three samples in four."""
        return self.image.nbytes + 4 * self.picture.width * self.picture.height


def decode(upload: bytes, preprocess: Preprocess, max_side: int, read: Read, drawn: bool = True) -> Decoded:
    """Return a picture as the model and as a drawing need it.

    Where both need far fewer pixels than the upload has, a JPEG is decoded at a smaller scale, and the model's
    input is made from the drawing's copy of the upload.

    Args:
        upload: the bytes of the picture.
        preprocess: of the model whose input it becomes.
        max_side: longest side of the drawing.
        read: reads it, with no more pixels than are needed.
        drawn: whether there is to be a drawing; without one, `Decoded.picture` is a single pixel.

    Raises:
        PictureError: it cannot be read, or is too large.
    """

    def least(width: int, height: int) -> Size:
        wanted = fitted(width, height, max_side) if drawn else (0, 0)
        if wanted == (width, height):
            return wanted
        needed = preprocess.least(width, height)
        return max(needed[0], ceil(_LEAST * wanted[0])), max(needed[1], ceil(_LEAST * wanted[1]))

    sent = read(upload, least)
    # All that drawing needs; the upload may be far larger.
    picture = fit(sent.picture, max_side, sent.size) if drawn else sent.picture
    enough = preprocess.least(*sent.size)
    small = picture.width >= enough[0] and picture.height >= enough[1]
    image = preprocess(picture if small else sent.picture, sent.size)
    if not drawn:  # nobody looks at it, and it may be large
        picture = picture.resize((1, 1), Image.Resampling.NEAREST)
    return Decoded(image, preprocess.geometry(*sent.size), picture)


def quiet_decoders() -> None:
    """Keep out of the log what decoders say of damaged pictures: whoever sent them is told."""
    warnings.filterwarnings("ignore", module=r"PIL\.")
    log = logging.getLogger("PIL")
    if not log.handlers:
        log.addHandler(logging.NullHandler())
    decoders = ctypes.CDLL(_imaging.__file__)
    for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):  # libtiff writes to the standard error by itself
        handle = getattr(decoders, name, None)
        if handle is not None:
            handle.argtypes, handle.restype = [ctypes.c_void_p], ctypes.c_void_p
            handle(None)

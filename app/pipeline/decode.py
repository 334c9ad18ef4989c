"""Decoding of pictures for the model and for drawing, within the memory budget and at the smallest sufficient size."""

import ctypes
import logging
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import TypeAlias, TypeVar

from PIL import Image, _imaging
from torch import Tensor

from seewhy.app.memory.account import current as account
from seewhy.app.memory.budget import PIXELS
from seewhy.app.pipeline.jobs import Deadline
from seewhy.app.pipeline.record import Timings
from seewhy.app.system.processors import processors
from seewhy.explainers.imaging.decode import Probe, Size
from seewhy.explainers.imaging.limits import PIXEL_BYTES
from seewhy.explainers.imaging.render import fit, fitted
from seewhy.explainers.tasks.regions import Mask
from seewhy.explainers.view import View, view_of
from seewhy.models.preprocess import Preprocess

Source: TypeAlias = bytes | Image.Image | Tensor
"""A picture from a client: an encoded file, RGB pixels, or the model's input (C, H, W) float32, normalised."""

Decoded = TypeVar("Decoded")

_LEAST = 1.75
"""A reduced copy for drawing has at least this many times the drawing's pixels along a side."""


class Decoder:
    """Prepares pictures for the model and for drawing.

    Attributes:
        processors: semaphore for decoding and drawing. Both use a whole processor and much memory: more of them at
            once than there are processors gain nothing.
    """

    def __init__(self, max_pixels: int, max_side: int) -> None:
        self._max_pixels = max_pixels
        self._max_side = max_side
        self._processor_count = processors()
        self.processors = threading.BoundedSemaphore(self._processor_count)

    def prepare(
        self, source: Source, preprocess: Preprocess, timings: Timings, deadline: Deadline, drawn: bool
    ) -> View:
        """Return a picture prepared for the model and for drawing.

        Args:
            timings: timings that get the stage `decode`.
            drawn: whether there will be a drawing; without one, the view's picture of an upload is a single pixel.

        Raises:
            PictureError: the picture cannot be read, or is too large.
            OutOfMemoryError: there is no memory for its pixels at present.
            DeadlineError, ClientGoneError: no client waits for it any longer.
        """
        if isinstance(source, Tensor):
            return view_of(source, preprocess)
        with timings.stage("decode"), self.processors:
            deadline.check()
            if isinstance(source, bytes):
                return self._decode(source, preprocess, deadline, drawn)
            picture = fit(source, self._max_side, source.size) if drawn else source
            return View(picture, preprocess(source), preprocess.geometry(*source.size))

    def mask(self, upload: bytes, deadline: Deadline) -> Mask:
        """Return (H, W) bool: where a picture is above zero; errors as in `prepare`."""
        with self.processors:
            deadline.check()
            probe = Probe(upload, self._max_pixels)
            return self._counted(probe, deadline, probe.decode_mask, lambda mask: mask.nbytes)

    def _decode(self, upload: bytes, preprocess: Preprocess, deadline: Deadline, drawn: bool) -> View:
        probe = Probe(upload, self._max_pixels)
        probe.reduce(self._size_needed(probe.size, preprocess, drawn))

        def prepared() -> View:
            picture = probe.decode()
            view = self._prepared(picture, probe.size, preprocess, drawn)
            return replace(view, has_more=probe.has_more)

        return self._counted(probe, deadline, prepared, _size)

    def _counted(
        self, probe: Probe, deadline: Deadline, decode: Callable[[], Decoded], size_of: Callable[[Decoded], int]
    ) -> Decoded:
        """Return the decoded picture, once there is memory for it; only its own size remains counted."""
        decoding, remaining = probe.pixels * PIXEL_BYTES, 0
        account().wait(decoding, PIXELS, deadline.check, self._processor_count, self.processors)
        try:
            decoded = decode()
            size = size_of(decoded)
            remaining = min(size, decoding)
            account().take(size - remaining, PIXELS)
            return decoded
        finally:
            account().leave(decoding, remaining)

    def _size_needed(self, size: Size, preprocess: Preprocess, drawn: bool) -> Size:
        """Return the smallest size of a copy that is enough for the model and the drawing."""
        drawing = fitted(*size, self._max_side) if drawn else (0, 0)
        if drawing == size:
            return size
        width, height = preprocess.least(*size)
        return max(width, ceil(_LEAST * drawing[0])), max(height, ceil(_LEAST * drawing[1]))

    def _prepared(self, decoded: Image.Image, size: Size, preprocess: Preprocess, drawn: bool) -> View:
        """Prepare a decoded picture; the model's input is made from the copy for drawing if possible.

        Args:
            size: size of the upright upload.
        """
        picture = fit(decoded, self._max_side, size) if drawn else decoded
        least = preprocess.least(*size)
        is_enough = picture.width >= least[0] and picture.height >= least[1]
        image = preprocess(picture if is_enough else decoded, size)
        if not drawn:  # it is not needed, and may be large
            picture = picture.resize((1, 1), Image.Resampling.NEAREST)
        return View(picture, image, preprocess.geometry(*size))


def _size(view: View) -> int:
    """Return the memory of a view in bytes; Pillow stores RGB pixels in four bytes."""
    return view.image.nbytes + 4 * view.picture.width * view.picture.height


def quiet_decoders() -> None:
    """Keep decoders' messages about damaged pictures out of the log: the client gets the error."""
    warnings.filterwarnings("ignore", module=r"PIL\.")
    log = logging.getLogger("PIL")
    if not log.handlers:
        log.addHandler(logging.NullHandler())
    decoders = ctypes.CDLL(_imaging.__file__)
    for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):  # libtiff itself writes to the standard error
        handle = getattr(decoders, name, None)
        if handle is not None:
            handle.argtypes, handle.restype = [ctypes.c_void_p], ctypes.c_void_p
            handle(None)

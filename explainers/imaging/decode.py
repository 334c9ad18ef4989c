"""Decoding: from bytes, a path, a PIL image or an array to an upright RGB picture."""

import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from struct import unpack
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageCms, ImageOps, UnidentifiedImageError
from PIL.GifImagePlugin import GifImageFile

from seewhy.explainers.errors import PictureError, PictureTooLargeError, UnreadablePictureError
from seewhy.explainers.imaging.avif import is_avif
from seewhy.explainers.imaging.geometry import Box
from seewhy.explainers.imaging.limits import MAX_PIXELS
from seewhy.explainers.imaging.upload_checks import (
    DAMAGED,
    check_coded,
    check_compression,
    check_directory,
    check_scans,
    check_size,
    check_whole,
    keeps_coefficients,
    unreadable,
)

FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF")
"""The only formats that are tried."""

_UNCHECKED = tuple(name for name in FORMATS if name != "AVIF")
"""Formats of files that do not begin like an AVIF: its decoder would also take others."""

PictureSource: TypeAlias = str | os.PathLike[str] | bytes | BinaryIO | Image.Image | NDArray[np.generic]

Size: TypeAlias = tuple[int, int]

_SRGB = ImageCms.createProfile("sRGB")

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The operation that makes a picture upright, by its EXIF orientation."""

_LYING = (5, 6, 7, 8)
"""Orientations that exchange width and height."""


_GIF_FRAME = re.compile(rb"\x00\x2c(.{10})", re.DOTALL)
"""The end of a block of a GIF, and bytes that may be the head of a frame; `_is_head` decides."""

_MOST_HEADS = 10_000
"""Maximum number of such places in a GIF that are checked; walking over all blocks could take seconds."""


class Probe:
    """A picture file, open and checked, with no pixel decoded yet.

    Args:
        content: the bytes of the file.
        max_pixels: the limit on width times height of the file.

    Attributes:
        size: width and height of the upright picture in full size. Before `decode`, only a JPEG's orientation is known.
        pixels: number of pixels for which `decode` needs memory, at most `PIXEL_BYTES` each.
        has_more: whether the file has further frames or pages, which `decode` leaves out.

    Raises:
        UnreadablePictureError, PictureTooLargeError: as in `read_picture`.
    """

    def __init__(self, content: bytes, max_pixels: int = MAX_PIXELS) -> None:
        if not content:
            raise UnreadablePictureError("The picture is empty (0 bytes); use another one.")
        self._max_pixels = max_pixels
        self._part: Box | None = None
        with _faults(max_pixels, content):
            check_directory(content)
            coded, formats, upload = 0, _UNCHECKED, content
            if is_avif(content):
                content, coded = check_coded(content, max_pixels)
                formats = ("AVIF",)
            self._content = content
            self._image: Image.Image = Image.open(io.BytesIO(content), formats=formats)
            self.size = self._image.size
            self.pixels = max(check_size(self._image, max_pixels), coded)
            check_whole(self._image, content)
            check_scans(self._image, content, max_pixels)
            self.has_more = _has_more(self._image, upload)
            self._lies = self._image.format == "JPEG" and _orientation(self._image) in _LYING
        if self._lies:
            self.size = self._image.size[::-1]

    def reduce(self, least: Size) -> None:
        """Let `decode` reduce a JPEG to half, a quarter or an eighth of its size, if that is enough.

        That saves time and memory, and each pixel is the mean of those that it replaces. Other formats stay as they
        are.

        Args:
            least: the least sufficient width and height of the upright picture.
        """
        image = self._image
        if image.format != "JPEG":
            return
        with _faults(self._max_pixels):
            whole = image.size
            draft = image.draft(None, least[::-1] if self._lies else least)
            self._part = None if draft is None or _size(draft[1]) == whole else draft[1]
            coefficients = self.pixels // 2 if keeps_coefficients(image, self._content) else 0
            self.pixels = image.width * image.height + coefficients

    def decode(self) -> Image.Image:
        """Return the upright picture as `read_picture` does, reduced if possible; call it only once.

        Raises:
            UnreadablePictureError: the file is damaged.
        """
        image, part = self._image, self._part
        del self._image  # each step frees the pixels of the one before
        is_jpeg = image.format == "JPEG"
        with _faults(self._max_pixels):
            # The last row or column of a reduced picture may stand for fewer pixels than the others.
            image = _loaded(image) if part is None else image.resize(_size(part), Image.Resampling.BICUBIC, box=part)
            turn = _TURNS.get(_orientation(image))
            picture = _rgb(image if turn is None else image.transpose(turn), image.info.get("icc_profile"))
        if not is_jpeg:
            self.size = picture.size
        return picture

    def decode_mask(self) -> NDArray[np.bool_]:
        """Return (H, W) bool, upright: where a sample is above zero and not transparent; call it in place of `decode`.

        In a palette, the indices count, not their colours.

        Raises:
            UnreadablePictureError: the file is damaged, or a JPEG.
        """
        image = self._image
        del self._image
        if image.format in ("JPEG", "MPO"):
            raise UnreadablePictureError(
                "A JPEG blurs the edges of a mask, so zeros do not stay zero; save the mask as a PNG."
            )
        with _faults(self._max_pixels):
            image = _loaded(image)
            turn = _TURNS.get(_orientation(image))
            return _above_zero(image if turn is None else image.transpose(turn))


def read_picture(source: PictureSource, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Return the picture as an upright 8-bit sRGB image.

    EXIF orientation is applied, ICC profiles are converted to sRGB, transparency is laid over white, and samples of 16
    bits or floating-point ones are scaled to 8 bits. An animation gives its first frame.

    Args:
        source: a path, or the bytes, of a JPEG, PNG, WebP, AVIF, GIF, BMP or TIFF file; such a file opened for reading
            bytes, which is read from its current position; a PIL image; or an array: (H, W) or (H, W, 1), (H, W, 3)
            RGB, (H, W, 4) RGBA; uint8, or float in [0, 1].
        max_pixels: the limit on width times height.

    Returns:
        The picture, mode RGB.

    Raises:
        UnreadablePictureError: the source is not a picture in one of these formats, or is incomplete.
        PictureTooLargeError: the picture has more pixels than `max_pixels`; none is decoded.
        OSError: the path cannot be opened.
    """
    if isinstance(source, str | os.PathLike):
        content = read_file(source)
        with named(source):
            return read_picture(content, max_pixels)
    source = read_file(source)
    if isinstance(source, np.ndarray):
        source = _from_array(source)
    if isinstance(source, Image.Image):
        check_size(source, max_pixels)
        if getattr(source, "tile", ()):  # not decoded yet
            check_compression(source)
        _load(source)
        return _rgb(ImageOps.exif_transpose(source), source.info.get("icc_profile"))
    if isinstance(source, bytes):
        return Probe(source, max_pixels).decode()
    hint = "; `explain_many` takes several" if isinstance(source, Sequence) else ""
    raise UnreadablePictureError(
        f"A picture must be a path, bytes, an open file, a PIL image or an array, not {type(source).__name__}{hint}."
    )


def read_file(source: PictureSource) -> Any:
    """Return the bytes of a path or of an open file; anything else as it is.

    Raises:
        UnreadablePictureError: a folder, a file in text mode, or a web address.
        OSError: the path cannot be opened.
    """
    if isinstance(source, str) and re.match(r"https?://", source):
        raise UnreadablePictureError("Pictures are not downloaded from the web; pass a path or the bytes.")
    if isinstance(source, str | os.PathLike):
        if Path(source).is_dir():
            several = "sorted(Path(folder).glob('*.jpg'))"
            raise UnreadablePictureError(f"{os.fspath(source)!r} is a folder; `explain_many` takes {several}.")
        return Path(source).read_bytes()
    if isinstance(source, io.IOBase) or hasattr(source, "read"):
        source = source.read()
        if not isinstance(source, bytes):
            raise UnreadablePictureError("The file is open in text mode; open it in binary mode ('rb').")
    return source


@contextmanager
def named(source: object) -> Iterator[None]:
    """Name the path of a picture, if it has one, in its errors."""
    try:
        yield
    except PictureError as error:
        if isinstance(source, str | os.PathLike):
            error.path = os.fspath(source)
        raise


@contextmanager
def _faults(max_pixels: int, content: bytes = b"") -> Iterator[None]:
    """Turn exceptions of Pillow into errors of pictures; the message about an unknown format looks at `content`."""
    try:
        yield
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise PictureTooLargeError(
            f"The picture has more than the {max_pixels:,} pixels that are allowed; use a smaller one."
        ) from error
    except UnidentifiedImageError as error:
        raise UnreadablePictureError(unreadable(content)) from error
    except (MemoryError, UnreadablePictureError, PictureTooLargeError):
        raise
    except Exception as error:
        # Pillow's decoders may raise anything on damaged data.
        raise UnreadablePictureError(DAMAGED) from error


def _has_more(image: Image.Image, upload: bytes) -> bool:
    """Whether a file has several frames or pages; the further pictures in a camera's JPEG are neither."""
    if isinstance(image, GifImageFile):
        heads = islice(_GIF_FRAME.finditer(upload, image.tile[0].offset), _MOST_HEADS)
        return any(_is_head(head[1], image.size) for head in heads)
    if image.format == "AVIF":  # the image is its still picture alone
        return upload[8:12] == b"avis"
    return image.format != "MPO" and bool(getattr(image, "is_animated", False))


def _is_head(content: bytes, size: Size) -> bool:
    """Whether ten bytes of a GIF begin a frame in a picture of this size, rather than compressed data."""
    left, top, width, height, flags, code_size = unpack("<4H2B", content)
    is_within = width > 0 and height > 0 and left + width <= size[0] and top + height <= size[1]
    return is_within and not flags & 0x18 and (bool(flags & 0x80) or 2 <= code_size <= 8)


def _size(part: Box) -> Size:
    return int(part[2]), int(part[3])


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # Pillow may raise anything on damaged metadata
        return 1  # as in browsers, which show such a picture unturned


def _load(image: Image.Image) -> None:
    """Decode a picture. Pillow keeps the high bytes of 16-bit colours, except in the transparent colour."""
    clear = image.info.get("transparency")
    if isinstance(clear, tuple) and any(str(tile.args).startswith("RGB;16") for tile in getattr(image, "tile", ())):
        image.info["transparency"] = tuple(value >> 8 for value in clear)
    image.load()


def _loaded(image: Image.Image) -> Image.Image:
    """Return a decoded picture. A copy of a WebP or AVIF frees the memory of its decoder."""
    _load(image)
    return image.copy() if image.format in ("WEBP", "AVIF") else image


def _above_zero(image: Image.Image) -> NDArray[np.bool_]:
    if image.mode in ("CMYK", "LAB", "HSV", "YCbCr"):
        image = image.convert("RGB")
    samples = np.asarray(image)
    if samples.ndim == 2:
        return samples > 0
    is_opaque = samples[:, :, -1] > 0 if image.mode in ("LA", "PA", "La", "RGBA", "RGBa") else True
    colours = samples[:, :, : 1 if image.mode in ("LA", "PA", "La") else 3]
    return np.logical_and(colours.any(axis=2), is_opaque)


def _rgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    image = _eight_bit(image)
    if "transparency" in image.info or image.mode in ("LA", "PA", "La", "RGBa"):
        image = image.convert("RGBA")
    if image.mode != "RGBA":
        return _to_srgb(image, profile)
    colours = _to_srgb(image.convert("RGB"), profile) if profile else image
    white = Image.new("RGB", image.size, "white")
    white.paste(colours, mask=image)
    return white


def _to_srgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    if profile and image.mode in ("RGB", "L", "CMYK", "LAB"):
        try:
            source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
            converted = ImageCms.profileToProfile(image, source, _SRGB, outputMode="RGB")
        except (ImageCms.PyCMSError, OSError):
            converted = None  # the profile is broken, or for other channels: use the plain conversion below
        if converted is not None:
            return converted
    return image if image.mode == "RGB" else image.convert("RGB")


def _eight_bit(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        # The high byte, which Pillow keeps of 16-bit colours.
        samples, clear = np.asarray(image), image.info.get("transparency")
        grey = Image.fromarray(np.right_shift(samples, 8).astype(np.uint8))
        if clear is None:
            return grey
        return Image.merge("LA", (grey, Image.fromarray(np.where(samples == clear, np.uint8(0), np.uint8(255)))))
    if image.mode in ("F", "I"):
        levels = np.array(image, dtype=np.float32)
        np.nan_to_num(levels, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
        np.clip(levels, 0, None, out=levels)
        levels *= 255 / _full_scale(image.mode, float(levels.max()))
        levels += 0.5
        return Image.fromarray(levels.astype(np.uint8))
    if image.mode == "P" and "transparency" not in image.info:
        return image.convert("RGB")
    return image


def _full_scale(mode: str, largest: float) -> float:
    """Return the sample value of white."""
    if mode == "F":  # by convention [0, 1]
        return max(largest, 1.0)
    return next((full for full in (255.0, 65535.0) if largest <= full), largest)


def _from_array(array: NDArray[np.generic]) -> Image.Image:
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))) or array.size == 0:
        raise UnreadablePictureError(
            f"An array of shape {array.shape} is not a picture; pass (H, W), (H, W, 3) or (H, W, 4), channels last."
        )
    if np.issubdtype(array.dtype, np.floating):
        if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= 1):
            raise UnreadablePictureError("A float array must lie in [0, 1]; scale it, or pass uint8.")
        array = (array.astype(np.float64) * 255 + 0.5).astype(np.uint8)
    if array.dtype != np.uint8:
        raise UnreadablePictureError(f"An array of {array.dtype} is not a picture; pass uint8, or float in [0, 1].")
    return Image.fromarray(array)

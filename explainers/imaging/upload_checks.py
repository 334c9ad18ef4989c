"""What is refused of a picture before it is decoded: too many pixels or scans, files cut short, ambiguous TIFFs."""

import io
import struct

import numpy as np
from PIL import Image

from seewhy.explainers.errors import PictureTooLargeError, UnreadablePictureError

MAX_SCANS = 32
"""Most scans of a JPEG of as many pixels as allowed, three times what encoders write; a smaller one may have more."""

_TIFF = frozenset({b"II*\0", b"MM\0*", b"II+\0", b"MM\0+", b"II\0*", b"MM*\0"})
"""What Pillow takes for the start of a TIFF, now or in the future; with a plus sign, offsets have 64 bits."""

_STRIPS, _STRIP_ROWS, _TILES, _TILE_WIDTH, _TILE_LENGTH = (273, 279), 278, (324, 325), 322, 323
"""Tags of TIFF; for strips and tiles, where each begins and how many bytes it has."""

_LAYOUT = frozenset({256, 257, 258, 259, 277, 284, *_STRIPS, _STRIP_ROWS, *_TILES, _TILE_WIDTH, _TILE_LENGTH})
"""Tags of TIFF that tell how much there is to decode; those without a name are width, length, bits, and so on."""

_INTEGERS = frozenset({1, 3, 4, 6, 8, 9, 16})
"""Types of TIFF that Pillow and libtiff read alike."""

_SCAN = b"\xff\xda"
"""What a scan of a JPEG begins with; compressed samples cannot hold it."""

_END = b"\xff\xd9"
"""What a JPEG ends with; compressed samples cannot hold it either."""


def check_size(image: Image.Image, max_pixels: int) -> int:
    """Return how many pixels are decoded.

    Raises:
        PictureTooLargeError: more than `max_pixels`.
        UnreadablePictureError: none.
    """
    width, height = image.size
    if image.format == "TIFF":  # it is decoded in whole tiles, which may be larger than the picture
        tags = getattr(image, "tag_v2", {})
        width, height = max(width, tags.get(_TILE_WIDTH, 0)), max(height, tags.get(_TILE_LENGTH, 0))
    if width * height > max_pixels:
        raise PictureTooLargeError(
            f"The picture is {width}×{height} = {width * height:,} pixels, more than the {max_pixels:,} "
            "allowed (SEEWHY_MAX_PIXELS of a service); send a smaller one."
        )
    if min(image.size) < 1:
        raise UnreadablePictureError("The picture has no pixels; send one that has.")
    return width * height


def check_directory(content: bytes) -> None:
    """Refuse a TIFF that claims more tags than there can be, or whose size Pillow and libtiff may take differently.

    Pillow would spend minutes on too many tags. It passes over tags of types that it does not know, which libtiff, the
    decoder, does not; and where a tag stands twice, each may take another.

    Raises:
        UnreadablePictureError: the directory is damaged.
    """
    if content[:4] not in _TIFF:
        return
    order, is_big = "<" if content.startswith(b"II") else ">", b"+" in content[2:4]
    count, entry = (struct.Struct(order + form) for form in (("Q", "HHQ8x") if is_big else ("H", "HHI4x")))
    (place,) = struct.unpack_from(order + ("Q" if is_big else "I"), content, 8 if is_big else 4)
    (tags,) = count.unpack_from(content, place)
    if tags > 0xFFFF:
        raise UnreadablePictureError(f"The TIFF file claims {tags:,} tags, which is damage; send it whole.")
    first = place + count.size
    entries = content[first : first + tags * entry.size]
    whole = entries[: len(entries) // entry.size * entry.size]
    layout = [(tag, kind) for tag, kind, _ in entry.iter_unpack(whole) if tag in _LAYOUT]
    if len({tag for tag, _ in layout}) < len(layout) or not {kind for _, kind in layout} <= _INTEGERS:
        raise UnreadablePictureError("The TIFF file may be read in two ways, which is damage; save it anew.")


def check_whole(image: Image.Image, content: bytes) -> None:
    """Refuse a file that is cut short though decoders take it for whole.

    A broken download may leave zeros at the end of the file. The decoder of JPEG turns them into grey, and that of PNG,
    which compares no checksums of pixels, into noise.

    Raises:
        UnreadablePictureError: the file is cut short, or nobody can tell.
    """
    check_compression(image)
    if image.format == "PNG":
        Image.open(io.BytesIO(content), formats=("PNG",)).verify()
    elif image.format in ("JPEG", "MPO") and content.find(_END, _scan_start(image)) < 0:
        raise UnreadablePictureError("The JPEG has no end: it is cut short or damaged; send it whole.")


def check_compression(image: Image.Image) -> None:
    """Refuse a TIFF of compression 6: libtiff silently fills with grey what such a file lacks."""
    if image.format == "TIFF" and image.info.get("compression") == "tiff_jpeg":
        raise UnreadablePictureError(
            "The TIFF file holds old-style JPEG (compression 6), of which no decoder can tell whether it is whole; "
            "send the picture as a JPEG or PNG, or save the TIFF anew with another compression."
        )


def check_scans(image: Image.Image, content: bytes, max_pixels: int) -> None:
    """Refuse a JPEG that goes over its pixels too often: a scan of all of them may take only a few bytes.

    Raises:
        PictureTooLargeError: more scans than `MAX_SCANS` of `max_pixels`.
    """
    if image.format in ("JPEG", "MPO") or image.info.get("compression") == "jpeg":
        scans, pixels = _scans(image, content)
        if scans * pixels > MAX_SCANS * max_pixels:
            raise PictureTooLargeError(
                f"The picture is {image.width}×{image.height} pixels in {scans:,} scans, which would take too long to "
                "decode; save it anew, as a baseline JPEG or as a PNG."
            )


def _scans(image: Image.Image, content: bytes) -> tuple[int, int]:
    """Return how many scans of a JPEG there are, and how many pixels each of them may go over."""
    if image.format == "TIFF":  # each strip or tile is a JPEG
        tags = image.tag_v2  # type: ignore[attr-defined]
        tiled = _TILE_WIDTH in tags
        firsts, sizes = (np.atleast_1d(tags.get(tag, 0)).tolist() for tag in (_TILES if tiled else _STRIPS))
        # Where they overlap, or where the decoder would guess their sizes, each may hold all scans of the file.
        if len(firsts) == len(sizes) and min(sizes) > 0 and sum(sizes) <= len(content):
            rows = min(tags.get(_STRIP_ROWS, image.height), image.height)
            part = tags[_TILE_WIDTH] * tags[_TILE_LENGTH] if tiled else image.width * rows
            spans = zip(firsts, sizes, strict=True)
            return sum(content.count(_SCAN, first, first + size) for first, size in spans), part
    return content.count(_SCAN), image.width * image.height


def keeps_coefficients(image: Image.Image, content: bytes) -> bool:
    """Whether the decoder of a JPEG holds all coefficients in memory, at whatever scale it decodes.

    It does where a scan is not the whole picture: in a progressive JPEG, and where the first scan lacks components.
    """
    if "progressive" in image.info:
        return True
    end = _scan_start(image)
    return any(
        content.startswith(_SCAN + bytes([0, 6 + 2 * components, components]), end - 8 - 2 * components)
        for components in range(1, len(image.getbands()))
    )


def _scan_start(image: Image.Image) -> int:
    """Return where the samples of the first scan begin, in a JPEG that was opened and not decoded."""
    return int(image.fp.tell())  # type: ignore[attr-defined]

"""Checks of a picture before it is decoded: too many pixels or scans, incomplete files, ambiguous TIFFs."""

import io
import struct

import numpy as np
from PIL import Image

from seewhy.explainers.errors import PictureTooLargeError, UnreadablePictureError
from seewhy.explainers.imaging.avif import is_avif, read_still

MAX_SCANS = 32
"""Maximum number of scans of a JPEG of the largest size, three times what encoders write; smaller ones may have
more."""

MAX_FRAMES = 4
"""Maximum number of frames of a still AVIF of the largest size: those of a progressive one; smaller ones may have
more."""

_TIFF = frozenset({b"II*\0", b"MM\0*", b"II+\0", b"MM\0+", b"II\0*", b"MM*\0"})
"""First bytes of files that Pillow reads as TIFF, now or in the future; with a plus sign, offsets have 64 bits."""

_STRIPS, _STRIP_ROWS, _TILES, _TILE_WIDTH, _TILE_LENGTH = (273, 279), 278, (324, 325), 322, 323
"""Tags of TIFF; those of strips and tiles hold the offset and the length of each."""

_LAYOUT = frozenset({256, 257, 258, 259, 277, 284, *_STRIPS, _STRIP_ROWS, *_TILES, _TILE_WIDTH, _TILE_LENGTH})
"""Tags of TIFF that determine the amount of data; those without a name here are width, length, bits, and so on."""

_INTEGERS = frozenset({1, 3, 4, 6, 8, 9, 16})
"""Types of TIFF that Pillow and libtiff read in the same way."""

_SCAN = b"\xff\xda"
"""First bytes of a JPEG's scan; compressed samples cannot contain them."""

_END = b"\xff\xd9"
"""Last bytes of a JPEG; compressed samples cannot contain them either."""


DAMAGED = "The picture is damaged or truncated and cannot be decoded; use the complete file."

_HEADS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"BM", *_TIFF)
"""First bytes of JPEG, PNG, GIF, BMP and TIFF."""


_HEIC = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
"""Brands of HEIF whose pictures are coded by HEVC."""


def is_picture(content: bytes) -> bool:
    """Whether bytes begin like a file of a supported format."""
    is_webp = content.startswith(b"RIFF") and content[8:12] == b"WEBP"
    return content.startswith(_HEADS) or is_webp or is_avif(content)


def unreadable(content: bytes) -> str:
    """Return the message about bytes that cannot be decoded."""
    if is_picture(content):
        return DAMAGED
    head = content[:1024].lstrip()
    is_heic = content[4:8] == b"ftyp" and content[8:12] in _HEIC and b"avif" not in content[:64]
    kinds = {"HEIC": is_heic, "PDF": head.startswith(b"%PDF"), "SVG": head.startswith(b"<") and b"<svg" in head}
    advice = "".join(f" It is {kind}: convert it to JPEG or PNG first." for kind, is_it in kinds.items() if is_it)
    return f"This is not a readable picture; use a JPEG, PNG, WebP, AVIF, GIF, BMP or TIFF file.{advice}"


def check_size(image: Image.Image, max_pixels: int) -> int:
    """Return the number of pixels to decode, of a TIFF in whole tiles.

    Raises:
        PictureTooLargeError: there are more than `max_pixels`.
        UnreadablePictureError: the picture has no pixels.
    """
    width, height = image.size
    if image.format == "TIFF":  # decoded in whole tiles, which may be larger than the picture
        tags = getattr(image, "tag_v2", {})
        width, height = max(width, tags.get(_TILE_WIDTH, 0)), max(height, tags.get(_TILE_LENGTH, 0))
    if width * height > max_pixels:
        raise PictureTooLargeError(
            f"The picture is {width}×{height} = {width * height:,} pixels, more than the {max_pixels:,} "
            "that are allowed; use a smaller one."
        )
    if min(image.size) < 1:
        raise UnreadablePictureError("The picture has no pixels; use another one.")
    return width * height


def check_coded(content: bytes, max_pixels: int) -> tuple[bytes, int]:
    """Return an AVIF's still picture, and the number of pixels for which decoding it needs memory.

    Raises:
        PictureTooLargeError: there are more than `max_pixels`, or more than `MAX_FRAMES` frames of so many.
        UnreadablePictureError: the file is damaged, incomplete, or not a still picture.
    """
    still, coded = read_still(content)
    if coded.largest > max_pixels or coded.pixels * coded.frames > MAX_FRAMES * max_pixels:
        raise PictureTooLargeError(
            f"The AVIF can decode to {coded.frames:,} × {coded.pixels:,} pixels, more than the {max_pixels:,} that "
            "are allowed; save it again as a still picture, or use a smaller one."
        )
    # Samples of 10 or 12 bits take two bytes in the decoder, and another copy where the picture is scaled. It also
    # keeps up to eight frames that later ones refer to.
    return still, coded.pixels * (7 + 3 * min(coded.frames - 1, 8)) // 4


def check_directory(content: bytes) -> None:
    """Refuse a TIFF with an impossible number of tags, or whose size Pillow and libtiff may read differently.

    Pillow would spend minutes on too many tags. It skips tags of unknown types, which libtiff, the decoder, does not;
    and of a repeated tag, each may read another.

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
        raise UnreadablePictureError(f"The TIFF file claims {tags:,} tags and must be damaged; use the complete file.")
    first = place + count.size
    entries = content[first : first + tags * entry.size]
    whole = entries[: len(entries) // entry.size * entry.size]
    layout = [(tag, kind) for tag, kind, _ in entry.iter_unpack(whole) if tag in _LAYOUT]
    if len({tag for tag, _ in layout}) < len(layout) or not {kind for _, kind in layout} <= _INTEGERS:
        raise UnreadablePictureError("The TIFF file is ambiguous and must be damaged; save it again.")


def check_whole(image: Image.Image, content: bytes) -> None:
    """Refuse an incomplete file that decoders accept.

    A broken download may leave zeros at the end of the file. The JPEG decoder turns them into grey, and the PNG
    decoder, which compares no checksums of pixels, into noise.

    Raises:
        UnreadablePictureError: the file is incomplete, or cannot be checked.
    """
    check_compression(image)
    if image.format == "PNG":
        Image.open(io.BytesIO(content), formats=("PNG",)).verify()
    elif image.format in ("JPEG", "MPO") and content.find(_END, _scan_start(image)) < 0:
        raise UnreadablePictureError("The JPEG has no end: it is truncated or damaged; use the complete file.")


def check_compression(image: Image.Image) -> None:
    """Refuse a TIFF of compression 6: libtiff silently fills missing parts of such a file with grey."""
    if image.format == "TIFF" and image.info.get("compression") == "tiff_jpeg":
        raise UnreadablePictureError(
            "The TIFF file contains old-style JPEG (compression 6), which no decoder can check for completeness; "
            "save the picture as a JPEG or PNG, or save the TIFF again with another compression."
        )


def check_scans(image: Image.Image, content: bytes, max_pixels: int) -> None:
    """Refuse a JPEG of too many scans: a scan of all pixels may take only a few bytes of the file.

    Raises:
        PictureTooLargeError: more scans than `MAX_SCANS` of `max_pixels`.
    """
    if image.format in ("JPEG", "MPO") or image.info.get("compression") == "jpeg":
        scans, pixels = _scans(image, content)
        if scans * pixels > MAX_SCANS * max_pixels:
            raise PictureTooLargeError(
                f"The picture is {image.width}×{image.height} pixels in {scans:,} scans, which would take too long to "
                "decode; save it again, as a baseline JPEG or as a PNG."
            )


def _scans(image: Image.Image, content: bytes) -> tuple[int, int]:
    """Return the number of a JPEG's scans, and the most pixels of a scan."""
    if image.format == "TIFF":  # each strip or tile is a JPEG
        tags = image.tag_v2  # type: ignore[attr-defined]
        tiled = _TILE_WIDTH in tags
        firsts, sizes = (np.atleast_1d(tags.get(tag, 0)).tolist() for tag in (_TILES if tiled else _STRIPS))
        # If parts overlap, or the decoder would guess their sizes, each may hold all scans of the file.
        if len(firsts) == len(sizes) and min(sizes) > 0 and sum(sizes) <= len(content):
            rows = min(tags.get(_STRIP_ROWS, image.height), image.height)
            part = tags[_TILE_WIDTH] * tags[_TILE_LENGTH] if tiled else image.width * rows
            spans = zip(firsts, sizes, strict=True)
            return sum(content.count(_SCAN, first, first + size) for first, size in spans), part
    return content.count(_SCAN), image.width * image.height


def keeps_coefficients(image: Image.Image, content: bytes) -> bool:
    """Whether the decoder of a JPEG holds all coefficients in memory, at any scale.

    It does if a scan is not the whole picture: in a progressive JPEG, and if the first scan lacks components.
    """
    if "progressive" in image.info:
        return True
    end = _scan_start(image)
    return any(
        content.startswith(_SCAN + bytes([0, 6 + 2 * components, components]), end - 8 - 2 * components)
        for components in range(1, len(image.getbands()))
    )


def _scan_start(image: Image.Image) -> int:
    """Return the offset of the first scan's samples, in a JPEG that is open and not decoded."""
    return int(image.fp.tell())  # type: ignore[attr-defined]

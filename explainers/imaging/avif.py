"""The cost of opening and decoding an AVIF, read before the decoder sees the file.

Decoders parse the boxes of a file without limits: a few bytes can describe gigabytes of properties and parts of images,
or hours of searching. So everything that a still picture does not need is hidden from them, and the rest is limited to
far more than real files need.

The size that the container declares is not the size that is decoded: the decoder decodes the frames in the size that
the AV1 stream states, and then scales them. A few bytes may also hold thousands of frames, of which only the last is
shown. So the streams of all images in the file are read up to their headers. Sources: ISO/IEC 14496-12 (boxes), ISO/IEC
23008-12 (items), AV1 Bitstream & Decoding Process Specification 5.3 and 5.5 (units and sequence header).
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from seewhy.explainers.errors import UnreadablePictureError

_BRANDS = (b"avif", b"avis")
"""A still picture, and an animation."""

_SEQUENCE_HEADER, _FRAMES = 1, (3, 6, 7)
"""Types of AV1 units: the size of all frames, and those that begin a frame."""

_STILL_BRANDS = {b"avis": b"avif", b"msf1": b"mif1"}
"""The brands of still pictures that replace those of animations."""

_HELD = (b"ftyp", b"meta", b"mdat")
"""Boxes of a still picture; others, such as the video of an animation, are hidden."""

_DESCRIBED = (b"hdlr", b"pitm", b"iloc", b"iinf", b"iprp", b"iref", b"idat")
"""Boxes in `meta` that describe it."""

_KINDS = (b"av01", b"grid", b"Exif", b"mime", b"tmap")
"""Types of items: AV1 streams, their arrangement, metadata, gain maps."""

_BRAND_BYTES, _META_BYTES, _REFERENCE_BYTES, _PROPERTY_BYTES = 2**10, 2**22, 2**12, 2**24
"""Maximum bytes of the list of brands, of a file's description, of the list of references in it, and of all properties,
each counted for every item that has it, because decoders copy them."""

_BOXES, _ITEMS, _EXTENTS, _UNITS = 512, 256, 1024, 4096
"""Maximum number of boxes in a box, of items, of parts of them, and of units of AV1 streams."""

_ZEROS = 16
"""Number of zeros at the end of a stream that show a broken download; encoders pad a stream with few or none."""


@dataclass(frozen=True)
class Coded:
    """The size of the decoded AV1 streams of a file.

    Attributes:
        largest: pixels of the largest image, as its stream declares it.
        pixels: number of pixels for which decoding needs memory. Transparency is an image of its own, so these are half
            of all pixels, or those of the largest image. Frames of a stream for videos may be larger than it declares.
        frames: maximum number of frames of one image. A still picture has one, a progressive one up to four.
    """

    largest: int
    pixels: int
    frames: int


def is_avif(content: bytes) -> bool:
    """Whether bytes begin like an AVIF."""
    return content[4:8] == b"ftyp" and content[8:12] in _BRANDS


def read_still(content: bytes) -> tuple[bytes, Coded]:
    """Return an AVIF with nothing in it but its still picture, and the size of its decoded images.

    Raises:
        UnreadablePictureError: the file is damaged, incomplete, or not a still picture.
    """
    try:
        still, spans = _still(content)
        areas, bounds, frames = zip(*_streams(still, spans), strict=True)
    except (IndexError, KeyError, ValueError, struct.error) as error:
        raise UnreadablePictureError(
            "The AVIF is damaged or truncated and cannot be decoded; use the complete file."
        ) from error
    return still, Coded(max(areas), max(*bounds, sum(bounds) // 2), max(frames))


class _Bits:
    """A reader of big-endian integers of any number of bits."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._place = 0

    def take(self, count: int) -> int:
        """Return the next integer, of `count` bits."""
        first, last = self._place, self._place + count
        if last > 8 * len(self._content):
            raise ValueError("The content ends too early.")
        self._place = last
        whole = int.from_bytes(self._content[first // 8 : -(-last // 8)])
        return whole >> -last % 8 & (1 << count) - 1


def _boxes(content: bytes, first: int, end: int) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Yield type and span of the contents of each box in a span."""
    for _ in range(_BOXES):
        if first >= end:
            return
        size, kind = struct.unpack_from(">I4s", content, first)
        start, last = first + 8, first + size if size else end
        if not start <= last <= end:  # a size of 1 would say that 64 bits follow, as in videos
            raise ValueError(f"The box {kind!r} is not within the file.")
        yield kind, (start, last)
        first = last
    raise ValueError("There are too many boxes.")


def _still(content: bytes) -> tuple[bytes, dict[bytes, tuple[int, int]]]:
    """Return a file in which only the boxes of a still picture are visible, and the places of its description's boxes.

    Nothing is moved, so that places in the file stay the same.
    """
    outer = list(_boxes(content, 0, len(content)))
    (first, last), (start, end) = _unique(outer, b"ftyp"), _unique(outer, b"meta")
    if last - first > _BRAND_BYTES or end - start > _META_BYTES:
        raise ValueError("The description is too long.")
    still = bytearray(content)
    for at in range(first, last - 3, 4):  # the brands, by which decoders expect a video
        still[at : at + 4] = _STILL_BRANDS.get(content[at : at + 4], content[at : at + 4])
    inner = list(_boxes(content, start + 4, end))
    for boxes, kinds in ((outer, _HELD), (inner, _DESCRIBED)):
        for kind, (place, _) in boxes:
            if kind not in kinds:
                still[place - 4 : place] = b"free"
    described = [box for box in inner if box[0] in _DESCRIBED]
    spans = dict(described)
    if len(spans) < len(described):
        raise ValueError("A box is repeated.")
    return bytes(still), spans


def _unique(boxes: Iterable[tuple[bytes, tuple[int, int]]], kind: bytes) -> tuple[int, int]:
    """Return the span of the only box of a kind; of several, a decoder may read another."""
    (span,) = (span for other, span in boxes if other == kind)
    return span


def _streams(content: bytes, spans: dict[bytes, tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield pixels, most pixels of a frame, and frames of the AV1 stream of each image."""
    first, last = spans.get(b"iref", (0, 0))
    if last - first > _REFERENCE_BYTES:
        raise ValueError("There are too many references.")
    kinds = _kinds(content, *spans[b"iinf"])
    _check_properties(content, *spans[b"iprp"])
    size = units = 0
    for item, parts in _locations(content, spans):
        size += sum(last - first for first, last in parts)
        if size > len(content):
            raise ValueError("Images share their bytes.")  # each could be all of the file
        if kinds.get(item) == b"av01":
            stream = b"".join(content[first:last] for first, last in parts)
            area, bound, frames, count = _stream(stream, _UNITS - units)
            units += count
            yield area, bound, frames


def _kinds(content: bytes, first: int, end: int) -> dict[int, bytes]:
    """Return the type of each item."""
    kinds: dict[int, bytes] = {}
    for number, (kind, (start, last)) in enumerate(_boxes(content, first + (8 if content[first] else 6), end)):
        bits = _Bits(content[start:last])
        version = bits.take(32) >> 24
        item = bits.take(32 if version > 2 else 16)
        bits.take(16)
        is_repeated = item in kinds  # a decoder may read another
        kinds[item] = bits.take(32).to_bytes(4)
        if is_repeated or kind != b"infe" or version not in (2, 3) or number >= _ITEMS or kinds[item] not in _KINDS:
            raise ValueError("The items are not those of a picture.")
    return kinds


def _check_properties(content: bytes, first: int, end: int) -> None:
    """Refuse too many properties, and those that are too large, counted for every item that has them."""
    boxes = list(_boxes(content, first, end))
    properties = [last - start for _, (start, last) in _boxes(content, *_unique(boxes, b"ipco"))]
    bits = _Bits(content[slice(*_unique(boxes, b"ipma"))])
    version, is_wide = bits.take(8), bits.take(24) & 1
    count, total = bits.take(32), 0
    if count > _ITEMS or len(boxes) > 2:
        raise ValueError("There are too many properties.")
    for _ in range(count):
        bits.take(32 if version else 16)
        for _ in range(bits.take(8)):
            number = bits.take(16 if is_wide else 8) & (0x7FFF if is_wide else 0x7F)
            total += properties[number - 1] if number else 0
    if total > _PROPERTY_BYTES:
        raise ValueError("The properties are too large.")


def _locations(content: bytes, boxes: dict[bytes, tuple[int, int]]) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Yield the number of each item, and the spans of its parts."""
    bits = _Bits(content[slice(*boxes[b"iloc"])])
    version = bits.take(32) >> 24
    offset_bits, length_bits, base_bits, index_bits = (8 * bits.take(4) for _ in range(4))
    number_bits = 32 if version > 1 else 16
    items, extents = bits.take(number_bits), 0
    if items > _ITEMS:
        raise ValueError("There are too many items.")
    for _ in range(items):
        item = bits.take(number_bits)
        method = bits.take(16) & 15 if version else 0
        bits.take(16)
        first, end = {0: (0, len(content)), 1: boxes.get(b"idat", (0, 0))}[method]
        base = first + bits.take(base_bits)
        spans = []
        count = bits.take(16)
        extents += count
        if extents > _EXTENTS:
            raise ValueError("There are too many parts.")
        for _ in range(count):
            bits.take(index_bits if version else 0)
            start = base + bits.take(offset_bits)
            length = bits.take(length_bits)
            last = start + length if length else end
            if not first <= start <= last <= end:
                raise ValueError("An image lies outside of the file.")
            spans.append((start, last))
        yield item, spans


def _stream(stream: bytes, most: int) -> tuple[int, int, int, int]:
    """Return the pixels that a stream declares, most of one frame, and the numbers of frames and units."""
    if not any(stream[-_ZEROS:]):
        raise ValueError("The end is missing.")
    sizes, frames, units = [], 0, 0
    for units, (kind, content) in enumerate(_units(stream), start=1):
        if units > most:
            raise ValueError("There are too many units.")
        if kind == _SEQUENCE_HEADER:
            sizes.append(_sequence_size(_Bits(content)))
        frames += kind in _FRAMES
    declared, bounds = zip(*sizes, strict=True)
    return max(declared), max(bounds), frames, units


def _units(stream: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the type and the content of each unit (OBU) of an AV1 stream."""
    place = 0
    while place < len(stream):
        header = stream[place]
        place += 2 if header & 4 else 1  # with an extension, of one byte
        size = len(stream) - place
        if header & 2:
            size = 0
            for shift in range(0, 56, 7):
                size |= (stream[place] & 127) << shift
                place += 1
                if stream[place - 1] < 128:
                    break
        if header & 128 or size > len(stream) - place:
            raise ValueError("The stream is damaged.")
        yield header >> 3 & 15, stream[place : place + size]
        place += size


def _sequence_size(bits: _Bits) -> tuple[int, int]:
    """Return the pixels that a sequence header declares, and most of one frame."""
    bits.take(4)  # profile, and whether the stream is one picture
    is_one_picture = bits.take(1)
    if is_one_picture:
        bits.take(5)
    else:
        if bits.take(1):
            raise ValueError("The stream has the timing of a video.")
        has_delay = bits.take(1)
        for _ in range(bits.take(5) + 1):
            bits.take(12)
            bits.take(1 if bits.take(5) > 7 else 0)
            bits.take(4 if has_delay and bits.take(1) else 0)
    width_bits, height_bits = bits.take(4) + 1, bits.take(4) + 1
    declared = (bits.take(width_bits) + 1) * (bits.take(height_bits) + 1)
    return declared, declared if is_one_picture else 1 << width_bits + height_bits

"""What decoding an AVIF takes, read before it is decoded.

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

_SEQUENCE_HEADER, _FRAMES = 1, (3, 6)
"""Types of AV1 units: the size of all frames, and those that begin a frame."""

_ZEROS = 16
"""Number of zeros at the end of a stream that show a broken download; encoders pad a stream with few or none."""


@dataclass(frozen=True)
class Coded:
    """What the AV1 streams of a file decode to.

    Attributes:
        largest: pixels of the largest image, as its stream declares it.
        pixels: number for which decoding needs memory. Transparency is an image of its own, so these are half of all
            pixels, or those of the largest image. Frames of a stream for videos may be larger than it declares.
        frames: most frames of one image. A still picture has one, a progressive one up to four.
    """

    largest: int
    pixels: int
    frames: int


def is_avif(content: bytes) -> bool:
    """Whether bytes begin like an AVIF."""
    return content[4:8] == b"ftyp" and content[8:12] in _BRANDS


def as_still(content: bytes) -> bytes:
    """Return an AVIF of which decoders read the still picture, and not the video that an animation also has."""
    return content[:8] + _BRANDS[0] + content[12:] if content[8:12] == _BRANDS[1] else content


def read_coded(content: bytes) -> Coded:
    """Return what the images of an AVIF decode to.

    Raises:
        UnreadablePictureError: the file is damaged, incomplete, or no still picture.
    """
    try:
        areas, bounds, frames = zip(*(_stream(image) for image in _images(content)), strict=True)
    except (IndexError, KeyError, ValueError, struct.error) as error:
        raise UnreadablePictureError(
            "The AVIF is damaged or truncated and cannot be decoded; check the file and send it completely."
        ) from error
    return Coded(max(areas), max(*bounds, sum(bounds) // 2), max(frames))


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
    while first < end:
        size, kind = struct.unpack_from(">I4s", content, first)
        start = first + 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", content, start)
            start += 8
        last = first + size if size else end
        if not start <= last <= end:
            raise ValueError(f"The box {kind!r} is longer than the file.")
        yield kind, (start, last)
        first = last


def _unique(boxes: Iterable[tuple[bytes, tuple[int, int]]]) -> dict[bytes, tuple[int, int]]:
    """Return the span of each box; of a repeated one, a decoder may read another."""
    spans: dict[bytes, tuple[int, int]] = {}
    for kind, span in boxes:
        if kind in spans and kind in (b"meta", b"iinf", b"iloc", b"idat"):
            raise ValueError(f"The box {kind!r} is repeated.")
        spans[kind] = span
    return spans


def _images(content: bytes) -> Iterator[bytes]:
    """Yield the AV1 stream of each image."""
    start, end = _unique(_boxes(content, 0, len(content)))[b"meta"]
    boxes = _unique(_boxes(content, start + 4, end))
    coded = set(_coded_items(content, *boxes[b"iinf"]))
    held = 0
    for item, spans in _locations(content, boxes):
        held += sum(last - first for first, last in spans)
        if held > len(content):
            raise ValueError("Images share their bytes.")  # each could be all of the file
        if item in coded:
            yield b"".join(content[first:last] for first, last in spans)


def _coded_items(content: bytes, first: int, end: int) -> Iterator[int]:
    """Yield the number of each item that is an AV1 stream."""
    for kind, (start, last) in _boxes(content, first + (8 if content[first] else 6), end):
        if kind == b"infe":
            bits = _Bits(content[start:last])
            version = bits.take(32) >> 24
            item = bits.take(32 if version > 2 else 16)
            bits.take(16)
            if bits.take(32).to_bytes(4) == b"av01":
                yield item


def _locations(content: bytes, boxes: dict[bytes, tuple[int, int]]) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Yield the number of each item, and the spans of its parts."""
    bits = _Bits(content[slice(*boxes[b"iloc"])])
    version = bits.take(32) >> 24
    offset_bits, length_bits, base_bits, index_bits = (8 * bits.take(4) for _ in range(4))
    number_bits = 32 if version > 1 else 16
    for _ in range(bits.take(number_bits)):
        item = bits.take(number_bits)
        method = bits.take(16) & 15 if version else 0
        bits.take(16)
        first, end = {0: (0, len(content)), 1: boxes.get(b"idat", (0, 0))}[method]
        base = first + bits.take(base_bits)
        spans = []
        for _ in range(bits.take(16)):
            bits.take(index_bits if version else 0)
            start = base + bits.take(offset_bits)
            length = bits.take(length_bits)
            last = start + length if length else end
            if not first <= start <= last <= end:
                raise ValueError("An image lies outside of the file.")
            spans.append((start, last))
        yield item, spans


def _stream(stream: bytes) -> tuple[int, int, int]:
    """Return the pixels that a stream declares, most of one frame, and the number of frames."""
    if not any(stream[-_ZEROS:]):
        raise ValueError("The end is missing.")
    sizes, frames = [], 0
    for kind, content in _units(stream):
        if kind == _SEQUENCE_HEADER:
            sizes.append(_sequence_size(_Bits(content)))
        frames += kind in _FRAMES
    declared, bounds = zip(*sizes, strict=True)
    return max(declared), max(bounds), frames


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

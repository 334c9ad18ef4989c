"""The decoded size of an AVIF is known before it is decoded, whatever it declares."""

import io
import struct

import numpy as np
import pytest
from PIL import AvifImagePlugin, Image

from seewhy.explainers.errors import PictureTooLargeError, UnreadablePictureError
from seewhy.explainers.imaging.avif import Coded, read_still
from seewhy.explainers.imaging.decode import Probe, read_picture
from tools.hostile.pictures import NONE, animated, avif, box, descriptions, encoded, photograph, sequence_header, unit


def read_coded(content: bytes) -> Coded:
    return read_still(content)[1]


STREAM = unit(1, sequence_header(300, 200)) + unit(6, b"frame")
"""An AV1 stream that is right as far as it is read before it is decoded."""

PADDED = unit(15, b"padding" * 200) + STREAM

VIDEO = "00000"
"""The first bits of a sequence header for videos."""


@pytest.mark.parametrize(("mode", "size"), [("RGB", (64, 48)), ("RGBA", (301, 7)), ("L", (1, 1)), ("RGB", (1025, 513))])
def test_the_size_of_a_stream_is_that_of_the_picture(mode, size):
    pixels = size[0] * size[1]
    assert read_coded(encoded(photograph(*size, mode), "AVIF")) == Coded(pixels, pixels, 1)


def test_a_frame_larger_than_declared_is_counted_and_refused():
    whole = encoded(photograph(320, 240), "AVIF")
    place = whole.index(b"ispe") + 8
    content = whole[:place] + struct.pack(">II", 64, 48) + whole[place + 8 :]
    assert Image.open(io.BytesIO(content)).size == (64, 48)
    assert Probe(content).pixels == 320 * 240 * 7 // 4
    with pytest.raises(PictureTooLargeError, match="1 × 76,800 pixels"):
        read_picture(content, 320 * 240 - 1)


def test_a_made_file_is_read_as_decoders_read_it():
    whole = encoded(photograph(), "AVIF")
    content = avif(whole[whole.index(b"mdat") + 4 :], 64, 48)
    assert np.array_equal(np.asarray(read_picture(content)), np.asarray(read_picture(whole)))


def test_frames_are_counted():
    frames = unit(1, sequence_header(300, 200)) + unit(3, b"header") + unit(4, b"tiles") + unit(6, b"frame") * 4
    assert read_coded(avif(frames, 300, 200)) == Coded(60_000, 60_000, 5)
    content = avif(frames, 300, 200)
    with pytest.raises(PictureTooLargeError, match="5 × 60,000"):
        Probe(content, 74_999)
    assert Probe(content, 75_000).pixels == 60_000 * (7 + 3 * 4) // 4


def test_frames_with_a_redundant_header_are_counted():
    frames = unit(1, sequence_header(300, 200)) + unit(6, b"frame") + (unit(7, b"header") + unit(4, b"tiles")) * 4
    assert read_coded(avif(frames, 300, 200)).frames == 5


def test_an_item_of_two_types_is_refused():
    content = avif(STREAM * 3, 300, 200, tuple((len(STREAM) * part, len(STREAM)) for part in range(3)))
    third = b"\x02\0\0\0\0\x03\0\0av01"
    assert content.count(third) == 1
    with pytest.raises(UnreadablePictureError, match="use the complete file"):
        read_coded(content.replace(third, b"\x02\0\0\0\0\x02\0\0Exif"))


def test_images_count_together():
    spans = ((0, len(STREAM)), *((len(STREAM) * part, len(STREAM)) for part in range(1, 6)))
    assert read_coded(avif(STREAM * 6, 300, 200, spans)) == Coded(60_000, 180_000, 1)


@pytest.mark.parametrize(
    "head",
    [
        f"{VIDEO}0000000" + "0" * 12 + "00000",
        f"{VIDEO}0000001" + ("0" * 12 + "010000") * 2,
        f"{VIDEO}0100000" + "0" * 12 + "0000010000",
    ],
    ids=["plain", "two operating points with tiers", "delay"],
)
def test_frames_of_a_video_may_be_as_large_as_its_fields(head):
    stream = unit(1, sequence_header(300, 200, head)) + unit(6, b"frame")
    coded = read_coded(avif(stream, 300, 200))
    assert (coded.largest, coded.pixels) == (60_000, 2**32)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(avif(STREAM, 300, 200)[:-1], id="cut"),
        pytest.param(avif(STREAM + bytes(16), 300, 200), id="zeros at the end"),
        pytest.param(avif(PADDED, 300, 200, ((0, len(PADDED)),) * 3), id="shared bytes"),
        pytest.param(avif(STREAM[3:], 300, 200), id="no sequence header"),
        pytest.param(avif(b"\xfa\0" + STREAM, 300, 200), id="forbidden bit"),
        pytest.param(avif(b"\x7a" + b"\x80" * 20 + b"\0" + STREAM, 300, 200), id="endless length"),
        pytest.param(avif(unit(1, sequence_header(9, 9, f"{VIDEO}1")) + STREAM, 9, 9), id="timing of a video"),
        pytest.param(avif(STREAM, 9, 9) + avif(STREAM, 9, 9)[28:], id="repeated box"),
        pytest.param(box(b"ftyp", b"avif\0\0\0\0") + box(b"mdat", STREAM), id="no items"),
        pytest.param(avif(STREAM, 9, 9).replace(b"av01", b"hvc1"), id="no AV1"),
        pytest.param(avif(STREAM, 9, 9).replace(b"iinf", b"free"), id="no kinds"),
    ],
)
def test_what_cannot_be_read_is_refused(content):
    with pytest.raises(UnreadablePictureError, match="use the complete file"):
        read_coded(content)


def test_an_animation_gives_its_first_frame():
    content = animated("AVIF", 3)
    assert content[8:12] == b"avis"
    assert np.asarray(read_picture(content)).max(axis=(0, 1))[0] <= 1  # the first is black, the second has red
    with Image.open(io.BytesIO(content)) as image:
        image.seek(1)
        assert image.n_frames == 3
    assert Probe(content)._image.n_frames == 1


DESCRIPTIONS = [picture for picture in descriptions() if picture.answers == NONE]


@pytest.mark.parametrize("picture", DESCRIPTIONS, ids=lambda picture: picture.name)
def test_a_hostile_description_is_refused_before_the_decoder_sees_it(picture, monkeypatch):
    monkeypatch.setattr(AvifImagePlugin.AvifImageFile, "_open", lambda _: pytest.fail("opened"))
    with pytest.raises(UnreadablePictureError, match="use "):
        Probe(picture.content)


def test_only_a_still_picture_reaches_the_decoder():
    still, _ = read_still(animated("AVIF", 3))
    assert still[8:12] == b"avif"
    assert not any(name in still for name in (b"moov", b"avis", b"msf1"))
    extended = avif(STREAM, 300, 200).replace(b"hdlr", b"what")
    assert b"what" not in read_still(extended)[0]

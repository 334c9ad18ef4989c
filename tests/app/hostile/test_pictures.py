"""Every hostile picture is answered rightly, soon, and within bounds of memory; nothing is printed."""

import io
import json
import struct
import subprocess
import sys
import zlib
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from seewhy.explainers.errors import PictureTooLargeError, UnreadablePictureError
from seewhy.explainers.imaging.decode import FORMATS, read_picture
from seewhy.explainers.imaging.upload_checks import MAX_SCANS
from tools.hostile import pictures, trial

SCAN = b"\xff\xda"
"""What a scan of a JPEG begins with."""

SECONDS = 5
"""Of processors, for each answer."""

GROWTH = 512 * 2**20
"""Bytes that the service may grow by for one picture: one of 64 megapixels takes 256 MB as Pillow keeps it."""


@pytest.fixture(scope="module")
def answered():
    command = [sys.executable, "-W", "always", "-m", "tools.hostile.trial", "--some"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=570)
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    return [trial.Answered(**json.loads(line)) for line in process.stdout.splitlines()]


@pytest.mark.slow
def test_every_picture_is_answered_rightly_over_every_carrier(answered):
    assert len(answered) > 350
    assert {case.carrier for case in answered} == set(trial.CARRIERS)
    assert [case for case in answered if case.status not in case.expected] == []


@pytest.mark.slow
def test_errors_are_problems_that_say_what_to_do(answered):
    for case in answered:
        assert case.kind == ("application/json" if case.status == 200 else "application/problem+json"), case
        if case.status != 200:
            assert any(word in case.detail for word in ("send", "; use ", "save")) or case.status == 400, case
            assert not any(word in case.detail for word in ("Traceback", "site-packages", "0x7", "/home", "/tmp")), case


@pytest.mark.slow
def test_no_picture_takes_long_or_much_memory(answered):
    assert [case for case in answered if case.seconds > SECONDS] == []
    assert [case for case in answered if case.growth > GROWTH] == []


@pytest.mark.slow
def test_every_family_has_something_that_is_refused_or_is_right(answered):
    results = {}
    for case in answered:
        results.setdefault(case.family, Counter())[case.status] += 1
    assert set(results["rare samples"]) == set(results["thin"]) == {200}
    assert results["JPEG scans"][413] == 3
    assert results["bomb of pixels"][413] == 6
    assert 200 not in results["truncated"]


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_only_the_allowed_decoders_are_ever_tried(monkeypatch):
    # Another decoder, even if someone has loaded it, gets to see nothing.
    Image.init()
    tried = []
    for name, (factory, accept) in dict(Image.OPEN).items():

        def spied(*args, name=name, accept=accept):
            tried.append(name)
            return accept is None or accept(*args)

        monkeypatch.setitem(Image.OPEN, name, (factory, spied))
    for content in [*pictures.sound().values(), *(file.content for file in pictures.foreign_files())]:
        try:
            read_picture(content)
        except UnreadablePictureError:
            continue
    assert set(tried) == set(FORMATS) == set(pictures.FORMATS)
    with Image.open(io.BytesIO(b"P6 2 2 255\n" + bytes(12))) as image:  # which Pillow by itself reads
        assert image.format == "PPM"
    assert "PPM" in tried


def test_the_transparent_colour_of_16_bits_is_white():
    for name in ("PNG, 16-bit grey, tRNS", "PNG, 16-bit colour, tRNS"):
        (content,) = [kind.content for kind in pictures.kinds() if kind.name == name]
        values = np.asarray(read_picture(content))
        assert (values[:, :4] == 255).all(), name
        assert (values[:, 4:] == 128).all(), name


def test_one_grey_of_16_bits_is_transparent_and_not_its_neighbours():
    row = b"\0" + b"\x12\x34\x12\x35"
    clear = pictures.chunk(b"tRNS", b"\x12\x34")
    values = np.asarray(read_picture(pictures.png(2, 1, zlib.compress(row), 16, 0, clear)))
    assert values[0, :, 0].tolist() == [255, 0x12]


def test_scans_are_counted_against_the_pixels():
    content = pictures.scans(100, 64)
    scans = content.count(SCAN)
    least = -(-scans * 64 * 64 // MAX_SCANS)
    assert pictures.reduced(content, (64, 64), least)[1] == (64, 64)
    with pytest.raises(PictureTooLargeError, match=f"{scans} scans"):
        pictures.reduced(content, (64, 64), max(least - 1, 64 * 64))


@pytest.mark.parametrize("tiled", [True, False], ids=["tiles", "strips"])
def test_scans_of_a_tiff_are_counted_in_each_of_its_parts(tiled):
    width = 1024 if tiled else 64
    right = pictures.encoded(Image.new("L", (64, 64), 90), "JPEG")
    content = pictures.jpeg_tiff(width, 4096, 64, right, tiled)
    assert content.count(SCAN) > MAX_SCANS
    assert np.unique(read_picture(content, width * 4096)).tolist() == [90]
    wrong = pictures.scans(2 * MAX_SCANS, 64)
    for shared in (False, True):
        content = pictures.jpeg_tiff(width, 4096, 64, wrong, tiled, shared)
        with pytest.raises(PictureTooLargeError, match=f" {content.count(SCAN):,} scans"):
            read_picture(content, width * 4096)


def test_tiles_of_a_tiff_count_as_its_pixels():
    tiles = [pictures.long(*tag) for tag in ((322, 128), (323, 128), (324, 8), (325, 4))]
    content = pictures.tiff([*pictures.grey_tags(64, 48, 8, 64 * 48)[:5], *tiles])
    with pytest.raises(PictureTooLargeError, match="that are allowed"):
        read_picture(content, 128 * 128 - 1)


@pytest.mark.parametrize(("kind", "edges", "first"), [(17, (), False), (4, (16,), False), (4, (16,), True)])
def test_a_tiff_whose_size_may_be_read_in_two_ways_is_refused(kind, edges, first, monkeypatch):
    content = pictures.hidden_tile(kind, *edges, first=first)
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("opened"))
    with pytest.raises(UnreadablePictureError, match="ambiguous"):
        read_picture(content, 1_000_000)


def test_a_tiff_of_more_tags_than_there_can_be_is_refused_before_they_are_read(monkeypatch):
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("opened"))
    for count in (2**16, 2**62):
        with pytest.raises(UnreadablePictureError, match=f"{count:,} tags"):
            read_picture(b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, count))


def test_damaged_metadata_leaves_the_picture_as_it_lies():
    plain = np.asarray(read_picture(pictures.sound()["PNG"]))
    for picture in pictures.exif():
        if picture.name in ("PNG, text", "PNG, raw profile, no numbers", "PNG, nothing"):
            assert np.array_equal(np.asarray(read_picture(picture.content)), plain), picture.name

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from seewhy.explainers.imaging import png
from seewhy.explainers.imaging.png import encode_png


def noise(width, height, mode="RGB"):
    channels = len(mode)
    samples = np.random.default_rng(width).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return Image.fromarray(samples.squeeze(2) if channels == 1 else samples)


@pytest.fixture(params=["as installed", "zlib"])
def deflate(request, monkeypatch):
    """Run a test with what is installed, and with what every Python has."""
    if request.param == "zlib":
        monkeypatch.setattr(png, "deflate", zlib.compress)
        monkeypatch.setattr(png, "crc32", zlib.crc32)


@pytest.mark.usefixtures("deflate")
@pytest.mark.parametrize("size", [(1, 1), (1, 700), (700, 1), (3, 2), (257, 130)])
def test_every_pixel_comes_back(size):
    picture = noise(*size)
    with Image.open(io.BytesIO(encode_png(picture))) as image:
        assert (image.format, image.mode, image.size) == ("PNG", "RGB", size)
        assert image.tobytes() == picture.tobytes()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_grey_pictures_stay_grey(dtype):
    samples = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (30, 21), dtype=dtype, endpoint=True)
    with Image.open(io.BytesIO(encode_png(Image.fromarray(samples)))) as image:
        assert np.array_equal(np.asarray(image), samples)
        assert image.mode == ("L" if dtype is np.uint8 else "I;16")


def test_other_modes_become_rgb():
    picture = noise(20, 30, "RGBA")
    with Image.open(io.BytesIO(encode_png(picture))) as image:
        assert image.tobytes() == picture.convert("RGB").tobytes()


def test_the_chunks_are_those_of_the_format():
    content = encode_png(noise(5, 4))
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    kinds, place = [], 8
    while place < len(content):
        (length,) = struct.unpack_from(">I", content, place)
        kinds.append(content[place + 4 : place + 8])
        (check,) = struct.unpack_from(">I", content, place + 8 + length)
        assert check == zlib.crc32(content[place + 4 : place + 8 + length])
        place += 12 + length
    assert kinds == [b"IHDR", b"IDAT", b"IEND"]


@pytest.mark.usefixtures("deflate")
def test_a_drawing_is_about_as_small_as_pillow_makes_it(cat):
    with Image.open(io.BytesIO(cat)) as picture:
        image = Image.blend(picture.convert("RGB"), Image.radial_gradient("L").resize(picture.size).convert("RGB"), 0.5)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=3)
    assert len(encode_png(image)) < 1.15 * buffer.tell()

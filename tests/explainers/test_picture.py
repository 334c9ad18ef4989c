import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms

from seewhy import explain, wrap_model
from seewhy.explainers.errors import PictureTooLargeError, UnreadablePictureError
from seewhy.explainers.imaging.decode import Probe, read_picture
from tests import nets
from tools.hostile.pictures import reduced

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
EXACT = {
    "WEBP": {"lossless": True},
    "JPEG": {"quality": 100, "subsampling": 0},
    "AVIF": {"quality": 100, "subsampling": "4:4:4"},
}


@pytest.fixture
def corners() -> Image.Image:
    """20 by 10: red at the top left, green at the top right, blue below."""
    picture = Image.new("RGB", (20, 10), BLUE)
    picture.paste(RED, (0, 0, 10, 5))
    picture.paste(GREEN, (10, 0, 20, 5))
    return picture


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def pixels(picture: Image.Image) -> np.ndarray:
    assert picture.mode == "RGB"
    return np.asarray(picture).astype(int)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF", "WEBP", "JPEG", "AVIF"])
def test_every_format_is_read(kind, corners):
    picture = read_picture(encoded(corners, kind, **EXACT.get(kind, {})))
    assert np.abs(pixels(picture) - pixels(corners)).max() <= {"JPEG": 4, "AVIF": 3}.get(kind, 0)


def test_a_path_a_pil_image_and_bytes_are_the_same(corners, tmp_path):
    file = tmp_path / "picture.png"
    corners.save(file)
    for source in (file, str(file), file.read_bytes(), corners, np.asarray(corners)):
        assert np.array_equal(pixels(read_picture(source)), pixels(corners))


def test_a_path_that_does_not_exist_is_the_systems_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_picture(tmp_path / "nothing.png")


UNDO = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_90", "TRANSVERSE", "ROTATE_270")
"""The transpositions that undo the orientations from 2 to 8."""


def turned(picture: Image.Image, kind: str, orientation: int, **options: Any) -> bytes:
    """Return a file that stores a picture in another orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = picture if orientation == 1 else picture.transpose(Image.Transpose[UNDO[orientation - 2]])
    return encoded(stored, kind, exif=exif, **options)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation, kind, corners):
    picture = read_picture(turned(corners, kind, orientation, **EXACT.get(kind, {})))
    assert picture.size == (20, 10)
    assert np.abs(pixels(picture) - pixels(corners)).max() <= 4


def test_a_palette_with_transparency_is_laid_over_white():
    picture = Image.new("P", (2, 1))
    picture.putpalette([*RED, *BLUE])
    picture.putpixel((1, 0), 1)
    plain = read_picture(encoded(picture, "PNG"))
    assert [plain.getpixel((0, 0)), plain.getpixel((1, 0))] == [RED, BLUE]
    clear = read_picture(encoded(picture, "PNG", transparency=1))
    assert [clear.getpixel((0, 0)), clear.getpixel((1, 0))] == [RED, WHITE]


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("RGBA", (255, 0, 0, 0), WHITE),
        ("RGBA", (255, 0, 0, 255), RED),
        ("RGBA", (255, 0, 0, 128), (255, 127, 127)),
        ("LA", (0, 0), WHITE),
        ("LA", (80, 255), (80, 80, 80)),
        ("L", 80, (80, 80, 80)),
        ("1", 1, WHITE),
        ("I;16", 65535, WHITE),
        ("I;16", 32896, (128, 128, 128)),
    ],
)
def test_modes_of_a_png(mode, colour, expected):
    result = read_picture(encoded(Image.new(mode, (3, 2), colour), "PNG")).getpixel((0, 0))
    assert np.allclose(result, expected, atol=1)


def test_a_transparent_colour_of_an_rgb_png_is_white(corners):
    picture = read_picture(encoded(corners, "PNG", transparency=RED))
    assert picture.getpixel((0, 0)) == WHITE
    assert picture.getpixel((19, 0)) == GREEN


def test_cmyk_is_converted(corners):
    picture = read_picture(encoded(corners.convert("CMYK"), "JPEG", quality=100))
    assert np.abs(pixels(picture) - pixels(corners)).max() <= 12


@pytest.mark.parametrize(
    ("samples", "dtype", "expected"),
    [
        ([0.0, 0.5, 1.0], np.float32, [0, 128, 255]),
        ([0.0, 1.0, 2.0], np.float32, [0, 128, 255]),
        ([-1.0, np.nan, 1.0], np.float32, [0, 0, 255]),
        ([0.0, 0.0, 0.0], np.float32, [0, 0, 0]),
        ([0, 32896, 65535], np.int32, [0, 128, 255]),
    ],
)
def test_samples_of_32_bits_are_scaled(samples, dtype, expected):
    picture = pixels(read_picture(encoded(Image.fromarray(np.array([samples], dtype)), "TIFF")))
    assert picture[0, :, 0].tolist() == picture[0, :, 1].tolist() == expected


def test_an_icc_profile_is_converted_to_srgb(corners):
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB"))
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
    in_lab = ImageCms.profileToProfile(corners, srgb, lab, outputMode="LAB")
    picture = read_picture(encoded(in_lab, "TIFF", icc_profile=lab.tobytes()))
    assert np.abs(pixels(picture) - pixels(corners)).max() <= 40
    assert picture.getpixel((0, 0))[0] > 200


def swapped_srgb() -> bytes:
    """An sRGB profile whose red and blue primaries are exchanged."""
    content = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    content = content.replace(b"rXYZ", b"?XYZ", 1).replace(b"bXYZ", b"rXYZ", 1).replace(b"?XYZ", b"bXYZ", 1)
    return bytes(content)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_the_profile_decides_what_red_is(kind):
    picture = read_picture(encoded(Image.new("RGB", (8, 8), RED), kind, icc_profile=swapped_srgb()))
    assert np.allclose(picture.getpixel((4, 4)), BLUE, atol=12)


def test_a_broken_profile_is_ignored(corners):
    picture = read_picture(encoded(corners, "PNG", icc_profile=b"no profile"))
    assert np.array_equal(pixels(picture), pixels(corners))


def test_the_first_frame_of_an_animation_is_taken(corners):
    second = Image.new("RGB", corners.size, GREEN)
    for kind in ("GIF", "WEBP", "TIFF", "PNG"):
        content = encoded(corners, kind, save_all=True, append_images=[second], **EXACT.get(kind, {}))
        assert np.array_equal(pixels(read_picture(content)), pixels(corners)), kind


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "TIFF", "PNG", "AVIF", "MPO", "JPEG", "BMP"])
def test_a_file_of_several_frames_is_known(corners, kind):
    is_animated = kind in ("GIF", "WEBP", "TIFF", "PNG", "AVIF")
    second = Image.new("RGB", corners.size, GREEN)
    more = {} if kind in ("JPEG", "BMP") else {"save_all": True, "append_images": [second, corners]}
    assert Probe(encoded(corners, kind, **more)).has_more is is_animated
    assert not Probe(encoded(corners, kind)).has_more


@pytest.mark.parametrize("options", [{"duration": 100}, {"optimize": True}, {"comment": b"two"}, {"transparency": 0}])
def test_frames_of_a_gif_are_known_however_it_was_saved(corners, options):
    second = Image.new("RGB", corners.size, GREEN)
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (900, 900, 3), dtype=np.uint8))
    assert Probe(encoded(corners, "GIF", save_all=True, append_images=[second], **options)).has_more
    assert Probe(encoded(noise, "GIF", save_all=True, append_images=[noise.rotate(90)], **options)).has_more
    assert not Probe(encoded(noise, "GIF", **options)).has_more


def test_who_explains_the_first_of_several_frames_is_told(corners):
    model = wrap_model(nets.seeded(nets.Net), input_size=32)
    animation = encoded(corners, "PNG", save_all=True, append_images=[Image.new("RGB", corners.size, GREEN)])
    codes = [{note.code for note in explain(model, file).diagnostics} for file in (encoded(corners, "PNG"), animation)]
    assert codes[1] - codes[0] == {"first-frame"}


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.full((2, 3), 7, np.uint8), (7, 7, 7)),
        (np.full((2, 3, 1), 7, np.uint8), (7, 7, 7)),
        (np.full((2, 3, 3), (1, 2, 3), np.uint8), (1, 2, 3)),
        (np.full((2, 3, 4), (1, 2, 3, 0), np.uint8), WHITE),
        (np.full((2, 3, 3), 0.5, np.float64), (128, 128, 128)),
        (np.full((2, 3), 1.0, np.float16), WHITE),
    ],
)
def test_arrays_are_read(array, expected):
    picture = read_picture(array)
    assert picture.size == (3, 2)
    assert picture.getpixel((0, 0)) == expected


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((3, 8, 8), np.uint8),
        np.zeros(4, np.uint8),
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((4, 4, 3), np.int64),
        np.full((4, 4), 1.5),
        np.full((4, 4), np.nan),
        np.full((4, 4), -0.1),
        np.zeros((4, 4), bool),
    ],
)
def test_arrays_that_are_no_pictures_are_refused(array):
    with pytest.raises(UnreadablePictureError):
        read_picture(array)


def test_what_arrays_and_tensors_must_be_is_said():
    with pytest.raises(UnreadablePictureError, match=r"A float array must lie in \[0, 1\]; scale it, or pass uint8"):
        read_picture(np.full((4, 4), 1.5))
    model = wrap_model(nets.seeded(nets.Net), input_size=32)
    with pytest.raises(UnreadablePictureError, match="which look like levels that are not normalised"):
        explain(model, torch.rand(3, 32, 32))
    with pytest.raises(UnreadablePictureError, match=r"float and normalised, not \(3, 32, 32\) of torch.uint8"):
        explain(model, torch.zeros(3, 32, 32, dtype=torch.uint8))


def png(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds a single byte of samples."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("width", "height"), [(60_000, 60_000), (12_000, 12_000), (8_001, 8_000)])
def test_a_header_that_claims_too_many_pixels_is_refused_without_decoding(width, height, monkeypatch):
    monkeypatch.setattr(Image.Image, "load", lambda *_: pytest.fail("decoded"))
    with pytest.raises(PictureTooLargeError, match="that are allowed"):
        read_picture(png(width, height))


def test_the_limit_is_the_callers(corners):
    assert read_picture(encoded(corners, "PNG"), max_pixels=200).size == (20, 10)
    for source in (encoded(corners, "PNG"), corners, np.asarray(corners)):
        with pytest.raises(PictureTooLargeError, match="20×10"):
            read_picture(source, max_pixels=199)


JPEG = encoded(Image.effect_noise((64, 64), 50).convert("RGB"), "JPEG")


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, on damaged TIFF
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"not a picture\n" * 20, id="text"),
        pytest.param(JPEG[: len(JPEG) // 2], id="half a JPEG"),
        pytest.param(JPEG[:30], id="start of a JPEG"),
        pytest.param(png(8, 8), id="PNG without samples"),
        pytest.param(png(0, 8), id="PNG without columns"),
        pytest.param(b"<svg xmlns='http://www.w3.org/2000/svg'/>", id="SVG"),
        pytest.param(b"%PDF-1.4\n1 0 obj\n", id="PDF"),
        pytest.param(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", id="EPS"),
        pytest.param(b"P6 2 2 255\n" + bytes(12), id="PPM, a format that is not offered"),
        pytest.param(b"GIF89a", id="GIF signature"),
        pytest.param(b"RIFF\x10\x00\x00\x00WEBPVP8 ", id="WebP signature"),
        pytest.param(b"\0\0\0\x14ftypavif\0\0\0\0mif1", id="AVIF signature"),
        pytest.param(b"II*\x00\x08\x00\x00\x00", id="TIFF signature"),
        pytest.param(b"BM" + bytes(60), id="BMP signature"),
    ],
)
def test_bytes_that_are_no_whole_picture_are_refused(content):
    with pytest.raises(UnreadablePictureError, match="; use "):
        read_picture(content)


# What is cut short is refused, by every decoder


NOISE = np.random.default_rng(1).integers(0, 256, (48, 64, 3)).astype(np.uint8)

WHOLE = {
    "JPEG": encoded(Image.fromarray(NOISE), "JPEG"),
    "JPEG, progressive": encoded(Image.fromarray(NOISE), "JPEG", progressive=True),
    "JPEG, restart markers": encoded(Image.fromarray(NOISE), "JPEG", restart_marker_rows=1),
    "PNG": encoded(Image.fromarray(NOISE), "PNG"),
    "PNG, palette": encoded(Image.fromarray(NOISE).convert("P"), "PNG"),
    "GIF": encoded(Image.fromarray(NOISE), "GIF"),
    "WEBP": encoded(Image.fromarray(NOISE), "WEBP"),
    "WEBP, lossless": encoded(Image.fromarray(NOISE), "WEBP", lossless=True),
    "AVIF": encoded(Image.fromarray(NOISE), "AVIF"),
    "AVIF, transparent": encoded(Image.fromarray(NOISE).convert("RGBA"), "AVIF"),
    "BMP": encoded(Image.fromarray(NOISE), "BMP"),
    **{
        f"TIFF, {name}": encoded(Image.fromarray(NOISE).convert(mode), "TIFF", compression=name)
        for mode, names in (("RGB", "raw tiff_lzw tiff_adobe_deflate packbits jpeg zstd lzma"), ("1", "group3 group4"))
        for name in names.split()
    },
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, on damaged TIFF
@pytest.mark.parametrize("name", WHOLE)
def test_a_picture_that_is_cut_anywhere_is_refused_or_whole(name):
    content = WHOLE[name]
    whole = pixels(read_picture(content))
    for length in np.linspace(len(content) // 8, len(content) - 1, 40).astype(int):
        try:
            picture = read_picture(content[:length])
        except UnreadablePictureError:
            continue
        assert np.array_equal(pixels(picture), whole), length


@pytest.mark.parametrize(
    "name", ["JPEG", "JPEG, progressive", "JPEG, restart markers", "PNG", "PNG, palette", "GIF", "AVIF"]
)
def test_a_picture_whose_end_is_zeros_is_refused(name):
    content = WHOLE[name]
    for length in np.linspace(len(content) // 4, len(content) - 20, 30).astype(int):
        with pytest.raises(UnreadablePictureError):
            read_picture(content[:length] + bytes(len(content) - length))


def test_a_png_whose_pixels_are_not_those_of_its_checksum_is_refused():
    content = bytearray(encoded(Image.fromarray(NOISE), "PNG", compress_level=0))
    content[content.index(b"IDAT") + 400] ^= 1
    with pytest.raises(UnreadablePictureError, match="damaged or truncated"):
        read_picture(b"\x89PNG\r\n\x1a\n" + bytes(40))  # nothing but a head
    with pytest.raises(UnreadablePictureError, match="damaged"):
        read_picture(bytes(content))


def test_what_follows_a_jpeg_does_not_matter():
    video = b"\xff\xda" + bytes(500)  # of a phone
    assert np.array_equal(pixels(read_picture(WHOLE["JPEG"] + video)), pixels(read_picture(WHOLE["JPEG"])))


def old_jpeg_tiff(jpeg: bytes, width: int, height: int) -> bytes:
    """A TIFF of compression 6 around a JPEG, in one strip."""
    place = 8 + 2 + 14 * 12 + 4
    numbers = {256: width, 257: height, 259: 6, 262: 6, 273: place + 8, 277: 3, 278: height, 279: len(jpeg)}
    numbers |= {284: 1, 512: 1, 513: place + 8, 514: len(jpeg)}
    tags = [(tag, struct.pack("<HHII", tag, 4, 1, value)) for tag, value in numbers.items()]
    tags += [(258, struct.pack("<HHII", 258, 3, 3, place)), (530, struct.pack("<HHIHH", 530, 3, 2, 1, 1))]
    rows = b"".join(row for _, row in sorted(tags))
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + rows + bytes(4) + struct.pack("<4H", 8, 8, 8, 0) + jpeg


@pytest.mark.parametrize("part", [1.0, 0.5])
@pytest.mark.parametrize("cut", ["the JPEG", "the file"])
def test_an_old_style_jpeg_in_a_tiff_is_refused_with_what_to_send(part, cut):
    jpeg = encoded(Image.fromarray(NOISE), "JPEG", subsampling=0)
    content = old_jpeg_tiff(jpeg[: int(part * len(jpeg))] if cut == "the JPEG" else jpeg, 64, 48)
    if cut == "the file":
        content = content[: int(part * len(content))]
    decoded = pixels(Image.open(io.BytesIO(content)).convert("RGB"))  # Pillow takes it, whole or not
    assert (np.abs(decoded[-8:] - decoded[-1, -1]).max() == 0) == (part < 1)
    opened = Image.open(io.BytesIO(content))
    for source in (content, opened):
        with pytest.raises(UnreadablePictureError, match=r"compression 6.*save the picture as a JPEG or PNG"):
            read_picture(source)
    opened.load()
    assert read_picture(opened).size == (64, 48)  # whoever has decoded it has seen it


# A JPEG decoded at a smaller scale


def photograph(width: int, height: int) -> Image.Image:
    """A smooth picture that looks different from each of its sides."""
    down, across = (np.mgrid[0:height, 0:width] + 0.5) / np.array([height, width])[:, None, None]
    channels = (across, down, 0.5 + 0.5 * np.sin(5 * across + 9 * down))
    return Image.fromarray((np.stack(channels, axis=2) * 255 + 0.5).astype(np.uint8))


@pytest.mark.parametrize(
    ("least", "expected"),
    [
        ((800, 600), (800, 600)),
        ((401, 10), (800, 600)),
        ((10, 301), (800, 600)),
        ((400, 300), (400, 300)),
        ((201, 10), (400, 300)),
        ((200, 10), (200, 150)),
        ((10, 10), (100, 75)),
        ((1, 1), (100, 75)),
    ],
)
def test_a_jpeg_is_decoded_no_smaller_than_asked_for(least, expected):
    picture, size = reduced(encoded(photograph(800, 600), "JPEG", quality=95), least)
    assert (picture.size, size) == (expected, (800, 600))
    smaller = photograph(800, 600).resize(expected, Image.Resampling.BOX)
    assert np.abs(pixels(picture) - pixels(smaller)).max() <= 8


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_smaller_jpeg_is_upright_and_asked_for_upright(orientation):
    picture = photograph(640, 320)
    probe = Probe(turned(picture, "JPEG", orientation, quality=95))
    assert probe.size == (640, 320)
    probe.reduce((320, 20))
    upright = probe.decode()
    assert (probe.size, upright.size) == ((640, 320), (320, 160))
    assert np.abs(pixels(upright) - pixels(picture.resize((320, 160), Image.Resampling.BOX))).max() <= 8


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("size", [(807, 633), (801, 640), (640, 801), (15, 9)])
def test_a_smaller_jpeg_covers_exactly_the_upload(size, orientation):
    actual, whole = reduced(turned(photograph(*size), "JPEG", orientation, **EXACT["JPEG"]), (1, 1))
    width, height = size[0] // 8, size[1] // 8
    assert (actual.size, whole) == ((width, height), size)
    # Red runs evenly from left to right and green from top to bottom.
    red = pixels(actual)[height // 2, :, 0] / 255
    green = pixels(actual)[:, width // 2, 1] / 255
    for levels, length in ((red, width), (green, height)):
        inside = slice(1, -1)  # the edges are those of the filter
        expected = (np.arange(length) + 0.5) / length
        assert np.allclose(levels[inside], expected[inside], atol=0.2 / length + 1.5 / 255)


def test_colours_of_a_smaller_jpeg_are_right():
    profiled = encoded(Image.new("RGB", (64, 64), RED), "JPEG", icc_profile=swapped_srgb())
    assert np.allclose(reduced(profiled, (8, 8))[0].getpixel((4, 4)), BLUE, atol=12)
    inks = encoded(Image.new("RGB", (64, 64), GREEN).convert("CMYK"), "JPEG", quality=100)
    assert np.allclose(reduced(inks, (8, 8))[0].getpixel((4, 4)), GREEN, atol=12)
    grey = encoded(Image.new("L", (64, 64), 80), "JPEG")
    assert reduced(grey, (8, 8))[0].getpixel((4, 4)) == (80, 80, 80)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_other_formats_are_decoded_whole(kind, corners):
    picture, size = reduced(encoded(corners.resize((200, 100)), kind), (1, 1))
    assert picture.size == size == (200, 100)


def test_a_smaller_jpeg_is_refused_as_a_whole_one_is():
    with pytest.raises(UnreadablePictureError):
        reduced(JPEG[: len(JPEG) // 2], (1, 1))
    with pytest.raises(PictureTooLargeError):
        reduced(JPEG, (1, 1), max_pixels=64 * 64 - 1)


def test_a_callers_picture_is_left_as_it_is(corners):
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(io.BytesIO(encoded(corners, "PNG", exif=exif))) as opened:
        assert read_picture(opened).size == (10, 20)
        assert opened.size == (20, 10)
    read_picture(corners).putpixel((0, 0), GREEN)
    assert corners.getpixel((0, 0)) == RED

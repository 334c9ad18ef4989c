"""Pictures made to break a decoder, by name and family; they are generated here rather than stored.

The family decides the allowed answers: 200 for a correct picture, 415 for something that is not a picture, and 413 for
one that is too large; a damaged picture may still be readable, or not.
"""

import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageCms

from seewhy.explainers.imaging.decode import Probe
from seewhy.explainers.imaging.limits import MAX_PIXELS

FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF")

RIGHT, NONE, TOO_MUCH = frozenset({200}), frozenset({415}), frozenset({413})
DAMAGED = RIGHT | NONE
REFUSED = NONE | TOO_MUCH


@dataclass(frozen=True)
class Hostile:
    """One picture.

    Attributes:
        family: the kind of attack.
        name: name within the family.
        content: its bytes.
        answers: the statuses that are right for it.
    """

    family: str
    name: str
    content: bytes
    answers: frozenset[int]


def photograph(width: int = 64, height: int = 48, mode: str = "RGB") -> Image.Image:
    """A smooth picture with some noise, the same each time."""
    rows, columns = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(0).integers(0, 24, (height, width))
    channels = (rows * 200 // max(1, height), columns * 200 // max(1, width), (rows + columns) % 200)
    return Image.fromarray(np.stack([channel + noise for channel in channels], 2).astype(np.uint8)).convert(mode)


def reduced(
    content: bytes, least: tuple[int, int], max_pixels: int = MAX_PIXELS
) -> tuple[Image.Image, tuple[int, int]]:
    """Return a picture, decoded no larger than necessary, and its size as sent."""
    probe = Probe(content, max_pixels)
    probe.reduce(least)
    return probe.decode(), probe.size


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def sound() -> dict[str, bytes]:
    """One correct picture of each format."""
    return {kind: encoded(photograph(), kind) for kind in FORMATS}


def all_pictures() -> Iterator[Hostile]:
    """Yield every picture of every family."""
    for family in _FAMILIES:
        yield from family()


def chunk(kind: bytes, content: bytes) -> bytes:
    """One chunk of a PNG."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, samples: bytes, depth: int = 8, colour: int = 2, before: bytes = b"") -> bytes:
    """A PNG of compressed samples; `before` are chunks that come before them."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + before + chunk(b"IDAT", samples) + chunk(b"IEND", b"")


def zeros(count: int) -> bytes:
    """This many zeros, deflated."""
    packer = zlib.compressobj(1)
    block, parts = bytes(2**20), []
    for _ in range(count // len(block)):
        parts.append(packer.compress(block))
    return b"".join([*parts, packer.compress(bytes(count % len(block))), packer.flush()])


Tag = tuple[int, int, int, bytes]
"""Number, type, count, and four bytes: the value, or its offset."""


def directory(tags: list[Tag], following: int = 0, order: str = "<") -> bytes:
    """An image file directory of TIFF and EXIF."""
    rows = b"".join(struct.pack(f"{order}HHI", *tag[:3]) + tag[3] for tag in tags)
    return struct.pack(f"{order}H", len(tags)) + rows + struct.pack(f"{order}I", following)


def tiff(tags: list[Tag], data: bytes = b"", following: int = 0) -> bytes:
    """A TIFF of one directory at its start, and the bytes after it."""
    return b"II*\0" + struct.pack("<I", 8) + directory(tags, following) + data


def long(number: int, *values: int) -> Tag:
    return number, 4, len(values), struct.pack("<I", values[0])


def grey_tags(width: int, height: int, offset: int, size: int) -> list[Tag]:
    """The directory of a grey TIFF in one strip."""
    numbers = {256: width, 257: height, 258: 8, 259: 1, 262: 1, 273: offset, 277: 1, 278: height, 279: size}
    return [long(number, value) for number, value in numbers.items()]


def without_strips(tags: list[Tag]) -> list[Tag]:
    """The additional tags of a TIFF of tiles."""
    return [tag for tag in tags if tag[0] not in (273, 278, 279)]


def with_segment(jpeg: bytes, marker: int, *contents: bytes) -> bytes:
    """A JPEG with more segments right after its start."""
    segments = b"".join(struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content for content in contents)
    return jpeg[:2] + segments + jpeg[2:]


def with_riff(webp: bytes, kind: bytes, content: bytes, flag: int, size: tuple[int, int] = (64, 48)) -> bytes:
    """A WebP with one more chunk, and the header that such chunks need."""

    def part(name: bytes, data: bytes) -> bytes:
        return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)

    width, height = (struct.pack("<I", edge - 1)[:3] for edge in size)
    body = part(b"VP8X", bytes([flag, 0, 0, 0]) + width + height)
    body += part(kind, content) + webp[12:] if kind == b"ICCP" else webp[12:] + part(kind, content)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def truncations() -> Iterator[Hostile]:
    for kind, content in sound().items():
        for part in range(64):
            yield Hostile("truncated", f"{kind} {part}/64", content[: len(content) * part // 64], DAMAGED)


def bit_flips() -> Iterator[Hostile]:
    random = np.random.default_rng(1)
    for kind, content in sound().items():
        # Half of them in the first bytes, where headers are.
        places = [*random.integers(0, min(200, len(content)), 40), *random.integers(0, len(content), 40)]
        for place in places:
            damaged = bytearray(content)
            damaged[place] ^= 1 << int(random.integers(8))
            yield Hostile("bit flipped", f"{kind} {place}", bytes(damaged), DAMAGED | TOO_MUCH)


def claims() -> Iterator[Hostile]:
    """Headers that claim far more than the file contains."""
    sizes = [(65535, 65535), (60_000, 2000), (2**31 - 1, 2**31 - 1), (2**31, 1), (1, 2**31 - 1), (0, 8), (8, 0)]
    files = sound()
    for width, height in sizes:
        name = f"{width}x{height}"
        yield Hostile("absurd size", f"PNG {name}", png(width, height, zlib.compress(b"\0")), REFUSED)
        tags = grey_tags(width, height, 200, 8)
        yield Hostile("absurd size", f"TIFF {name}", tiff(tags, bytes(300)), REFUSED)
        bmp = bytearray(files["BMP"])
        bmp[18:26] = struct.pack("<II", width, height)
        yield Hostile("absurd size", f"BMP {name}", bytes(bmp), REFUSED)
        bmp[22:26] = struct.pack("<i", -(height % 2**31))
        yield Hostile("absurd size", f"BMP {name}, upside down", bytes(bmp), REFUSED)
    jpeg = bytearray(files["JPEG"])
    start = jpeg.index(b"\xff\xc0")
    for width, height in [(65535, 65535), (65535, 1500), (0, 8), (8, 0), (65500, 977)]:
        jpeg[start + 5 : start + 9] = struct.pack(">HH", height, width)
        yield Hostile("absurd size", f"JPEG {width}x{height}", bytes(jpeg), DAMAGED | TOO_MUCH)
    gif = bytearray(files["GIF"])
    for width, height in [(65535, 65535), (0, 0)]:
        gif[6:10] = struct.pack("<HH", width, height)
        yield Hostile("absurd size", f"GIF {width}x{height}", bytes(gif), DAMAGED | TOO_MUCH)
    frame = bytearray(files["GIF"])
    place = frame.index(b",", 13 + 3 * 2 ** ((frame[10] & 7) + 1))
    frame[place + 5 : place + 9] = struct.pack("<HH", 65535, 65535)
    yield Hostile("absurd size", "GIF, a frame larger than the screen", bytes(frame), REFUSED)
    for width, height in [(2**24, 2**24), (16384, 16384)]:
        webp = with_riff(files["WEBP"], b"EXIF", b"", 8, (width, height))
        yield Hostile("absurd size", f"WEBP {width}x{height}", webp, REFUSED)
    animation = bytearray(animated("WEBP", 3))
    animation[24:30] = b"\xfe\x3f\0\xfe\x3f\0"
    yield Hostile("absurd size", "WEBP, animated, 16383x16383", bytes(animation), DAMAGED | TOO_MUCH)


def bombs() -> Iterator[Hostile]:
    """Real pictures, small as files, of far too many pixels."""
    bits = png(20_000, 20_000, zeros(20_000 * 2501), depth=1, colour=0)
    yield Hostile("bomb of pixels", "PNG 20000x20000, one bit", bits, TOO_MUCH)
    colour = png(12_000, 12_000, zeros(12_000 * 36_001), colour=2)
    yield Hostile("bomb of pixels", "PNG 12000x12000", colour, TOO_MUCH)
    long_data = png(8, 8, zeros(100_000_000))
    yield Hostile("bomb of pixels", "PNG 8x8 with 100 MB of samples", long_data, DAMAGED)
    yield Hostile("bomb of pixels", "GIF 10000x10000", encoded(Image.new("1", (10_000, 10_000)), "GIF"), TOO_MUCH)
    packed = encoded(Image.new("1", (10_000, 10_000)), "TIFF", compression="group4")
    yield Hostile("bomb of pixels", "TIFF 10000x10000, group 4", packed, TOO_MUCH)
    hidden = avif(unit(1, sequence_header(10_000, 10_000)) + unit(6, bytes(range(20))), 64, 48)
    yield Hostile("bomb of pixels", "AVIF 64x48 with a frame of 10000x10000", hidden, TOO_MUCH)
    large = unit(1, sequence_header(8000, 8000)) + unit(6, bytes(range(20))) * 100
    yield Hostile("bomb of pixels", "AVIF 8000x8000 with 100 frames", avif(large, 8000, 8000), TOO_MUCH)


def descriptions() -> Iterator[Hostile]:
    """AVIFs whose description takes far more than the file: time, or memory."""
    whole = sound()["AVIF"]
    stream = whole[whole.index(b"mdat") + 4 :]
    yield Hostile("AVIF description", "none that is hostile", avif(stream, 64, 48), RIGHT)
    everything = struct.pack(">IBBH", 0, 0, 0, 200) + b"".join(
        struct.pack(">HHH", item + 1, 0, 0xFFFF) for item in range(200)
    )
    yield Hostile("AVIF description", "65535 parts, all of the file", avif(stream, 64, 48, places=everything), NONE)
    empty = struct.pack(">IBBH", 0, 0x44, 0, 40_000) + b"".join(
        struct.pack(">HHH", item + 1, 0, 0) for item in range(40_000)
    )
    yield Hostile("AVIF description", "40000 items", avif(stream, 64, 48, places=empty), NONE)
    copied = avif(stream, 64, 48, extra=bytes(2_000_000), uses=100)
    yield Hostile("AVIF description", "a property of 2 MB, 100 times", copied, NONE)
    yield Hostile("AVIF description", "a million boxes", whole + box(b"free", b"") * 10**6, NONE)
    yield Hostile("AVIF description", "a million units", avif(unit(15, b"") * 10**6 + stream, 64, 48), NONE)
    video = animated("AVIF", 3)
    hidden = video.replace(b"ftypavis", b"ftypmsf1").replace(b"meta", b"free")
    yield Hostile("AVIF description", "only a video", hidden, NONE)


def box(kind: bytes, content: bytes) -> bytes:
    """A box of an AVIF."""
    return struct.pack(">I4s", 8 + len(content), kind) + content


def avif(
    stream: bytes,
    width: int,
    height: int,
    spans: tuple[tuple[int, int], ...] = (),
    extra: bytes = b"",
    uses: int = 0,
    places: bytes = b"",
) -> bytes:
    """An AVIF of one AV1 stream, or of an image for each span (offset, length) of it.

    `extra` is one more property, which each item has `uses` times; `places` replaces the content of the box of places.
    """
    spans = spans or ((0, len(stream)),)
    kind = box(b"ftyp", b"avif\0\0\0\0avifmif1miaf")
    items = [box(b"infe", struct.pack(">IHH4sx", 2 << 24, item + 1, 0, b"av01")) for item in range(len(spans))]
    size, form = box(b"ispe", struct.pack(">III", 0, width, height)), box(b"av1C", b"\x81\x04\x0c\0")
    samples = box(b"pixi", b"\0\0\0\0\3\x08\x08\x08")
    links = b"".join(struct.pack(">HB3B", item + 1, 3 + uses, 1, 2, 0x83) + b"\4" * uses for item in range(len(spans)))
    properties = box(b"ipco", size + samples + form + (box(b"what", extra) if extra else b""))
    properties += box(b"ipma", struct.pack(">II", 0, len(spans)) + links)

    def described(start: int) -> bytes:
        default = b"".join(
            struct.pack(">HHHII", item + 1, 0, 1, start + first, length) for item, (first, length) in enumerate(spans)
        )
        parts = box(b"hdlr", bytes(8) + b"pict" + bytes(13)) + box(b"pitm", struct.pack(">IH", 0, 1))
        parts += box(b"iloc", places or struct.pack(">IBBH", 0, 0x44, 0, len(spans)) + default)
        parts += box(b"iinf", struct.pack(">IH", 0, len(spans)) + b"".join(items))
        return box(b"meta", bytes(4) + parts + box(b"iprp", properties))

    return kind + described(len(kind) + len(described(0)) + 8) + box(b"mdat", stream)


def unit(kind: int, content: bytes) -> bytes:
    """A unit (OBU) of an AV1 stream, of at most 16 kB."""
    return bytes([kind << 3 | 2, len(content) & 127 | 128, len(content) >> 7]) + content


def sequence_header(width: int, height: int, head: str = "0001100000") -> bytes:
    """A sequence header of AV1 as far as the size. `head` are the bits before: profile, still, reduced, level."""
    bits = f"{head}{15:04b}{15:04b}{width - 1:016b}{height - 1:016b}"
    bits += "0" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8)


def animated(kind: str, frames: int) -> bytes:
    many = [Image.new("RGB", (4, 4), (frame % 256, frame // 256, 9)) for frame in range(frames)]
    return encoded(
        many[0], kind, save_all=True, append_images=many[1:], **({"lossless": True} if kind == "WEBP" else {})
    )


def frames() -> Iterator[Hostile]:
    for kind in ("GIF", "PNG", "WEBP", "AVIF", "TIFF"):
        yield Hostile("frames", f"{kind} of 3", animated(kind, 3), RIGHT)
    gif = encoded(Image.new("P", (1, 1)), "GIF")
    place = gif.index(b",")
    yield Hostile("frames", "GIF of 100000", gif[:place] + gif[place:-1] * 100_000 + b";", RIGHT)
    yield Hostile("frames", "WEBP of 2000", animated("WEBP", 2000), RIGHT)
    still = encoded(photograph(), "PNG")
    for count, answers in [(2**31 - 1, DAMAGED), (2**32 - 1, DAMAGED), (0, RIGHT)]:
        control = chunk(b"acTL", struct.pack(">II", count, 0))
        yield Hostile("frames", f"PNG that claims {count}", still[:33] + control + still[33:], answers)
    tags = grey_tags(2, 2, 8, 4)
    size = len(directory(tags))
    many = b"".join(directory(tags, 8 + (index + 1) * size) for index in range(20_000))
    yield Hostile("frames", "TIFF of 20000 directories", b"II*\0\x08\0\0\0" + many + directory(tags), RIGHT)
    yield Hostile("frames", "TIFF, directories in a circle", tiff(grey_tags(2, 2, 8, 4), following=8), RIGHT)
    yield Hostile(
        "frames", "MPO of 2", encoded(photograph(), "MPO", save_all=True, append_images=[photograph()]), RIGHT
    )
    directories = b"II*\0\x08\0\0\0" + directory([long(0xB001, 2**32 - 1), (0xB002, 7, 4, bytes(4))])
    mpo = with_segment(sound()["JPEG"], 0xE2, b"MPF\0" + directories)
    yield Hostile("frames", "MPO that claims 4294967295", mpo, DAMAGED)


def profiles() -> Iterator[Hostile]:
    """ICC profiles: bombs, lies and nonsense."""
    files, srgb = sound(), ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    body = zlib.compress(bytes(11 * 3 * 65 * 48))
    for name, packed in [("300 MB of zeros", zeros(300_000_000)), ("no zlib", b"\xff" * 50), ("nothing", b"")]:
        profile = chunk(b"iCCP", b"icc\0\0" + packed)
        yield Hostile("ICC", f"PNG, {name}", png(64, 48, body, before=profile), DAMAGED)
    lies = {
        "cut": srgb[:200],
        "a length of 4 GB": b"\xff\xff\xff\xff" + srgb[4:],
        "a million tags": srgb[:128] + struct.pack(">I", 1_000_000) + srgb[132:],
        "for CMYK": srgb[:16] + b"CMYK" + srgb[20:],
        "of a device link": srgb[:12] + b"link" + srgb[16:],
        "tags that overlap": srgb[:132] + srgb[132:144] * ((len(srgb) - 132) // 12),
        "4 MB of nonsense": np.random.default_rng(2).bytes(4_000_000),
    }
    for name, profile in lies.items():
        for kind in ("JPEG", "PNG", "WEBP", "AVIF", "TIFF"):
            yield Hostile("ICC", f"{kind}, {name}", encoded(photograph(), kind, icc_profile=profile), DAMAGED)
    parts = [b"ICC_PROFILE\0" + bytes([index, 255]) + bytes(65_000) for index in range(1, 256)]
    yield Hostile("ICC", "JPEG, 255 segments", with_segment(files["JPEG"], 0xE2, *parts), DAMAGED)


def exif() -> Iterator[Hostile]:
    """EXIF directories that are huge, go round in circles, or point to nowhere."""
    files = sound()
    pointer = [(0x8769, 4, 1, struct.pack("<I", 8)), (0x8825, 4, 1, struct.pack("<I", 8))]
    shared = [(tag, 7, 60_000, struct.pack("<I", 8)) for tag in range(0x9000, 0x9000 + 4000)]
    many = [(tag, 7, 3_900_000, struct.pack("<I", 8)) for tag in range(0x8000, 0xFFFF)]
    orientations = [(0x0112, 3, 1, struct.pack("<I", value)) for value in (0, 9, 65535)]
    cases = {
        "in a circle": tiff(pointer, following=8),
        "in a circle, turned": tiff([(0x0112, 3, 1, b"\6\0\0\0"), *pointer], following=8),
        "tags that share 60 kB": tiff(shared, bytes(12_000)),
        "tags beyond the end": tiff([(0x010F, 2, 2**31, b"\xff" * 4)]),
        "a count of 65535 and no tags": b"II*\0\x08\0\0\0\xff\xff",
        "nothing": b"",
        "text": b"orientation: sideways" * 20,
        **{f"orientation {index}": tiff([tag]) for index, tag in enumerate(orientations)},
        "an orientation of text": tiff([(0x0112, 2, 4, b"six\0")]),
        "a list of orientations": tiff([(0x0112, 3, 2, b"\6\0\3\0")]),
    }
    for name, content in cases.items():
        jpeg = with_segment(files["JPEG"], 0xE1, b"Exif\0\0" + content)
        bare = files["JPEG"].replace(files["JPEG"][2:20], b"", 1)  # without JFIF's density Pillow looks into EXIF
        yield Hostile("EXIF", f"JPEG, {name}", jpeg, DAMAGED)
        yield Hostile("EXIF", f"JPEG without JFIF, {name}", with_segment(bare, 0xE1, b"Exif\0\0" + content), DAMAGED)
        image = files["PNG"][:33] + chunk(b"eXIf", content) + files["PNG"][33:]
        yield Hostile("EXIF", f"PNG, {name}", image, DAMAGED)
        profile = f"\nexif\n{len(content):8}\n{content.hex()}\n".encode()
        raw = chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(profile))
        yield Hostile("EXIF", f"PNG, raw profile, {name}", files["PNG"][:33] + raw + files["PNG"][33:], DAMAGED)
        yield Hostile("EXIF", f"WEBP, {name}", with_riff(files["WEBP"], b"EXIF", content, 8), DAMAGED)
    huge = tiff(many, bytes(3_900_000 - 12 * len(many)))
    yield Hostile(
        "EXIF", "PNG, 32767 tags that share 4 MB", files["PNG"][:33] + chunk(b"eXIf", huge) + files["PNG"][33:], DAMAGED
    )
    yield Hostile("EXIF", "WEBP, 32767 tags that share 4 MB", with_riff(files["WEBP"], b"EXIF", huge, 8), DAMAGED)
    segments = [b"Exif\0\0" + huge[place : place + 65_000] for place in range(0, len(huge), 65_000)]
    yield Hostile("EXIF", "JPEG, 32767 tags that share 4 MB", with_segment(bare, 0xE1, *segments), DAMAGED)
    unwritten = chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(b"\nexif\n8\nsixty\n"))
    yield Hostile("EXIF", "PNG, raw profile, no numbers", files["PNG"][:33] + unwritten + files["PNG"][33:], DAMAGED)
    xmp = b"http://ns.adobe.com/xap/1.0/\0" + b'tiff:Orientation="9"' + b"<" * 60_000
    yield Hostile("EXIF", "JPEG, XMP with an orientation of 9", with_segment(files["JPEG"], 0xE1, xmp), DAMAGED)


def texts() -> Iterator[Hostile]:
    """Text chunks of PNG that grow when they are read."""
    whole, big = sound()["PNG"], zeros(200_000_000)
    megabyte = zeros(1_000_000)
    cases = {
        "zTXt of 200 MB": chunk(b"zTXt", b"Comment\0\0" + big),
        "iTXt of 200 MB": chunk(b"iTXt", b"Comment\0\1\0en\0\0" + big),
        "200 zTXt of 1 MB": chunk(b"zTXt", b"Comment\0\0" + megabyte) * 200,
        "200 iTXt of 1 MB": chunk(b"iTXt", b"Comment\0\1\0en\0\0" + megabyte) * 200,
        "zTXt, no zlib": chunk(b"zTXt", b"Comment\0\0nothing"),
        "iTXt, no UTF-8": chunk(b"iTXt", b"Comment\0\0\0en\0\0\xff\xfe"),
        "50000 tEXt": b"".join(chunk(b"tEXt", b"k%d\0v" % index) for index in range(50_000)),
        "an unknown critical chunk": chunk(b"QQQQ", b"?"),
        "a chunk of 2 GB": b"\x7f\xff\xff\xfftEXt",
    }
    for name, chunks in cases.items():
        yield Hostile("PNG text", name, whole[:33] + chunks + whole[33:], DAMAGED)
        yield Hostile("PNG text", f"{name}, at the end", whole[:-12] + chunks + whole[-12:], DAMAGED)


def scans(count: int, side: int = 7900) -> bytes:
    """A progressive JPEG with this many additional scans, each of which says in a few bytes that nothing changes."""
    picture = encoded(Image.new("L", (side, side)), "JPEG", progressive=True)
    # A table of one code: a run of empty blocks whose length follows in as many bits as fit.
    blocks = (-(-side // 8)) ** 2
    size = min(14, blocks.bit_length() - 1)
    table = b"\xff\xc4\x00\x14\x10" + b"\1" + bytes(15) + bytes([size << 4])
    bits = ""
    while blocks >= 1 << size:
        run = min(blocks, (2 << size) - 1)
        bits += "0" + format(run - (1 << size), f"0{size}b")
        blocks -= run
    data = int(bits + "1" * (-len(bits) % 8), 2).to_bytes((len(bits) + 7) // 8, "big").replace(b"\xff", b"\xff\0")
    scan = b"\xff\xda\x00\x08\x01\x01\x00\x01\x3f\x21" + data
    return picture[:-2] + table + scan * count + b"\xff\xd9"


def divided(grey: Image.Image, components: int) -> bytes:
    """A baseline JPEG with this number of equal components, each in its own scan."""
    jpeg = encoded(grey, "JPEG")
    frame, head = jpeg.index(b"\xff\xc0"), jpeg.index(b"\xff\xda")
    tables = jpeg.index(b"\xff\xc4")
    own = b"".join(bytes([index, 0x11, 0]) for index in range(1, components + 1))
    start = struct.pack(">2sHB4sB", b"\xff\xc0", 8 + len(own), 8, jpeg[frame + 5 : frame + 9], components) + own
    scans = (b"\xff\xda\0\x08\1" + bytes([index, 0]) + jpeg[head + 7 : -2] for index in range(1, components + 1))
    return jpeg[:frame] + start + jpeg[tables:head] + b"".join(scans) + jpeg[-2:]


def jpeg_tiff(width: int, height: int, part: int, jpeg: bytes, tiled: bool, shared: bool = False) -> bytes:
    """A grey TIFF whose tiles, or strips of this many rows, are separate JPEGs, or all the same one."""
    count = -(-height // part) * (-(-width // part) if tiled else 1)
    tags = without_strips(tag_values(grey_tags(width, height, 0, 0), {259: 7}))
    tags += [long(322, part), long(323, part)] if tiled else [long(278, part)]
    arrays = 8 + 2 + 12 * (len(tags) + 2) + 4
    for number, place in zip((324, 325) if tiled else (273, 279), (arrays, arrays + 4 * count), strict=True):
        tags.append((number, 4, count, struct.pack("<I", place)))
    firsts = [arrays + 8 * count + (0 if shared else index * len(jpeg)) for index in range(count)]
    values = struct.pack(f"<{2 * count}I", *firsts, *[len(jpeg)] * count)
    return tiff(sorted(tags), values + jpeg * (1 if shared else count))


def many_scans() -> Iterator[Hostile]:
    yield Hostile("JPEG scans", "10, 62 megapixels, more than most have", scans(4), DAMAGED)
    yield Hostile("JPEG scans", "1000, 62 megapixels", scans(1000), REFUSED)
    yield Hostile("JPEG scans", "1000, 64 by 64", scans(1000, 64), DAMAGED)
    yield Hostile("JPEG scans", "4 of a component each", divided(photograph(mode="L"), 4), RIGHT)
    part = scans(50, 512)
    yield Hostile("JPEG scans", "60 in each tile of a TIFF", jpeg_tiff(7680, 7680, 512, part, tiled=True), REFUSED)
    yield Hostile(
        "JPEG scans", "60, in one tile for all", jpeg_tiff(7680, 7680, 512, part, tiled=True, shared=True), REFUSED
    )


def shapes() -> Iterator[Hostile]:
    for kind in FORMATS:
        for width, height in [(1, 1), (1, 2), (3, 1)]:
            yield Hostile("thin", f"{kind} {width}x{height}", encoded(photograph(width, height), kind), RIGHT)
        for width, height in [(1, 20_000), (20_000, 1)]:
            if kind != "WEBP":  # which has at most 16383
                yield Hostile("thin", f"{kind} {width}x{height}", encoded(photograph(width, height), kind), RIGHT)
    for width, height in [(1, 16_383), (16_383, 1)]:
        yield Hostile("thin", f"WEBP {width}x{height}", encoded(photograph(width, height), "WEBP"), RIGHT)
    yield Hostile("thin", "JPEG 65500x1", encoded(photograph(65_500, 1), "JPEG"), RIGHT)
    yield Hostile("thin", "PNG 1x1000000", encoded(photograph(1, 1_000_000), "PNG"), RIGHT)


def kinds() -> Iterator[Hostile]:
    """Kinds of samples that are rare but valid."""
    grey = photograph(mode="L")
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    floats = Image.fromarray(np.asarray(grey).astype(np.float32) / 255)
    nothing = Image.fromarray(np.full((9, 9), np.nan, np.float32))
    extreme = Image.fromarray(np.array([[1e38, -1e38, np.inf], [1, 2, 3]], np.float32))
    samples = {
        "PNG, 16-bit grey": encoded(deep, "PNG"),
        "PNG, 16-bit grey, tRNS": _transparent(0, b"\x12\x34"),
        "PNG, 16-bit colour, tRNS": _transparent(2, b"\x12\x34" * 3),
        "PNG, 16-bit grey and alpha": png(8, 8, zlib.compress(bytes(8 * 33)), 16, 4),
        "PNG, 16-bit colour and alpha": png(8, 8, zlib.compress(bytes(8 * 65)), 16, 6),
        "PNG, palette, transparency of bytes": encoded(grey.convert("P"), "PNG", transparency=bytes(range(200))),
        "PNG, palette, one transparent": encoded(grey.convert("P"), "PNG", transparency=7),
        "PNG, one bit, transparent": encoded(photograph(mode="1"), "PNG", transparency=1),
        "PNG, grey, transparent": encoded(grey, "PNG", transparency=77),
        "PNG, two bits": png(8, 8, zlib.compress(b"\0\x1b\xe4" * 8), 2, 0),
        "PNG, interlaced": _interlaced(),
        "GIF, transparent": encoded(grey.convert("P"), "GIF", transparency=3),
        "WEBP, transparent": encoded(photograph(mode="RGBA"), "WEBP"),
        "AVIF, transparent": encoded(photograph(mode="RGBA"), "AVIF"),
        "AVIF, grey": encoded(grey, "AVIF"),
        "TIFF, 16-bit grey": encoded(deep, "TIFF"),
        "TIFF, 16-bit grey, big-endian": _big_endian(),
        "TIFF, float": encoded(floats, "TIFF"),
        "TIFF, float, NaN alone": encoded(nothing, "TIFF"),
        "TIFF, float, extremes": encoded(extreme, "TIFF"),
        "TIFF, 32-bit": encoded(Image.fromarray(np.asarray(grey).astype(np.int32) * 10**6), "TIFF"),
        "TIFF, CMYK": encoded(photograph(mode="CMYK"), "TIFF"),
        "TIFF, YCbCr": encoded(photograph(mode="YCbCr"), "TIFF"),
        "TIFF, Lab": encoded(_lab(), "TIFF"),
        "TIFF, alpha": encoded(photograph(mode="RGBA"), "TIFF"),
        "TIFF, grey and alpha": encoded(photograph(mode="LA"), "TIFF"),
        "TIFF, palette": encoded(photograph(mode="P"), "TIFF"),
        "TIFF, JPEG inside": encoded(photograph(), "TIFF", compression="jpeg"),
        "TIFF, LZW": encoded(photograph(), "TIFF", compression="tiff_lzw"),
        "TIFF, deflate": encoded(photograph(), "TIFF", compression="tiff_adobe_deflate"),
        "TIFF, group 4": encoded(photograph(mode="1"), "TIFF", compression="group4"),
        "TIFF, big": encoded(photograph(), "TIFF", big_tiff=True),
        "JPEG, CMYK": encoded(photograph(mode="CMYK"), "JPEG"),
        "JPEG, YCCK": _ycck(),
        "JPEG, grey": encoded(grey, "JPEG"),
        "JPEG, progressive": encoded(photograph(), "JPEG", progressive=True),
        "JPEG, RGB": encoded(photograph(), "JPEG", keep_rgb=True),
        "BMP, one bit": encoded(photograph(mode="1"), "BMP"),
        "BMP, 32 bits": encoded(photograph(mode="RGBA"), "BMP"),
        "BMP, palette": encoded(photograph(mode="P"), "BMP"),
    }
    for name, content in samples.items():
        yield Hostile("rare samples", name, content, RIGHT)


def _transparent(colour: int, value: bytes) -> bytes:
    """A 16-bit PNG whose left half has the transparent colour."""
    row = b"\0" + value * 4 + (b"\x80\0" * (len(value) // 2)) * 4
    return png(8, 8, zlib.compress(row * 8), 16, colour, chunk(b"tRNS", value))


def _interlaced() -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 1))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0\x80")) + chunk(b"IEND", b"")


def _big_endian() -> bytes:
    numbers = {256: 4, 257: 2, 258: 16, 259: 1, 262: 1, 273: 8 + 2 + 9 * 12 + 4, 277: 1, 278: 2, 279: 16}
    tags = [(number, 4, 1, struct.pack(">I", value)) for number, value in numbers.items()]
    return b"MM\0*" + struct.pack(">I", 8) + directory(tags, order=">") + bytes(range(16))


def _lab() -> Image.Image:
    lab, srgb = (ImageCms.ImageCmsProfile(ImageCms.createProfile(space)) for space in ("LAB", "sRGB"))
    image = ImageCms.profileToProfile(photograph(), srgb, lab, outputMode="LAB")
    image.info.pop("icc_profile", None)
    return image


def _ycck() -> bytes:
    """A CMYK JPEG whose Adobe segment says that its colours are YCCK."""
    content = encoded(photograph(mode="CMYK"), "JPEG")
    place = content.find(b"Adobe")
    if place < 0:
        return with_segment(content, 0xEE, b"Adobe\0\x64\0\0\0\0\2")
    return content[: place + 11] + b"\2" + content[place + 12 :]


def directories() -> Iterator[Hostile]:
    """TIFF files that are valid but absurd."""
    whole = grey_tags(64, 48, 8, 64 * 48)
    changed: Callable[[int, int], list[Tag]] = lambda number, value: [  # noqa: E731
        long(number, value) if tag[0] == number else tag for tag in whole
    ]
    many = [*whole, *((tag, 7, 900_000, struct.pack("<I", 8)) for tag in range(1000, 40_000))]
    big = b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, 2**62)
    rows = np.zeros(1_500_000, [("tag", "<u2"), ("type", "<u2"), ("count", "<u8"), ("value", "<u8")])
    rows["tag"], rows["type"], rows["count"], rows["value"] = np.arange(len(rows)) % 60_000 + 1000, 7, 2**40, 16
    for row, tag in zip(rows, whole, strict=False):
        row["tag"], row["type"], row["count"], row["value"] = *tag[:3], int.from_bytes(tag[3], "little")
    big_tags = rows.tobytes() + bytes(5000)
    tiled = [long(322, 40_000), long(323, 40_000), long(324, 8), long(325, 4)]
    deflated = tag_values(whole, {259: 8})
    data = bytes(64 * 48 + 8)
    cases = {
        "samples per pixel 65535": tiff(changed(277, 65_535), data),
        "bits 4294967295": tiff(changed(258, 2**32 - 1), data),
        "one row in each of 4294967295 strips": tiff(changed(278, 0), data),
        "strip of 4 GB": tiff(changed(279, 2**32 - 1), data),
        "strip beyond the end": tiff(changed(273, 2**32 - 1), data),
        "compression 65535": tiff(changed(259, 65_535), data),
        "deflate that is none": tiff(deflated, data),
        "tile of 40000x40000": tiff(sorted([*without_strips(whole), *tiled]), data),
        "tile of 40000x40000, deflate": tiff(sorted([*without_strips(deflated), *tiled]), data),
        "39000 tags that share 900 kB": tiff(many, bytes(900_000)),
        "big, 4611686018427387904 tags": big + bytes(100),
        "big, 1500000 tags": big[:16] + struct.pack("<Q", 1_500_000) + big_tags,
        "JPEG inside that is none": tiff(tag_values(whole, {259: 7}), data),
        "tile of 8192x8192 of a type that Pillow does not know": hidden_tile(17),
        "tile of 8192x8192, and another of 16x16": hidden_tile(4, 16),
        "tile of 16x16, and another of 8192x8192": hidden_tile(4, 16, first=True),
        "old JPEG inside": tiff(tag_values(whole, {259: 6}), data),
    }
    for name, content in cases.items():
        yield Hostile("TIFF directory", name, content, DAMAGED | TOO_MUCH)


def hidden_tile(kind: int, *edges: int, first: bool = False) -> bytes:
    """A grey TIFF of 64 by 64 pixels whose tile is larger, which not every reader sees."""
    packed = zeros(8192 * 8192)
    tags = without_strips(tag_values(grey_tags(64, 64, 0, 0), {259: 8}))
    for number in (322, 323):
        sizes = [(number, kind, 1, struct.pack("<I", 8192)), *(long(number, edge) for edge in edges)]
        tags += sizes[::-1] if first else sizes
    offset = 8 + 2 + 12 * (len(tags) + 2) + 4
    tags += [long(324, offset), long(325, len(packed))]
    return tiff(sorted(tags, key=lambda tag: tag[0]), packed)


def tag_values(tags: list[Tag], values: dict[int, int]) -> list[Tag]:
    """Tags with other values."""
    return [long(tag[0], values[tag[0]]) if tag[0] in values else tag for tag in tags]


def foreign_files() -> Iterator[Hostile]:
    """Files that are not pictures of an allowed format, or are two things at once."""
    files = sound()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("index.html", "<script>alert(1)</script>")
    svg = b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>"
    entity = b"<!DOCTYPE svg [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><svg>&x;</svg>"
    cases = {
        "nothing": b"",
        "one byte": b"\xff",
        "64 zeros": bytes(64),
        "a megabyte of noise": np.random.default_rng(3).bytes(2**20),
        "text": b"I am no picture. " * 100,
        "SVG": svg,
        "SVG with an entity": b"<?xml version='1.0'?>" + entity,
        "PDF": b"%PDF-1.7\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF",
        "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n%%EOF",
        "HTML": b"<!doctype html><script>fetch('//example.org')</script>",
        "ZIP": packed.getvalue(),
        "PPM": b"P6 2 2 255\n" + bytes(12),
        "ICO": encoded(photograph(16, 16), "ICO"),
        "TGA": encoded(photograph(16, 16), "TGA"),
        "PCX": encoded(photograph(16, 16), "PCX"),
        "JPEG 2000": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(40),
        "AVIF": b"\0\0\0\x1cftypavif" + bytes(60),
        "FLI": struct.pack("<IHHHH", 128, 0xAF11, 1, 8, 8) + bytes(120),
        "PSD": b"8BPS\0\1" + bytes(60),
        "pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
        "ELF": b"\x7fELF\2\1\1" + bytes(60),
    }
    for name, content in cases.items():
        yield Hostile("no picture", name, content, NONE)
    gif = files["GIF"]
    yield Hostile("two at once", "GIF and HTML", gif[:-1] + b"<script>alert(1)</script>;", DAMAGED)
    yield Hostile("two at once", "GIF, HTML in a comment", gif[:-1] + b"!\xfe\x10<script></script\0;", DAMAGED)
    for kind in FORMATS:
        answers = NONE if kind == "AVIF" else RIGHT  # an AVIF is a list of boxes up to the end of the file
        yield Hostile("two at once", f"{kind} and ZIP", files[kind] + packed.getvalue(), answers)
        yield Hostile("two at once", f"{kind} and {kind}", files[kind] * 2, answers)
    yield Hostile("two at once", "ZIP and PNG", packed.getvalue() + files["PNG"], NONE)


_FAMILIES = (
    truncations,
    bit_flips,
    claims,
    bombs,
    descriptions,
    frames,
    profiles,
    exif,
    texts,
    many_scans,
    shapes,
    kinds,
    directories,
    foreign_files,
)

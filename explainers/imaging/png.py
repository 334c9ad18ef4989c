"""Fast PNG encoder: one filter for all rows, and a deflate optimised for speed.

Pillow tries five filters on each row and then searches long for matches. Here each row becomes its difference from the
row above, which NumPy computes for the whole picture at once, and ISA-L's deflate compresses it. At level 1 that takes
a tenth of the time of Pillow's level 3; overlays become 0 to 8% larger, heatmaps alone up to 15%. Both run without the
interpreter's lock.
"""

import base64
import struct
import zlib
from collections.abc import Callable

import numpy as np
from PIL import Image

deflate: Callable[..., bytes]
crc32: Callable[..., int]
try:
    from isal import isal_zlib

    deflate, crc32 = isal_zlib.compress, isal_zlib.crc32
except ImportError:  # it has no binaries for this processor
    deflate, crc32 = zlib.compress, zlib.crc32

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_LEVEL = 1
_UP = 2  # the filter: each sample minus the one above

_FORMS = {"L": (8, 0), "I;16": (16, 0), "RGB": (8, 2)}
"""Bits of a sample and type of colour, by Pillow's mode."""


def encode_png(picture: Image.Image) -> bytes:
    """Encode a picture as PNG, without loss: grey of 8 or 16 bits, or RGB, which pictures of other modes become."""
    picture = picture if picture.mode in _FORMS else picture.convert("RGB")
    samples = np.asarray(picture)
    bytes_ = samples.astype(samples.dtype.newbyteorder(">"), copy=False).reshape(len(samples), -1).view(np.uint8)
    rows = np.empty((len(bytes_), 1 + bytes_.shape[1]), dtype=np.uint8)
    rows[:, 0] = _UP
    rows[0, 1:] = bytes_[0]
    np.subtract(bytes_[1:], bytes_[:-1], out=rows[1:, 1:])  # modulo 256, as the format requires
    header = struct.pack(">IIBBBBB", *picture.size, *_FORMS[picture.mode], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", deflate(rows, _LEVEL)), (b"IEND", b""))
    return b"".join([_SIGNATURE, *(part for kind, content in chunks for part in _chunk(kind, content))])


def data_url(content: bytes, form: str = "png") -> str:
    """Return the file of a picture, in a format such as ``jpeg``, as a data URL."""
    return f"data:image/{form};base64,{base64.b64encode(content).decode('ascii')}"


def _chunk(kind: bytes, content: bytes) -> tuple[bytes, ...]:
    check = crc32(content, crc32(kind))
    return struct.pack(">I", len(content)), kind, content, struct.pack(">I", check)

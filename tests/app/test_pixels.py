"""Large pictures are decoded one after another: they take memory by their pixels, not by their bytes."""

import base64
import ctypes
import io
import multiprocessing
import os
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import requests
from PIL import Image, ImageCms

from seewhy.app.errors import DeadlineError
from seewhy.app.memory import account
from seewhy.app.memory.account import Account
from seewhy.app.memory.budget import PIXELS
from seewhy.app.pipeline.ask import Service
from seewhy.app.pipeline.jobs import Deadline
from seewhy.app.pipeline.record import Timings
from seewhy.app.settings import Settings
from seewhy.explainers.imaging.decode import Probe
from seewhy.explainers.imaging.limits import PIXEL_BYTES
from tests.app.serving import children, free_port, start
from tests.waiting import GUARD
from tools.hostile import pictures


def bomb(edge, kind="WEBP"):
    """A picture of some bytes and many pixels."""
    file = io.BytesIO()
    Image.new("RGB", (edge, edge), "red").save(file, kind, lossless=True, method=0)
    return file.getvalue()


def test_no_more_pixels_are_decoded_at_a_time_than_there_is_memory_for(one_model, monkeypatch):
    monkeypatch.setattr("seewhy.app.pipeline.decode.processors", lambda: 4)
    service = Service(Settings(memory_bytes=9 * 2**20))
    model = service.models.model(None, Deadline.after(GUARD))
    memory = service.models.memory
    most, wait = [], memory.wait
    monkeypatch.setattr(memory, "wait", lambda *arguments: (wait(*arguments), most.append(memory.occupancy)))
    content, large = bomb(70, "PNG"), bomb(600)

    def ask(upload, seconds=GUARD):
        request = Account(service.models.memory)
        account.begin(request)
        try:
            return service.decode(upload, model, Timings(), Deadline.after(seconds), drawn=False).geometry.width
        finally:
            request.close()

    try:
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(ask, [content, content, large] * 5)) == {70, 600}
        assert service.models.memory.occupancy == 0
        assert 600 * 600 * PIXEL_BYTES <= max(most) <= 9 * 2**20
        assert service.processors._value == 4
        holder = Account(service.models.memory)
        holder.wait(5 * 2**20, PIXELS, pytest.fail, 4)
        with pytest.raises(DeadlineError):
            ask(large, 0.2)
        assert ask(content) == 70
        holder.leave(5 * 2**20)
        assert ask(large) == 600
        assert service.processors._value == 4
    finally:
        account.begin(account.Account(account.UNLIMITED))
        service.models.stop()


@pytest.mark.slow
def test_only_what_is_decoded_of_a_jpeg_counts(monkeypatch):
    service = Service(Settings(max_pixels=32_000_000))
    model = service.models.model(None, Deadline.after(60))
    pixels = []

    class Watched(account.Account):
        def wait(self, size, *rest):
            pixels.append(size // PIXEL_BYTES)

        def leave(self, size, remainder=0):
            pass

    monkeypatch.setattr("seewhy.app.pipeline.decode.account", lambda: Watched(account.UNLIMITED))
    for progressive in (False, True):
        file = io.BytesIO()
        Image.new("RGB", (6400, 3200)).save(file, "JPEG", progressive=progressive)
        service.decode(file.getvalue(), model, Timings(), Deadline.after(60), drawn=False)
    service.models.stop()
    assert pixels == [1600 * 800, 1600 * 800 + 6400 * 3200 // 2]


LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

ICC = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()

TURNED = Image.Exif()
TURNED[0x0112] = 6

DEEP_AVIF = base64.b64decode(
    "AAAAIGZ0eXBhdmlmAAAAAGF2aWZtaWYxbWlhZk1BMUEAAAGNbWV0YQAAAAAAAAAoaGRscgAAAAAAAAAAcGljdAAAAAAAAAAAAAAA"
    "AGxpYmF2aWYAAAAADnBpdG0AAAAAAAEAAAAsaWxvYwAAAABEAAACAAEAAAABAAAB6gAAAFYAAgAAAAEAAAG1AAAANQAAAEJpaW5m"
    "AAAAAAACAAAAGmluZmUCAAAAAAEAAGF2MDFDb2xvcgAAAAAaaW5mZQIAAAAAAgAAYXYwMUFscGhhAAAAABppcmVmAAAAAAAAAA5h"
    "dXhsAAIAAQABAAAAw2lwcnAAAACdaXBjbwAAABRpc3BlAAAAAAAAC7gAAAu4AAAAEHBpeGkAAAAAAwoKCgAAAAxhdjFDgTBAAAAA"
    "ABNjb2xybmNseAABAA0ABoAAAAAOcGl4aQAAAAABCgAAAAxhdjFDgRBcAAAAADhhdXhDAAAAAHVybjptcGVnOm1wZWdCOmNpY3A6"
    "c3lzdGVtczphdXhpbGlhcnk6YWxwaGEAAAAAHmlwbWEAAAAAAAAAAgABBAECgwQAAgQBBYYHAAAAk21kYXQSAAoHHC7u3u351DIo"
    "E9AAAEQScPx1OZPOnSdkDNVLrqc+8Gn9i7GNofuCUMXDpm3MU2K4qxIACgo8Lu7e7fnAQ0GkMkYT0AAAEBAMgGM94Fv9PMaqYKze"
    "CF0vFebE+xechX6aVF2BmCCPtDF2oaWDvq4165z2rW9M0FPGuL56fZHXaCNDDnLcwhzg"
)
"""9 megapixels of one half-transparent colour, 10 bits, no chroma subsampling; Pillow only writes 8 bits."""

KINDS = {
    "baseline": ("RGB", "JPEG", {}),
    "progressive inks, turned": ("CMYK", "JPEG", {"progressive": True, "subsampling": 0, "exif": TURNED}),
    "turned, with a profile": ("RGB", "JPEG", {"exif": TURNED, "icc_profile": ICC}),
    "one bit": ("1", "PNG", {}),
    "16 bits": ("I;16", "PNG", {}),
    "16 bits, one clear": ("I;16", "PNG", {"transparency": 7}),
    "palette": ("P", "PNG", {}),
    "clear palette": ("P", "PNG", {"transparency": 0}),
    "clear colours, turned, with a profile": ("RGBA", "PNG", {"exif": TURNED, "icc_profile": ICC}),
    "lossy": ("RGB", "WEBP", {"method": 0}),
    "lossless": ("RGB", "WEBP", {"lossless": True, "method": 0}),
    "clear, turned, with a profile": ("RGBA", "WEBP", {"method": 0, "exif": TURNED, "icc_profile": ICC}),
    "clear": ("RGBA", "AVIF", {"speed": 10, "subsampling": "4:4:4"}),
    "10 bits, clear": ("RGBA", "DEEP", {}),
    "frames": ("P", "GIF", {"save_all": True}),
    "raw": ("RGB", "TIFF", {}),
    "deflated": ("RGBA", "TIFF", {"compression": "tiff_adobe_deflate"}),
    "as JPEG": ("RGB", "TIFF", {"compression": "jpeg"}),
    "fax": ("1", "TIFF", {"compression": "group4"}),
    "floats": ("F", "TIFF", {}),
    "one component in each scan": ("CMYK", "DIVIDED", {}),
    "lab": ("LAB", "TIFF", {"icc_profile": ICC}),
}


def large_picture(mode, kind, options):
    """Return a picture of 9 megapixels."""
    grey = Image.fromarray(np.add.outer(np.arange(3000), np.arange(3000)).astype(np.uint8))
    for space in ("RGB", "LAB") if mode == "LAB" else (mode,):
        grey = grey.convert(space)
    if options.get("save_all"):
        options = options | {"append_images": [grey.transpose(Image.Transpose.ROTATE_90)]}
    if kind == "DEEP":
        return DEEP_AVIF
    if kind == "DIVIDED":
        return pictures.divided(grey.getchannel(0), len(mode))
    file = io.BytesIO()
    grey.save(file, kind, **options)
    return file.getvalue()


def taken_per_pixel(content):
    """Return the bytes of memory for each counted pixel that decoding takes, at the most."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the most so far is what there is now
    before = most_resident()
    probe = Probe(content)
    probe.reduce((224, 224))
    probe.decode()
    return (most_resident() - before) / probe.pixels


def most_resident():
    (line,) = (entry for entry in Path("/proc/self/status").read_text().splitlines() if entry.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.mark.slow
@LINUX
def test_no_kind_of_picture_takes_more_memory_than_is_counted_for_it():
    results = {}
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(taken_per_pixel, large_picture(*KINDS["turned, with a profile"])).result()
        for name, kind in KINDS.items():
            results[f"{kind[1]} {name}"] = pool.submit(taken_per_pixel, large_picture(*kind)).result()
    assert {name: most for name, most in results.items() if most > PIXEL_BYTES + 0.5} == {}
    assert max(results.values()) > PIXEL_BYTES - 2, results  # no more is kept free than need be


def resident(worker):
    """Return the bytes of memory of a process."""
    return int(Path(f"/proc/{worker}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@LINUX
@pytest.mark.fault(
    "many concurrent files of a few bytes with 64 megapixels",
    "they are decoded one after the other, in the memory of one; those that wait too long get 503 with `Retry-After`",
)
def test_many_large_pictures_take_the_memory_of_one():
    port, pixels = free_port(), 64_000_000
    # Beside one of them there is memory for no other.
    process = start(port, SEEWHY_MEMORY_BYTES=str(1200 * 10**6))

    def ask(content):
        return requests.post(
            f"http://127.0.0.1:{port}/explain", data=content, headers={"Content-Type": "image/webp"}, timeout=120
        ).status_code

    try:
        (worker,) = children(process.pid)
        assert ask(bomb(400)) == 200  # all threads are there
        before, actual, end = resident(worker), [], threading.Event()

        def watch():
            while not end.wait(0.01):
                actual.append(resident(worker))

        watcher = threading.Thread(target=watch)
        watcher.start()
        with ThreadPoolExecutor(3) as pool:
            statuses = set(pool.map(ask, [bomb(8000)] * 3))
        end.set()
        watcher.join()
        assert 200 in statuses
        assert statuses <= {200, 503}
        assert max(actual) - before < 1.4 * pixels * PIXEL_BYTES
    finally:
        process.terminate()
        assert process.wait(60) == 0

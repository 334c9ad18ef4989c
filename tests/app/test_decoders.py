import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from seewhy.app import create_app
from seewhy.app.errors import DeadlineError
from seewhy.app.pipeline.decoders import Decoders
from seewhy.app.settings import Settings
from seewhy.explainers.errors import PictureTooLargeError, UnreadablePictureError
from seewhy.explainers.imaging.decode import MAX_PIXELS, read_reduced
from tests.hostile import pictures


def whole(width, height):
    return width, height


@pytest.fixture
def made():
    """Make decoders that are stopped after the test."""
    found = []

    def make(count=1, most_bytes=2**30, seconds=20, patience=60.0):
        found.append(Decoders(count, most_bytes, seconds, patience))
        return found[-1]

    yield make
    for one in found:
        one.stop()


def process(decoders):
    """The number of the only process."""
    decoder = decoders._idle.get()
    decoders._idle.put(decoder)
    return decoder and decoder._process.pid


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_a_process_decodes_as_the_service_does(made):
    decoders = made()
    for content in [*pictures.sound().values(), *(one.content for one in pictures.kinds())]:
        expected = read_reduced(content, whole)
        found = decoders.read(content, whole, MAX_PIXELS)
        assert found.size == expected.size
        assert np.array_equal(np.asarray(found.picture), np.asarray(expected.picture))


def test_a_jpeg_is_made_as_small_as_is_asked(made):
    content = pictures.encoded(pictures.photograph(800, 600), "JPEG")
    found = made().read(content, lambda width, height: (width // 4, height // 4), MAX_PIXELS)
    assert (found.picture.size, found.size) == ((200, 150), (800, 600))


def test_errors_are_those_of_the_service(made):
    decoders = made()
    with pytest.raises(UnreadablePictureError, match="JPEG, PNG"):
        decoders.read(b"no picture", whole, MAX_PIXELS)
    first = process(decoders)
    with pytest.raises(PictureTooLargeError, match="64×48"):
        decoders.read(pictures.sound()["PNG"], whole, 100)
    assert process(decoders) == first


def test_a_process_is_light_and_can_open_nothing(made):
    decoders = made()
    decoders.read(pictures.sound()["TIFF"], whole, MAX_PIXELS)
    about = Path(f"/proc/{process(decoders)}")
    mapped = (about / "maps").read_text()
    assert "_imaging" in mapped
    assert not any(name in mapped for name in ("torch", "onnx", "markupsafe"))
    limits = {line[:26].strip(): line[26:].split()[0] for line in (about / "limits").read_text().splitlines()}
    assert limits["Max open files"] == limits["Max file size"] == limits["Max core file size"] == "0"
    assert limits["Max address space"] == str(2**30)
    assert b"SECRET" not in (about / "environ").read_bytes()


def test_a_process_knows_nothing_of_the_settings(made, monkeypatch):
    monkeypatch.setenv("SEEWHY_SECRET", "key")
    decoders = made()
    decoders.read(pictures.sound()["PNG"], whole, MAX_PIXELS)
    assert b"SEEWHY" not in Path(f"/proc/{process(decoders)}/environ").read_bytes()


def test_a_picture_of_too_much_memory_is_too_large(made):
    decoders = made(most_bytes=2**28)
    content = pictures.png(8000, 7900, pictures.zeros(7900 * 24_001))
    with pytest.raises(PictureTooLargeError, match="memory"):
        decoders.read(content, whole, MAX_PIXELS)
    assert decoders.read(pictures.sound()["PNG"], whole, MAX_PIXELS).size == (64, 48)


@pytest.mark.fault(
    "a picture that takes too long to decode (in its own process)",
    "413; the process is replaced",
)
def test_a_picture_of_too_much_time_is_too_large_and_the_process_is_replaced(made):
    decoders = made(seconds=1)
    content = pictures.sound()["PNG"]
    assert decoders.read(content, whole, MAX_PIXELS).size == (64, 48)
    first = process(decoders)
    content_of_a_minute = pictures.scans(2000)
    started = time.monotonic()
    with pytest.raises(PictureTooLargeError, match="1 s of processor time"):
        decoders.read(content_of_a_minute, whole, 2**40)
    assert time.monotonic() - started < 20  # of which patience would take 60
    assert decoders.read(content, whole, MAX_PIXELS).size == (64, 48)
    assert process(decoders) not in (None, first)
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_a_process_that_answers_too_late_is_replaced(made):
    decoders = made(patience=0.3)
    content_of_half_a_minute = pictures.scans(1000)
    started = time.monotonic()
    with pytest.raises(DeadlineError, match="within 0 s; try again"):
        decoders.read(content_of_half_a_minute, whole, 2**40)
    assert time.monotonic() - started < 10  # of which processor time would take 20
    assert process(decoders) is None


def failure(decoders, content):
    """What is raised as a picture is read."""
    try:
        return decoders.read(content, whole, MAX_PIXELS)
    except Exception as error:
        return error


@pytest.mark.fault(
    "a decoding process that hangs",
    "504 once its time is up; the process is replaced, and the log says so",
)
def test_a_process_that_reads_nothing_is_replaced(made, caplog):
    decoders = made(patience=0.5)
    small = pictures.sound()["PNG"]
    decoders.read(small, whole, MAX_PIXELS)
    stopped = process(decoders)
    os.kill(stopped, signal.SIGSTOP)
    noise = np.random.default_rng(0).integers(0, 256, (600, 600, 3), dtype=np.uint8)
    large = pictures.encoded(Image.fromarray(noise), "PNG")  # more than a pipe holds
    reading = threading.Thread(target=lambda: found.append(failure(decoders, large)), daemon=True)
    found = []
    reading.start()
    reading.join(30)
    assert [type(one) for one in found] == [DeadlineError]
    assert "did not answer" in caplog.text
    assert process(decoders) is None
    with pytest.raises(ProcessLookupError):
        os.kill(stopped, 0)


@pytest.mark.fault(
    "a picture that breaks the decoder (in its own process)",
    "415; the process is replaced",
)
def test_a_picture_that_breaks_the_decoder_is_unreadable(made, caplog):
    decoders = made()

    def crash(width, height):
        os.kill(threads_process[0], signal.SIGSEGV)
        return width, height

    decoders.read(pictures.sound()["JPEG"], whole, MAX_PIXELS)
    threads_process = [process(decoders)]
    with pytest.raises(UnreadablePictureError, match="broke the decoder"):
        decoders.read(pictures.sound()["JPEG"], crash, MAX_PIXELS)
    assert f"ended with status {-signal.SIGSEGV}" in caplog.text
    assert decoders.read(pictures.sound()["JPEG"], whole, MAX_PIXELS).size == (64, 48)


def test_one_that_ended_while_idle_is_replaced(made):
    decoders = made()
    decoders.read(pictures.sound()["PNG"], whole, MAX_PIXELS)
    os.kill(process(decoders), signal.SIGKILL)
    os.waitid(os.P_PID, process(decoders), os.WEXITED | os.WNOWAIT)
    assert decoders.read(pictures.sound()["PNG"], whole, MAX_PIXELS).size == (64, 48)


def test_a_mistake_of_ours_is_no_fault_of_the_picture(made):
    def mistaken(width, height):
        raise KeyError("ours")

    decoders = made()
    with pytest.raises(KeyError, match="ours"):
        decoders.read(pictures.sound()["JPEG"], mistaken, MAX_PIXELS)
    assert decoders.read(pictures.sound()["JPEG"], whole, MAX_PIXELS).size == (64, 48)


def test_several_threads_share_the_processes(made):
    decoders = made(count=2)
    contents = [pictures.encoded(Image.new("RGB", (9, 9), (level, 0, 0)), "PNG") for level in range(40)]
    found = {}

    def read(level):
        found[level] = decoders.read(contents[level], whole, MAX_PIXELS).picture.getpixel((4, 4))

    threads = [threading.Thread(target=read, args=(level,)) for level in range(len(contents))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {level: (level, 0, 0) for level in range(len(contents))}


def test_a_service_can_decode_in_processes(cat):
    app = create_app(Settings(decode_processes=1, decode_bytes=2**28))
    client, plain = app.test_client(), create_app(Settings())

    def post(client, content):
        return client.post("/explain?format=npz", data=content, content_type="image/png")

    try:
        assert post(client, cat).data == post(plain.test_client(), cat).data
        assert post(client, b"none").status_code == 415
        big = pictures.png(8000, 7900, pictures.zeros(7900 * 24_001))
        problem = post(client, big)
        assert problem.status_code == 413
        assert "memory" in problem.get_json()["detail"]
        assert process(app.extensions["seewhy"]._decoders)
    finally:
        for one in (app, plain):
            one.extensions["seewhy"].stop()
    assert process(app.extensions["seewhy"]._decoders) is None

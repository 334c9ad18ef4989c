"""What the container promises: nothing is written but into the temporary folder, and nothing else need be writable."""

import io
import re
import shlex
import signal
from pathlib import Path

import pytest
import requests
from PIL import Image

from tests.app.conftest import EXAMPLES
from tests.app.serving import free_port, start
from tests.app.test_server import explain

ROOT = Path(__file__).parents[2]


def variables(temporary):
    """Return the environment that the Dockerfile sets, with another temporary folder."""
    lines = re.findall(r"^ENV (.+)$", (ROOT / "Dockerfile").read_text().rpartition("\nFROM ")[2], flags=re.MULTILINE)
    found = dict(word.split("=", 1) for line in lines for word in shlex.split(line))
    for name in ("PATH", "SEEWHY_HOST", "SEEWHY_PORT"):
        del found[name]
    return {name: value.replace("/tmp", str(temporary)) for name, value in found.items()}


def asked(port):
    """Ask for what uses most of the software: models of both kinds of work, drawings, charts, a large upload."""
    url = f"http://127.0.0.1:{port}"
    for fields in ({"method": "gradcam,saliency"}, {"format": "npz"}, {"view": "side-by-side"}):
        assert explain(url, "astronaut.png", **fields).status_code == 200
    bitmap = io.BytesIO()
    Image.open(EXAMPLES / "astronaut.png").convert("RGB").save(bitmap, "BMP")
    assert requests.post(f"{url}/predict", files={"image": bitmap.getvalue()}, timeout=60).status_code == 200
    for path, fields in (("trace", {"format": "png"}), ("capture", {"layer": "bn2", "format": "png"})):
        with (EXAMPLES / "cat.png").open("rb") as picture:
            answered = requests.post(f"{url}/hooks/{path}", files={"image": picture}, data=fields, timeout=60)
        assert answered.status_code == 200, answered.text


@pytest.mark.fault(
    "a file system that is read-only but for `/tmp`",
    "nothing",
)
@pytest.mark.parametrize("writable", [pytest.param(True, marks=pytest.mark.slow), False])
def test_nothing_is_written_but_into_the_temporary_folder(tmp_path, writable):
    temporary, home, folder = (tmp_path / name for name in ("tmp", "home", "folder"))
    for made in (temporary, home, folder):
        made.mkdir()
    if not writable:
        # Nobody can make a file here, root neither.
        home, folder = Path("/proc/home"), Path("/proc")
    port = free_port()
    given = {"HOME": str(home), "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT), **variables(temporary)}
    process = start(port, folder, **given)
    try:
        asked(port)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    if writable:
        assert [*home.rglob("*"), *folder.rglob("*")] == []

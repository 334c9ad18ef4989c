"""The container writes only to the temporary folder, and nothing else needs to be writable."""

import io

import pytest
import requests
from PIL import Image

from tests.app.conftest import EXAMPLES, ROOT
from tests.app.serving import CAT, container_variables, explain, free_port, start
from tests.waiting import GUARD


def exercise(url):
    """Ask for what uses most of the software: models of both kinds of work, drawings, charts, a large upload."""
    picture = (EXAMPLES / "astronaut.png").read_bytes()
    for fields in ({"method": "gradcam,saliency"}, {"format": "npz"}, {"view": "side-by-side"}):
        assert explain(url, picture, **fields).status_code == 200
    bitmap = io.BytesIO()
    Image.open(EXAMPLES / "astronaut.png").convert("RGB").save(bitmap, "BMP")
    assert requests.post(f"{url}/predict", files={"image": bitmap.getvalue()}, timeout=GUARD).status_code == 200
    for path, fields in (("trace", {"format": "png"}), ("capture", {"layer": "bn2", "format": "png"})):
        answer = requests.post(f"{url}/hooks/{path}", files={"image": CAT}, data=fields, timeout=GUARD)
        assert answer.status_code == 200, answer.text


@pytest.mark.slow
@pytest.mark.fault("a file system that is read-only except for `/tmp`", "nothing")
def test_nothing_need_be_writable_but_the_temporary_folder(tight):
    exercise(tight.url)


@pytest.mark.slow
def test_nothing_is_written_but_into_the_temporary_folder_and_nothing_said(tmp_path):
    temporary, home, folder = (tmp_path / name for name in ("tmp", "home", "folder"))
    for place in (temporary, home, folder):
        place.mkdir()
    port, variables = free_port(), {"HOME": str(home), "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    variables["SEEWHY_LOG_LEVEL"] = "error"
    with (tmp_path / "log").open("w") as log:
        process = start(port, folder, stderr=log, **variables, **container_variables(temporary))
    try:
        exercise(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        assert process.wait(GUARD) == 0
    assert [*home.rglob("*"), *folder.rglob("*")] == []
    assert (tmp_path / "log").read_text() == ""

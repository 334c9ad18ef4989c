"""`seewhy explain` on many pictures: their selection, order and output, and the files of an interrupted run."""

import contextlib
import csv
import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import termios
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from seewhy.app.cli import sheet
from seewhy.app.cli.summary import COLUMNS
from seewhy.app.pipeline.batches import BatchRunner
from tests.app.conftest import EXAMPLES
from tests.app.serving import CAT

COMMAND = [sys.executable, "-m", "seewhy"]


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder of pictures, one of them corrupt, with other files and a folder inside."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "photos"
    (folder / "sub" / ".hidden").mkdir(parents=True)
    for number, name in enumerate(["a.png", "b.jpg", "c.PNG", "sub/a.png", "sub/.hidden/d.png", "e.seewhy.png"]):
        Image.effect_noise((60 + 10 * number, 50), 80).convert("RGB").save(folder / name)
    (folder / "bad.png").write_bytes((folder / "a.png").read_bytes()[:300])
    (folder / "notes.txt").write_text("no picture")
    return Path("photos")


def lines(result):
    return [line.partition(":")[0] for line in result.stdout.splitlines()]


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


def rows_of(path):
    text = Path(path).read_text()
    return list(csv.DictReader(io.StringIO(text))) if path.endswith("csv") else list(map(json.loads, text.splitlines()))


def test_a_folder_means_the_pictures_in_it_and_below(run, photos):
    result = run("explain", photos, "-o", "out")
    assert result.exit_code == 1
    assert lines(result) == ["photos/a.png", "photos/b.jpg", "photos/c.PNG", "photos/sub/a.png"]
    assert files("out") == ["a.seewhy.png", "b.seewhy.png", "c.seewhy.png", "sub/a.seewhy.png"]
    errors = result.stderr.splitlines()
    assert errors[0].startswith("Error: photos/bad.png: The picture is damaged")
    assert errors[-1] == "1 of 5 pictures failed."


@pytest.mark.parametrize("source", ["photos", "photos/**"])
def test_pipes_are_skipped_and_foreign_formats_fail(run, photos, source):
    os.mkfifo("photos/pipe.jpg")
    shutil.copy("photos/a.png", "photos/kept.png")
    Path("photos/phone.HEIC").write_bytes(b"heic")
    result = run("explain", source, "-o", "out")
    assert "photos/kept.png" in lines(result)
    assert "Error: photos/phone.HEIC: This is not a readable picture; use a JPEG" in result.stderr
    assert "pipe" not in result.output


def test_a_quoted_glob_is_expanded(run, photos):
    result = run("explain", "photos/**/[a-b]*.*g", "-o", "out")
    assert lines(result) == ["photos/a.png", "photos/b.jpg", "photos/sub/a.png"]
    assert files("out") == ["b.seewhy.png", "photos/a.seewhy.png", "sub/a.seewhy.png"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["*.tiff"], "No file matches '*.tiff'"),
        (["empty"], "no picture in 'empty'"),
        (["photos", "-o", "-"], "there are 5"),
        (["photos", "-o", "one.png"], "several pictures need a folder"),
        (["photos", "-o", "photos/notes.txt"], "need a folder"),
        (["photos", "--sheet", "sheet.gif"], ".png"),
        (["photos", "--summary", "rows.xls"], ".jsonl"),
        (["photos/a.png", "-o", "-", "--skip-existing"], "needs files"),
        (["photos/a.png", "-o", "a.gif"], "format; use .png, .jpg, .jpeg, .webp, .json, .npz, .html"),
        (["photos/a.png", "-o", "a.png", "--format", "json"], "'.png' is not the suffix of the format json; use .json"),
        (["photos", "--method", "gradcan"], "gradcam"),
        (["photos", "--layer", "blocks.66"], "blocks.6"),
        (["photos", "--layer", "classifier"], "classifier"),
        (["photos", "--target", "tiger kat"], "tiger cat"),
        (["photos", "--alpha", "2"], "alpha"),
        (["photos", "--model", "resnet5O"], "resnet50"),
        (["photos", "--device", "tpu"], "device"),
    ],
)
def test_mistakes_are_told_once_with_status_2(run, photos, arguments, message):
    Path("empty").mkdir()
    before = files(".")
    result = run("explain", *arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.count("Error: ") == 1 + ("bad.png" in result.stderr)
    assert message in result.stderr
    assert files(".") == before


def test_pictures_share_passes(run, photos, monkeypatch):
    sizes = []
    answer = BatchRunner._answer

    def count_and_answer(self, model, batch, jobs, offer_turn):
        sizes.append(len(jobs))
        answer(self, model, batch, jobs, offer_turn)

    monkeypatch.setattr(BatchRunner, "_answer", count_and_answer)
    for number in range(24):
        Image.new("RGB", (60, 50), (10 * number, 0, 0)).save(photos / f"f{number:02}.png")
    assert run("explain", "photos/f*.png", "-o", "out").exit_code == 0
    assert sum(sizes) == 24
    assert len(sizes) < 12


def test_an_answer_is_that_of_the_picture_alone(run, photos):
    run("explain", photos, "-o", "out", "--format", "npz")
    run("explain", "photos/b.jpg", "-o", "b.npz")
    with np.load("out/b.seewhy.npz") as shared, np.load("b.npz") as alone:
        assert np.allclose(shared["maps"], alone["maps"], atol=1e-4 * alone["maps"].max())
        assert shared["targets"] == alone["targets"]


def test_names_do_not_depend_on_the_order_of_pictures(run, photos):
    Image.new("RGB", (60, 50)).save(photos / "a.bmp")
    for pictures in (("photos/a.png", "photos/a.bmp"), ("photos/a.bmp", "photos/a.png")):
        result = run("explain", *pictures, "-o", "out")
        assert "photos/a.png: " in result.stdout
        assert all(f"-> out/{line.split('/')[1].split(':')[0]}.seewhy" in line for line in result.stdout.splitlines())


def test_no_two_pictures_have_one_answer(run, photos):
    names = ["d.png", "d.jpg", "d.png.png", "d.png-2.png"]
    for name in (*names, "sub/d.png"):
        Image.new("RGB", (60, 50)).save(photos / name)
    result = run("explain", *(photos / name for name in (*names, "sub/d.png")), "-o", "out")
    assert result.exit_code == 0, result.output
    outputs = [line.partition("-> ")[2] for line in result.stdout.splitlines()]
    assert outputs == [
        "out/photos/d.seewhy.png",
        "out/d.seewhy.png",
        "out/d.png.seewhy.png",
        "out/d.png-2.seewhy.png",
        "out/sub/d.seewhy.png",
    ]
    assert len(set(outputs)) == len(files("out")) == 5


def test_answers_stay_in_their_folder(run, photos, monkeypatch):
    Image.new("RGB", (60, 50)).save("a.png")
    monkeypatch.chdir("photos")
    assert run("explain", "../a.png", "a.png", "-o", "../out").exit_code == 0
    monkeypatch.chdir("..")
    assert set(files("out")) == {f"{Path.cwd().name}/a.seewhy.png", "photos/a.seewhy.png"}


@pytest.mark.parametrize("place", ["new/", "new/er/"])
def test_what_ends_in_a_slash_is_a_folder(run, photos, place):
    assert run("explain", "photos/a.png", "-o", place).exit_code == 0
    assert files("new") == [f"{place.removeprefix('new/')}a.seewhy.png"]


@pytest.mark.parametrize("again", ["photos", "photos/*.*[gG]"])
def test_a_contact_sheet_is_no_picture_of_the_next_run(run, photos, again, monkeypatch):
    monkeypatch.setattr(sheet, "_PAGE", 2)
    arguments = (again, "-o", "out", "--sheet", "photos/sheet.png")
    run("explain", *arguments)
    assert {"sheet.png", "sheet-2.png"} < set(files("photos"))
    before = files("out")
    result = run("explain", *arguments, "--skip-existing")
    assert "sheet" not in result.output
    assert files("out") == before
    assert "photos/sheet.png: " in run("explain", "photos/sheet.png", "-o", "out").stdout  # named, it is one


def test_a_large_picture_gets_our_error_without_pillows_warning(run, tmp_path):
    Image.new("1", (10_000, 9_000)).save(tmp_path / "large.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run("explain", tmp_path / "large.png")
    assert "The picture is 10000×9000 = 90,000,000 pixels, more than the 64,000,000 that are allowed" in result.stderr


@pytest.mark.slow
def test_a_name_may_hold_any_byte(run, photos):
    Path("photos/a.png").rename(os.fsdecode(b"photos/a\xff\x1b[31m\xe2\x80\xa8.png"))
    command = [*COMMAND, "explain", "photos/a*", "photos/b.jpg", "-o", "out", "--summary", "rows.csv"]
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    process = subprocess.run([*command, "--sheet", "all.png"], capture_output=True, env=strict, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith(
        "photos/a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}.png: "
    )
    assert len(files("out")) == 2
    before = Path("rows.csv").read_bytes()
    assert b"\\udcff" in before
    again = run(*command[len(COMMAND) :], "--skip-existing")
    assert (again.exit_code, again.stdout) == (0, ""), again.stderr
    assert Path("rows.csv").read_bytes() == before


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_the_summary_has_a_row_for_each_explanation_and_each_error(run, photos, suffix):
    options = ("--top", 2, "--method", "gradcam", "--method", "saliency", "--against", "goldfish")
    run("explain", "photos/a.png", "photos/bad.png", "-o", "out", *options, "--summary", f"rows.{suffix}")
    rows = rows_of(f"rows.{suffix}")
    assert len(rows) == 5
    assert all(tuple(row) == COLUMNS for row in rows)
    first, error = rows[0], rows[-1]
    assert (first["picture"], first["output"]) == ("photos/a.png", "out/a.seewhy.png")
    assert (first["model"], first["method"], rows[1]["method"]) == ("efficientnet_lite0", "gradcam", "saliency")
    assert first["contrast"] == "goldfish"
    assert 0 < float(first["probability"]) < 1
    assert int(first["target"]) >= 0
    assert float(first["milliseconds"]) > 0
    assert not first["error"]
    assert (error["picture"], error["output"]) == ("photos/bad.png", "" if suffix == "csv" else None)
    assert "damaged" in error["error"]


def test_diagnostics_are_in_the_summary(run, photos):
    cat = EXAMPLES / "cat.png"  # of the noise in the folder some have a blank map too
    run("explain", cat, "-o", "out", "--target", "goldfish", "--summary", "rows.jsonl")
    (row,) = rows_of("rows.jsonl")
    assert row["diagnostics"] == ["improbable-target"]


def test_warnings_of_proofs_are_in_the_summary(run, photos):
    cat = EXAMPLES / "cat.png"
    run("explain", cat, "-o", "out", "--method", "random", "--proof=true", "--summary", "rows.jsonl")
    (row,) = rows_of("rows.jsonl")
    assert row["diagnostics"] == ["same-for-every-class", "crop-hides"]


def test_what_is_there_is_skipped_and_the_summary_goes_on(run, photos):
    arguments = ("explain", photos, "-o", "out", "--skip-existing", "--summary", "rows.csv", "--sheet", "all.png")
    assert run(*arguments).exit_code == 1
    before = Path("rows.csv").read_text().splitlines()
    old = Path("out/b.seewhy.png").stat().st_mtime_ns
    Path("out/c.seewhy.png").unlink()
    Path("rows.csv").write_text("\n".join([*(line for line in before if "c.PNG" not in line), "photos/half"]))
    sheet_of_all = Path("all.png").read_bytes()
    result = run(*arguments)
    assert lines(result) == ["photos/c.PNG"]
    assert "3 of 5 outputs already exist." in result.stderr
    assert Path("out/b.seewhy.png").stat().st_mtime_ns == old
    rows = rows_of("rows.csv")
    assert sorted(row["picture"] for row in rows) == [
        *("photos/a.png", "photos/b.jpg", "photos/bad.png", "photos/c.PNG", "photos/sub/a.png")
    ]
    assert all(row["label"] for row in rows if not row["error"])
    with Image.open("all.png") as again, Image.open(io.BytesIO(sheet_of_all)) as first:
        assert again.size == first.size
    Path("rows.csv").unlink()
    run(*arguments)
    assert [row["label"] for row in rows_of("rows.csv")] == [""] * 5


def test_it_goes_on_with_no_file_that_is_no_summary(run, photos):
    Path("mine.csv").write_text("name,value\na,1\n")
    result = run("explain", photos, "-o", "out", "--skip-existing", "--summary", "mine.csv")
    assert result.exit_code == 2
    assert "is not a summary" in result.output
    assert Path("mine.csv").read_text() == "name,value\na,1\n"


def test_a_model_is_not_loaded_for_nothing(run, photos, monkeypatch):
    run("explain", "photos/a.png", "photos/b.jpg", "-o", "out")
    monkeypatch.setattr("seewhy.app.pipeline.model_store.ModelStore._load", lambda *_: pytest.fail("loaded"))
    assert run("explain", "photos/a.png", "photos/b.jpg", "-o", "out", "--skip-existing").exit_code == 0


def test_the_sheet_shows_every_answer_under_its_name(run, photos):
    assert run("explain", "photos/a.png", "photos/b.jpg", "-o", "out", "--sheet", "s/all.jpg").exit_code == 0
    with Image.open("s/all.jpg") as drawing:
        assert drawing.size == (2 * 328, 20 + 20 + 248)
        pixels = np.asarray(drawing.convert("L"))
    for left in (0, 328):
        assert pixels[20:40, left : left + 328].min() < 100  # the caption
        assert pixels[40:, left : left + 328].mean() < 200  # the drawing


def test_captions_of_a_sheet_have_the_grades(run, photos, monkeypatch):
    captions = []
    monkeypatch.setattr(sheet.Sheet, "add", lambda self, tile, caption: captions.append(caption))
    for options in ([], ["--proof"]):
        result = run("explain", "photos/a.png", "-o", "out", "--method", "votes-detail", "--sheet", "s.png", *options)
    grade = result.stdout.splitlines()[1].partition(":")[0].strip()
    assert captions == [captions[0], f"{captions[0]} ({grade})"]


def test_a_sheet_has_further_pages(run, photos, monkeypatch):
    monkeypatch.setattr(sheet, "_PAGE", 2)
    run("explain", photos, "-o", "out", "--format", "npz", "--sheet", "all.png")
    assert files("out") == ["a.seewhy.npz", "b.seewhy.npz", "c.seewhy.npz", "sub/a.seewhy.npz"]
    assert sorted(path.name for path in Path().glob("all*")) == ["all-2.png", "all.png"]


def test_from_the_standard_input_to_the_standard_output(run):
    result = run("explain", "-", "-o", "-", "--format", "jpeg", input=CAT)
    with Image.open(io.BytesIO(result.stdout_bytes)) as drawing:
        assert (drawing.format, drawing.size) == ("JPEG", (451, 300))
    assert result.stderr == "-: tiger cat 39.3% by gradcam of efficientnet_lite0\n"


@pytest.mark.parametrize("command", ["trace", "capture"])
def test_commands_about_hooks_write_to_the_standard_output_too(run, command):
    options = ("--layer", "bn2", "-o", "-", "--format", "json")
    result = run(command, EXAMPLES / "cat.png", *options)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["model"]["name"] == "efficientnet_lite0"
    assert "cat.png: " in result.stderr


def on_a_terminal(*arguments, interrupted_at=None, **environ):
    """Return what a command writes to a terminal, and its status; maybe it is interrupted when it writes something."""
    reader, writer = pty.openpty()
    termios.tcsetwinsize(writer, (40, 100))
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    environment |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", **environ}
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        **dict.fromkeys(("stdin", "stdout", "stderr"), writer),
        env=environment,
        # Whoever runs the tests in the background of a shell ignores the signal, and what they start would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    os.close(writer)
    text = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while more := os.read(reader, 65536):
            text += more
            if interrupted_at and interrupted_at in text:
                process.send_signal(signal.SIGINT)
                interrupted_at = None
    os.close(reader)
    return text.decode(), process.wait()


@pytest.mark.slow
def test_on_a_terminal_there_is_a_bar_of_a_single_picture_that_takes_long():
    line = ("explain", str(EXAMPLES / "cat.png"), "--method", "rise", "--samples", "3000")
    text, status = on_a_terminal(*line, interrupted_at=b"% ")
    assert re.search(r"\d+% .* \d\d:\d\d<", text), text
    assert "Interrupted: 0 of 1 pictures done." in text
    assert status == 130


@pytest.mark.slow
def test_on_a_terminal_there_is_a_bar_and_an_interrupt_leaves_whole_files_to_go_on_from(run, photos):
    for number in range(30):
        Image.effect_noise((600, 500), 80).convert("RGB").save(photos / f"f{number:02}.png", compress_level=1)
    arguments = ("explain", "photos/[abf]*.png", "-o", "out", "--summary", "rows.csv", "--skip-existing")
    text, status = on_a_terminal(*arguments, interrupted_at=b"photos/f00.png")
    assert status == 130, text
    assert "/32 " in text
    assert "picture/s" in text or "s/picture" in text
    assert "\033[31mError:" in text
    assert "Traceback" not in text
    assert "of 32 pictures done" in text
    there = files("out")
    assert 0 < len(there) < 31
    for name in there:
        assert name.endswith(".seewhy.png")
        with Image.open(Path("out", name)) as drawing:
            drawing.load()
    assert run(*arguments).exit_code == 1  # of the picture that is damaged
    assert len(files("out")) == 31
    pictures = [row["picture"] for row in rows_of("rows.csv")]
    assert sorted(pictures) == ["photos/a.png", "photos/bad.png", *(f"photos/f{number:02}.png" for number in range(30))]


@pytest.mark.slow
def test_no_color_is_respected(photos):
    text, status = on_a_terminal("explain", "photos/notes.txt", "-o", "out", NO_COLOR="1")
    assert status == 1
    assert "\033[31m" not in text
    assert "Error: photos/notes.txt" in text


@pytest.mark.slow
def test_a_terminal_gets_no_bytes(photos):
    text, status = on_a_terminal("explain", "photos/a.png", "-o", "-", "--format", "npz")
    assert status == 2
    assert "is a terminal" in text
    text, status = on_a_terminal("explain", "-")
    assert status == 2
    assert "pipe a picture" in text


def test_what_cannot_be_written_leaves_what_was_there(run, photos, monkeypatch):
    Path("out").mkdir()
    Path("out/a.seewhy.png").write_bytes(b"old")

    def full(path, body):
        with path.open("wb") as file:
            file.write(body[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    result = run("explain", "photos/a.png", "-o", "out")
    assert result.exit_code == 1
    assert result.stderr == "Error: photos/a.png: cannot write 'out/a.seewhy.png': No space left on device\n"
    assert [(path.name, path.read_bytes()) for path in Path("out").iterdir()] == [("a.seewhy.png", b"old")]

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from seewhy.app.cli.terminal import drawn, protocol

PICTURE = Image.effect_noise((64, 48), 60).convert("RGB").resize((400, 300), Image.Resampling.BICUBIC)
PICTURE.paste((250, 20, 30), (0, 0, 200, 300))


@pytest.mark.parametrize(
    ("environ", "how"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "ghostty"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, "iterm2"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "WezTerm", "NO_COLOR": "1"}, "iterm2"),
        ({"TERM": "foot"}, "sixel"),
        ({"TERM": "xterm-256color"}, "blocks"),
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/tmux"}, "blocks"),
        ({"TERM": "screen-256color", "KITTY_WINDOW_ID": "1"}, "blocks"),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, None),
        ({"TERM": "dumb"}, None),
        ({}, None),
    ],
)
def test_the_environment_tells_what_a_terminal_can(environ, how):
    assert protocol(environ) == how


def near(found, size, tolerance):
    wanted = np.asarray(PICTURE.resize(size, Image.Resampling.LANCZOS)).astype(int)
    return np.abs(np.asarray(found).astype(int) - wanted).mean() < tolerance


def test_kitty_gets_a_png_in_chunks():
    text = drawn(PICTURE, "kitty", 80, 24)
    chunks = re.findall(r"\033_G([^;]*);([^\033]*)\033\\", text)
    assert "".join(f"\033_G{keys};{part}\033\\" for keys, part in chunks) + "\n" == text
    assert chunks[0][0] == "a=T,f=100,q=2,c=40,r=15,m=1"
    assert [keys for keys, _ in chunks[1:]] == ["m=1"] * (len(chunks) - 2) + ["m=0"]
    assert max(len(part) for _, part in chunks) == 4096
    with Image.open(io.BytesIO(base64.b64decode("".join(part for _, part in chunks)))) as found:
        assert np.array_equal(np.asarray(found), np.asarray(PICTURE))


def test_one_chunk_is_the_last():
    assert "m=0" in drawn(PICTURE.resize((8, 8)), "kitty", 80, 24)


def test_iterm2_gets_a_file():
    text = drawn(PICTURE, "iterm2", 20, 24)
    size, content = re.fullmatch(r"\033]1337;File=inline=1;size=(\d+);width=20;height=8:(.*)\a\n", text).groups()
    png = base64.b64decode(content)
    assert len(png) == int(size)
    with Image.open(io.BytesIO(png)) as found:
        assert found.size == (200, 150)
        assert near(found, (200, 150), 1)


def unsixel(text):
    """Decode sixels as a terminal does."""
    width, height, body = re.fullmatch(r'\033P0;1q"1;1;(\d+);(\d+)(.*)\033\\\n', text, re.DOTALL).groups()
    pixels = np.full((int(height) + 6, int(width), 3), -1.0)
    palette, colour, left, top = {}, 0, 0, 0
    marks = re.compile(r"#(\d+)(?:;2;(\d+);(\d+);(\d+))?|(?:!(\d+))?([?-~$-])")
    for number, red, green, blue, count, mark in marks.findall(body):
        if red:
            palette[int(number)] = np.array([int(red), int(green), int(blue)]) * 2.55
        elif number:
            colour = int(number)
        elif mark == "$":
            left = 0
        elif mark == "-":
            left, top = 0, top + 6
        else:
            times = int(count or 1)
            for row in range(6):
                if ord(mark) - 63 >> row & 1:
                    pixels[top + row, left : left + times] = palette[colour]
            left += times
            assert left <= int(width)
    return pixels[: int(height)]


def test_sixels_cover_every_pixel():
    found = unsixel(drawn(PICTURE, "sixel", 30, 24))
    assert found.shape == (225, 300, 3)
    assert found.min() >= 0
    assert near(found, (300, 225), 10)


def test_blocks_are_two_pixels_each():
    text = drawn(PICTURE, "blocks", 40, 24)
    lines = text.splitlines()
    assert len(lines) == 15
    assert all(line.endswith("\033[0m") for line in lines)
    cells = [re.findall(r"\033\[38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)m▀", line) for line in lines]
    pixels = np.array(cells, int).reshape(15, 40, 2, 3).transpose(0, 2, 1, 3).reshape(30, 40, 3)
    assert near(pixels, (40, 30), 2)


def test_blocks_of_a_palette_where_the_terminal_has_no_more():
    text = drawn(Image.new("RGB", (4, 3), (255, 0, 51)), "blocks", 40, 24, truecolour=False)
    assert text == ("\033[38;5;197;48;5;197m▀" * 4 + "\033[0m\n") * 2


@pytest.mark.parametrize("how", ["kitty", "iterm2", "sixel", "blocks"])
def test_a_picture_of_one_pixel(how):
    assert drawn(Image.new("RGB", (1, 1)), how, 80, 24)

"""A picture of shapes for tests of the page with segmenters and detectors."""

import re

from PIL import Image, ImageDraw
from playwright.sync_api import expect

from tests.app.browsing import answered

WIDTH, HEIGHT = 64, 48
AREAS = {"red": [(4, 4, 19, 19), (40, 28, 59, 43)], "green": [(40, 4, 51, 15)]}


def shapes():
    """Two red rectangles and a green one, on blue."""
    picture = Image.new("RGB", (WIDTH, HEIGHT), (20, 30, 150))
    for colour, boxes in AREAS.items():
        for box in boxes:
            ImageDraw.Draw(picture).rectangle(box, fill=colour)
    return picture


def saved(folder):
    """Return the file of the picture, in a folder."""
    shapes().save(folder / "shapes.png")
    return folder / "shapes.png"


def shown(page):
    """Wait until the page shows places over the picture."""
    answered(page)
    expect(page.locator("#places .borders")).to_have_attribute("d", re.compile("M"))
    return page


def over(page, x, y):
    """Return where a pixel of the picture lies on the page."""
    box = page.locator("#stage").bounding_box()
    return box["x"] + (x + 0.5) / WIDTH * box["width"], box["y"] + (y + 0.5) / HEIGHT * box["height"]

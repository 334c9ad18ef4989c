"""A picture of shapes for tests of the page with segmenters and detectors."""

import re
from contextlib import contextmanager

import torch
from PIL import Image, ImageDraw
from playwright.sync_api import expect

from tests.app.browsing import answered
from tests.app.conftest import opened
from tests.app.serving import application, declare, live
from tests.waiting import GUARD

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


@contextmanager
def served(folder, net, labels, head):
    """Yield the address of a service whose only own model, named for its class, sees the picture as it is."""
    name = type(net).__name__
    torch.save(net.state_dict(), folder / "w.pth")
    members = {"labels": labels, "input_size": [HEIGHT, WIDTH], "head": head, "mean": [0, 0, 0], "std": [1, 1, 1]}
    models = declare(folder, f"{type(net).__module__}:{name}", [name.lower()], **members)
    with application(models=models, default_model=name.lower(), deadline=GUARD) as app, live(app) as url:
        yield url


@contextmanager
def page_of(browser, url, picture, query=""):
    """Yield the page of a service with the places in a picture."""
    with opened(browser, url) as tab:
        tab.goto(f"{url}/{query}")
        tab.wait_for_selector("body[data-ready]")
        tab.set_input_files("#image", picture)
        yield shown(tab)


def shown(page):
    """Wait until the page shows places over the picture."""
    answered(page)
    expect(page.locator("#places .borders")).to_have_attribute("d", re.compile("M"))
    return page


def over(page, x, y, size=(WIDTH, HEIGHT)):
    """Return where a pixel of a picture of this size lies on the page."""
    box = page.locator("#stage").bounding_box()
    return box["x"] + (x + 0.5) / size[0] * box["width"], box["y"] + (y + 0.5) / size[1] * box["height"]


def left(page):
    """Press at the edge of the picture, leave it in one movement, and release outside."""
    box = page.locator("#viewport").bounding_box()
    x, y = box["x"] + box["width"] - 2, box["y"] + box["height"] / 4
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 12, y)
    page.mouse.up()

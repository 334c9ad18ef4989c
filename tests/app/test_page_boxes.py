"""The page with a detector: boxes in the picture are clicked to be explained, and rectangles without one."""

import re

import pytest
import torch
from PIL import Image
from playwright.sync_api import expect
from torch import nn

from seewhy import BoxHead, Candidates
from tests.app.browsing import accessible, ask, clipboard, explained_anew
from tests.app.conftest import opened
from tests.app.shapes import HEIGHT, WIDTH, over, page_of, saved, served, shown

CELL = 16


class Cells(nn.Module):
    """A detector of pictures in [0, 1]: each cell of 16 pixels is red or green, as far as its mean colour is."""

    def __init__(self):
        super().__init__()
        self.neck = nn.Conv2d(3, 3, CELL, stride=CELL, bias=False)
        self.head = nn.Conv2d(3, 2, 1)
        self.box_head = BoxHead(decode)
        with torch.no_grad():
            self.neck.weight.copy_(torch.eye(3)[:, :, None, None] / CELL**2)
            self.head.weight.copy_(torch.tensor([[12.0, -24.0, 0.0], [-24.0, 24.0, 0.0]])[:, :, None, None])
            self.head.bias.fill_(-3.0)

    def forward(self, images):
        return self.head(self.neck(images))


def decode(raw):
    rows, columns = raw.shape[2:]
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    corners = CELL * torch.stack([x.flatten(), y.flatten()], dim=1)
    boxes = torch.cat([corners, corners + CELL], dim=1).to(raw)
    return Candidates(boxes.expand(len(raw), -1, -1), logits=raw.flatten(2).transpose(1, 2))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """The address of a service whose default model is a detector."""
    with served(tmp_path_factory.mktemp("scenes"), Cells(), ["red", "green"], "detection") as url:
        yield url


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def boxes(scenes, picture):
    """What the detector shows."""
    return ask(scenes, "/detect", picture).json()["boxes"]


@pytest.fixture(scope="module")
def street(browser, scenes, picture):
    """The page with the boxes of the picture, for one question after another."""
    with page_of(browser, scenes, picture, "?layer=neck") as page:
        yield page


def path(box):
    left, top, right, bottom = (f"{round(edge, 2):g}" for edge in box)
    return f"M{left} {top}H{right}V{bottom}H{left}Z"


def middle(box):
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def drag(page, start, stop):
    page.mouse.move(*over(page, *start))
    page.mouse.down()
    page.mouse.move(*over(page, *stop), steps=4)
    page.mouse.up()


def test_a_click_explains_the_box_there(street, boxes):
    expect(street.locator("#predictions .label")).to_have_text([box["label"] for box in boxes])
    expect(street.locator("#names span")).to_have_text([box["label"] for box in reversed(boxes)])  # the surest on top
    assert street.locator("#places .borders").get_attribute("d") == "".join(path(box["box"]) for box in boxes)
    green = next(box for box in boxes if box["label"] == "green")
    fields = explained_anew(street, lambda: street.mouse.click(*over(street, *middle(green["box"]))))
    assert ("target", f"box:{green['index']}") in fields
    expect(street.locator("#answer-label")).to_have_text("green")
    expect(street.locator("#answer-probability")).to_have_text(f"{green['score']:.1%}")
    expect(street.locator("#places .chosen")).to_have_attribute("d", path(green["box"]))
    expect(street.locator("#names .chosen")).to_have_text(["green"])
    accessible(street)


@pytest.mark.slow
def test_the_headline_of_a_box_that_the_detector_is_unsure_of_is_modest(browser, picture, tmp_path):
    detector = Cells()
    detector.box_head = BoxHead(decode, threshold=0.2)
    torch.nn.init.constant_(detector.head.bias, -3.4)
    with (
        served(tmp_path, detector, ["red", "green"], "detection") as url,
        page_of(browser, url, picture, "?layer=neck") as page,
    ):
        boxes = ask(url, "/detect", picture).json()["boxes"]
        assert boxes[-1]["score"] < 0.5 < boxes[0]["score"]
        for number in (-1, 0):
            score = boxes[number]["score"]
            explained_anew(page, page.locator("#predictions .class").nth(number).click)
            is_unsure = score < 0.5
            expect(page.locator("#answer-guess")).to_be_visible(visible=is_unsure)
            expect(page.locator("#answer-title")).to_have_class(re.compile("^modest$" if is_unsure else "^$"))
            unsure = f"The model is unsure: it gives this box only {score:.1%}." if is_unsure else ""
            expect(page.locator("#doubt")).to_have_text(unsure)


@pytest.mark.slow
def test_boxes_move_without_a_marked_part_and_a_sentence_says_how(street, boxes):
    place, box = next((place, box) for place, box in enumerate(boxes) if box["box"][0] > 0)  # beside the handle
    explained_anew(street, lambda: street.mouse.click(*over(street, *middle(box["box"]))))
    left, top, right, bottom = box["box"]
    street.click("#marking-on")
    drag(street, (left, top), (right - 1, bottom - 1))
    said = street.locator("#marking-said")
    expect(said).to_contain_text(f"Without your marked part, {box['label']} is no longer found.")
    with street.expect_download() as download:
        street.click("#save-report")
    rows = re.findall("<th[^>]*>([^<]*)</th><td>([^<]*)</td><td>([^<]*)</td>", download.value.path().read_text())
    assert (box["label"], f"{box['score']:.1%}", "no longer found") in rows
    expect(said).to_contain_text(f"{len(boxes) - 1} boxes are found instead of {len(boxes)}.")
    expect(street.locator("#edges")).to_have_value("")  # it asks about no rectangle
    rows = street.locator("#predictions .share")
    expect(rows.nth(place)).to_have_text(f"0.0% −{100 * box['score']:.1f} pp")
    others = [other for other in boxes if other is not box]
    expect(rows.nth(boxes.index(others[0]))).to_have_text(f"{others[0]['score']:.1%}")
    rest = "".join(path(other["box"]) for other in others)
    expect(street.locator("#places .altered")).to_have_attribute("d", rest)
    accessible(street)
    street.get_by_role("button", name="Undo").click()
    expect(street.locator("#places .altered")).to_have_attribute("d", "")
    street.click("#marking-on")
    explained_anew(street, lambda: street.mouse.click(*over(street, *middle(boxes[0]["box"]))))


@pytest.mark.slow
def test_the_list_and_the_keyboard_explain_boxes_and_their_edges(street, boxes):
    rows = street.locator("#predictions .class")
    rows.nth(1).hover()
    expect(street.locator("#places .pointed")).to_have_attribute("d", path(boxes[1]["box"]))
    rows.nth(1).focus()
    fields = explained_anew(street, lambda: rows.nth(1).press("Enter"))
    assert ("target", "box:1") in fields
    expect(rows.nth(1)).to_have_attribute("aria-pressed", "true")
    expect(rows.nth(0)).to_have_attribute("aria-pressed", "false")
    fields = explained_anew(street, lambda: street.get_by_label("Explain the box’s").select_option("size"))
    assert ("target", "box:1:box") in fields
    left, top, right, bottom = boxes[1]["box"]
    expect(street.locator("#scope")).to_have_text(f"Size: {right - left + bottom - top:g}.")
    fields = explained_anew(street, rows.nth(0).click)
    assert ("target", "box:0:box") in fields
    street.get_by_label("Explain the box’s").select_option("mask")
    expect(street.locator("#part-fault")).to_contain_text("This detector has no mask")
    explained_anew(street, lambda: street.get_by_label("Explain the box’s").select_option("score"))
    reader = street.locator("#reader")
    reader.focus()
    for key in (*["ArrowUp"] * 20, *["ArrowLeft"] * 28):  # from the middle, x 32, y 24
        reader.press(key)
    fields = explained_anew(street, lambda: reader.press("Enter"))
    number = next(box["index"] for box in boxes if max(box["box"][:2]) < 1)
    assert ("target", f"box:{number}") in fields


@pytest.mark.slow
def test_a_rectangle_asks_why_there_is_no_box(street, browser, scenes, picture):
    drag(street, (18, 30), (30, 46))
    edges = street.locator("#edges")
    expect(edges).to_have_value("18,30,31,47")
    expect(street.locator("#target")).to_be_focused()  # and the click asked nothing
    street.keyboard.type("green")
    fields = explained_anew(street, lambda: street.keyboard.press("Enter"))
    assert ("target", "region:18,30,31,47:green") in fields
    expect(street.locator("#places .asked")).to_have_attribute("d", path([18, 30, 31, 47]))
    expect(street.locator("#places .chosen")).to_have_attribute("d", path([16, 32, 32, 48]))
    expect(street.locator("#answer-label")).to_have_text("green")
    expect(street.locator("#diagnostics")).to_contain_text("does not show this box")
    expect(street.locator("#doubt")).to_have_text("The detector does not show this box.")
    expect(street.locator("#answer-title")).to_have_class(re.compile("modest"))
    expect(street.locator("#answer-guess")).to_be_hidden()
    accessible(street)
    street.click("#copy-link")
    with opened(browser, scenes) as visitor:
        visitor.goto(clipboard(street))
        visitor.wait_for_selector("body[data-ready]")
        visitor.set_input_files("#image", picture)
        shown(visitor)
        expect(visitor.locator("#edges")).to_have_value("18,30,31,47")
        expect(visitor.locator("#target")).to_have_value("green")
        answer = street.locator("#answer-probability").inner_text()
        expect(visitor.locator("#answer-probability")).to_have_text(answer)
    edges.fill("18,30,31")
    edges.press("Enter")
    expect(street.locator("#target-fault")).to_contain_text("four numbers")


def share(page, condition):
    """Wait until the value that is read fulfils a condition, as a share of the largest on the bar."""
    page.wait_for_function(
        f"""() => {{
            const number = (id) => Number(document.getElementById(id).textContent.split(": ").at(-1).split(" ")[0]);
            return number("reading") / number("bar-high") {condition};
        }}"""
    )


@pytest.mark.slow
def test_a_link_to_a_class_shows_each_of_its_boxes(browser, scenes, picture, boxes):
    """The answer has a map for each box; each can be shown, with what belongs to it, and the question stays."""
    red = [box for box in boxes if box["label"] == "red"]
    assert len(red) > 2
    with opened(browser, scenes) as tab:
        tab.goto(f"{scenes}/?target=label:red&layer=neck")
        tab.wait_for_selector("body[data-ready]")
        tab.set_input_files("#image", picture)
        shown(tab)
        choice = tab.get_by_label("Which box")
        names = [f"box {box['index']}, {box['score']:.1%}" for box in red]
        expect(choice.locator("option")).to_have_text(names)
        for place in (1, 2, 0):
            choice.select_option(names[place])
            expect(tab.locator("#places .chosen")).to_have_attribute("d", path(red[place]["box"]))
            expect(tab.locator("#answer-probability")).to_have_text(f"{red[place]['score']:.1%}")
            row = tab.locator("#predictions .class").nth(red[place]["index"])
            expect(row).to_have_attribute("aria-pressed", "true")
            tab.mouse.move(*over(tab, *middle(red[place]["box"])))
            share(tab, ">= 0.9")  # each cell depends on itself alone
            others = [box for box in red if box["index"] != red[place]["index"]]
            tab.mouse.move(*over(tab, *middle(others[-1]["box"])))
            share(tab, "< 0.1")
        accessible(tab)
        tab.click("#copy-curl")
        assert "target=label:red" in clipboard(tab)
        fields = explained_anew(tab, tab.locator("#predictions .class").nth(0).click)
        assert ("target", "box:0") in fields
        expect(choice).to_be_hidden()


@pytest.mark.slow
def test_without_a_rectangle_the_whole_picture_is_asked_about(street):
    street.fill("#edges", "")
    street.fill("#target", "green")
    fields = explained_anew(street, street.get_by_role("button", name="Ask", exact=True).click)
    assert ("target", f"region:0,0,{WIDTH},{HEIGHT}:green") in fields


@pytest.mark.slow
def test_the_class_of_a_box_is_contrasted(street, boxes):
    explained_anew(street, street.locator("#predictions .class").nth(0).click)
    row = next(box["index"] for box in boxes if box["label"] != boxes[0]["label"])
    fields = explained_anew(street, street.locator("#predictions .rather").nth(row).click)
    assert {("target", "box:0"), ("against", boxes[row]["label"])} <= set(fields)
    expect(street.locator("#contrast")).to_contain_text(f"{boxes[0]['label']} rather than {boxes[row]['label']}")


@pytest.mark.slow
def test_the_surest_boxes_are_compared_and_the_others_offered(browser, scenes, tmp_path):
    Image.new("RGB", (WIDTH, HEIGHT), "red").save(tmp_path / "red.png")
    with opened(browser, scenes) as tab:
        tab.goto(f"{scenes}/?compare=odam&show=compare&layer=neck&classes=box:0")
        tab.wait_for_selector("body[data-ready]")
        tab.set_input_files("#image", tmp_path / "red.png")
        chips, more = tab.locator("#chips-classes label"), tab.locator("#class-add")
        expect(more.locator("option").first).to_have_text("4 more…")
        expect(tab.locator("#classes-title")).to_have_text("Boxes")
        expect(chips).to_have_text([f"red {number}" for number in range(8)])
        more.select_option("red 10")
        expect(chips).to_have_text([f"red {number}" for number in (*range(8), 10)])
        expect(more.locator("option")).to_have_text(["3 more…", "red 8", "red 9", "red 11"])
        expect(tab.locator(".card h3")).to_have_text(["odam, red 0", "odam, red 10"])


@pytest.mark.slow
def test_without_a_channel_the_surest_box_of_each_class_is_listed(browser, scenes, picture, boxes):
    with opened(browser, scenes) as tab:
        tab.goto(f"{scenes}/?layer=neck&show=inside")
        tab.wait_for_selector("body[data-ready]")
        tab.set_input_files("#image", picture)
        surest = {box["label"]: box["score"] for box in reversed(boxes[:5])}
        rows = tab.locator("#effect-list li")
        expect(rows).to_have_count(len(surest))
        for label, score in surest.items():
            expect(rows.filter(has_text=label).locator(".share")).to_have_text(f"{score:.1%}")
